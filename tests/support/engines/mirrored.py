"""A mirror without a network: the steps of a replicator, one call at a time, from one engine to another."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.engines.engines import BUSINESS, WAIT_S
from venus.broker.core import Core
from venus.broker.machine.business import Business
from venus.errors import Refused
from venus.wire import broker_pb2, mirror_pb2

SET = "head-office"


def business_of(engine: Core, name: str = BUSINESS) -> Business:
    """Return the engine's business."""
    return engine.catalogue.find(name)


def begin(home: Core, mirror: Core, /, **more: object) -> tuple[Business, int, broker_pb2.Snapshot]:
    """Open a snapshot of the home's full data, and begin a fill from it at the mirror."""
    snapshot = home.full_data.open(broker_pb2.OpenSnapshotRequest(business=BUSINESS, splits=3))
    said = mirror_pb2.MirrorBegin(
        set=SET,
        network="n1",
        offset=snapshot.offset,
        epoch=snapshot.epoch,
        sequence=snapshot.sequence,
        last_batch=snapshot.last_batch,
        schemas=snapshot.schemas,
        rows=sum(s.rows_estimate for s in snapshot.splits),
        **more,  # type: ignore[arg-type]
    )
    business = mirror.mirrors.enter(BUSINESS)
    try:
        return business, mirror.mirrors.begin_full_data(business, said).result(WAIT_S), snapshot
    except Refused:
        home.full_data.close(snapshot.snapshot_id)
        raise
    finally:
        mirror.mirrors.leave(business)


def rows(home: Core, mirror: Core, business: Business, index: int, snapshot: broker_pb2.Snapshot) -> int:
    """Transfer every row of the full data; return the number of chunks."""
    sent = 0
    for split in snapshot.splits:
        request = broker_pb2.ReadSplitRequest(snapshot_id=snapshot.snapshot_id, split=split, chunk_bytes=1 << 14)
        for chunk in home.full_data.read_split(request):
            mirror.mirrors.take_full_rows(business, index, sent, chunk.body).result(WAIT_S)
            sent += 1
    return sent


def fill(home: Core, mirror: Core, /, **more: object) -> Business:
    """Transfer the home's whole full data."""
    business, index, snapshot = begin(home, mirror, **more)
    rows(home, mirror, business, index, snapshot)
    home.full_data.close(snapshot.snapshot_id)
    mirror.mirrors.end_full_data(business, index, 0).result(WAIT_S)
    return business


def take(mirror: Core, increments: Sequence[broker_pb2.Increment], position: int = 0, *, sparse: bool = False) -> int:
    """Give increments to the mirror."""
    return mirror.mirrors.take_increments(business_of(mirror), increments, position, sparse=sparse).result(WAIT_S)


def follow(home: Core, mirror: Core) -> None:
    """Transfer all increments that the mirror lacks."""
    offset = business_of(mirror).committed.next_offset
    while True:
        found = home.subscriptions.read(BUSINESS, offset, 1 << 20)
        if found.next_offset == offset:
            return
        offset = take(mirror, found.increments, found.next_offset)
