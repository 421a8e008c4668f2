"""Taking the full data of a business from the set above, chunk by chunk, into the mirror's log."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from venus.broker.machine.business import Business
from venus.broker.mirrors.calls import Calls, NextChunk, Settle
from venus.broker.mirrors.progress import Progress
from venus.broker.pipeline.mirrors import Mirrors
from venus.broker.store.rocks import Store
from venus.codec.chunk import Totals, encode_chunk
from venus.rpc.snapshots import Resume
from venus.wire import broker_pb2, mirror_pb2

#: So many chunks are on their way to the disk.
CHUNKS_AHEAD = 8


def fill(splits: Sequence[broker_pb2.Split], mirrors: Mirrors, business: Business, progress: Progress) -> Calls[None]:
    """Take what is missing of the full data that has begun; where it is, the log says."""
    mirror = business.proposed.mirror
    assert mirror is not None, "full data goes on that has begun"
    begin, number, rows = mirror.begin, mirror.chunks, mirror.rows_done
    at = Resume(bytes.fromhex(mirror.after), Totals(mirror.split_rows, mirror.split_digest))
    going: deque[Future[None]] = deque()
    for split in splits[mirror.split :]:
        ended = False
        while not ended:
            chunk = yield NextChunk(snapshot_id=mirror.snapshot, split=split, at=at)
            body = encode_chunk(chunk)
            going.append(mirrors.full_rows(business, begin, number, body))
            ended, number, rows = chunk.end, number + 1, rows + len(chunk.rows)
            progress.pulled(len(body), len(chunk.rows))
            while len(going) >= CHUNKS_AHEAD:
                yield Settle(future=going.popleft())
        at = Resume()
    for future in going:
        yield Settle(future=future)
    yield Settle(future=mirrors.end_full(business, begin, rows))


def splits_of(store: Store, business: Business, begin: int) -> Sequence[broker_pb2.Split]:
    """Return the key ranges of the full data that began with a log entry."""
    _, entry = next(iter(business.log.entries(store, begin, begin + 1)))
    return mirror_pb2.MirrorBegin.FromString(entry.body).splits


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
        snapshot_id=snapshot.snapshot_id,
        splits=snapshot.splits,
        home=snapshot.home if snapshot.HasField("home") else None,
        where=snapshot.where,
        levels=snapshot.levels if snapshot.HasField("levels") else None,
    )
