"""Metadata of a checkpoint, read from inside it. Metadata of the live store could differ from its rows by a batch."""

from __future__ import annotations

import json
import uuid

from venus.broker.machine import queue_index
from venus.broker.machine.business import Business, MaterialisedPosition
from venus.broker.machine.mirror import Mirror, decode_mirror
from venus.broker.machine.queue_index import QueuedBatch
from venus.broker.machine.records import decode_materialised_position, read_schemas
from venus.broker.queue.reader import incomplete_error
from venus.broker.snapshot.lease_manager import SnapshotLease
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.wire import change_pb2


def new_lease(
    store: Store, business: Business, directory: str, *, now: int, until: int, lease_s: int, holder: str
) -> SnapshotLease:
    """Return a new lease on a new checkpoint. Raises Unavailable if a mirror began its full data again meanwhile.

    `now` and `until` are microseconds.
    """
    at = read_progress(store, business.number)
    below = _batch_below(store, business.number, at.offset)
    last = below.batch_no if below is not None else _batch_before(store, business.number, at.offset)
    core = json.loads(store.get(keys.STATE, keys.core_key(business.number)) or b'{"epochs":[],"last_batch":0}')
    source = decode_mirror(core.get("mirror"))
    if source is not None and not source.is_complete(at.filled):
        raise incomplete_error(business)
    return SnapshotLease(
        snapshot_id=uuid.uuid4().hex,
        directory=directory,
        business=business.number,
        offset=at.offset,
        # the epochs that began long ago are known only from the batches
        epoch=max(_epoch_below(at.offset, core["epochs"], source), below.epoch if below is not None else 0),
        sequence=at.sequence,
        last_batch=core["last_batch"] if last is None else last,
        made_at_us=now,
        expires_at_us=until,
        lease_s=lease_s,
        holder=holder,
        fill=source.begin if source is not None else 0,
    )


def _epoch_below(offset: int, epochs: list[tuple[int, int]], source: Mirror | None) -> int:
    """Return the epoch of the last change below a cut, 0 if there is none.

    At a mirror that an older version filled, the first epoch begins at the mirror's own cut and counts. Any other epoch
    that begins at the cut has no change below it: with it, consumers at the cut would be refused as diverged.
    """
    found = [e for i, (e, start) in enumerate(epochs) if start < offset or _is_of_cut(i, start, source)]
    return found[-1] if found else 0


def _is_of_cut(i: int, start: int, source: Mirror | None) -> bool:
    return i == 0 and source is not None and start == source.offset


def read_progress(store: Store, business: int) -> MaterialisedPosition:
    """Return the progress of the full data."""
    return decode_materialised_position(store.get(keys.STATE, keys.materialised_key(business)))


def read_snapshot_schemas(
    store: Store, pin: SnapshotLease, table_ids: tuple[int, ...] = ()
) -> list[change_pb2.TableSchema]:
    """Return the schemas in a cut, only of these tables if any are named."""
    return [
        schema
        for offset, schema in read_schemas(store, pin.business)
        if offset < pin.offset and (not table_ids or schema.table_id in table_ids)
    ]


def _batch_below(store: Store, business: int, offset: int) -> QueuedBatch | None:
    """Return the newest batch below an offset, None if it was trimmed."""
    below = store.find_before(keys.QUEUE, keys.queue_key(business, offset))
    if below is None or below[0][:4] != keys.queue_key(business, 0)[:4]:
        return None
    return queue_index.decode(keys.queue_offset(below[0]), below[1])


def _batch_before(store: Store, business: int, offset: int) -> int | None:
    """Return the number of the batch before the oldest one from an offset on; None if there is none."""
    prefix = keys.queue_key(business, 0)[:4]
    above = next(store.scan(keys.QUEUE, keys.queue_key(business, offset), keys.after_prefix(prefix), limit=1), None)
    return queue_index.decode(keys.queue_offset(above[0]), above[1]).batch_no - 1 if above is not None else None
