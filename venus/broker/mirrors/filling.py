"""Taking the full data of a business from the set above, chunk by chunk, into the mirror's log."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from venus.broker.machine.business import Business
from venus.broker.mirrors.calls import Calls, NextChunk, Settle
from venus.broker.mirrors.progress import Progress
from venus.broker.pipeline.mirrors import Mirrors
from venus.codec.chunk import encode_chunk
from venus.rpc.snapshots import Resume
from venus.wire import broker_pb2, mirror_pb2

#: So many chunks are on their way to the disk.
CHUNKS_AHEAD = 8


def fill(
    snapshot: broker_pb2.Snapshot, mirrors: Mirrors, business: Business, said: mirror_pb2.MirrorBegin,
    progress: Progress,
) -> Calls[None]:  # fmt: skip
    """Take the full data at a snapshot. Whatever is raised, it has to begin again."""
    begin = yield Settle(future=mirrors.begin_full(business, said))
    going: deque[Future[None]] = deque()
    rows = 0
    for split in snapshot.splits:
        at, ended = Resume(), False
        while not ended:
            chunk = yield NextChunk(snapshot_id=snapshot.snapshot_id, split=split, at=at)
            ended = chunk.end
            if not len(chunk.rows):
                continue
            body = encode_chunk(chunk)
            going.append(mirrors.full_rows(business, begin, body))
            rows += len(chunk.rows)
            progress.pulled(len(body), len(chunk.rows))
            while len(going) >= CHUNKS_AHEAD:
                yield Settle(future=going.popleft())
    for future in going:
        yield Settle(future=future)
    yield Settle(future=mirrors.end_full(business, begin, rows))


def said_of(
    snapshot: broker_pb2.Snapshot, *, above: str, network: str, only: Sequence[str], reason: str
) -> mirror_pb2.MirrorBegin:
    """Return what is logged of a snapshot that is taken."""
    return mirror_pb2.MirrorBegin(
        set=above,
        network=network,
        only=only,
        offset=snapshot.offset,
        epoch=snapshot.epoch,
        sequence=snapshot.sequence,
        last_batch=snapshot.last_batch,
        rows=sum(split.rows_estimate for split in snapshot.splits),
        reason=reason,
        schemas=snapshot.schemas,
    )
