"""The full data of a mirror: rows as the set above has them, out of the log into the store.

Done by the materialising thread, which is the only one that writes rows, in steps of bounded size. The rows of a step
and the log index that they reach are one write batch, so a crash repeats nothing and skips nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from venus.broker.log.entry import EntryKind
from venus.broker.machine.business import Business, Materialised
from venus.broker.machine.mirror import Mirror
from venus.broker.machine.records import encode_materialised
from venus.broker.queue.reader import unfilled
from venus.broker.store import keys
from venus.broker.store.rocks import Batch, Store
from venus.codec.chunk import decode_chunk
from venus.codec.packed import put_together

__all__ = ["step", "unfilled"]

#: A step ends after so many bytes of rows, or one chunk.
STEP_BYTES_MAX = 1 << 20


def step(store: Store, business: Business, *, let_go: Callable[[Business], None]) -> bool:
    """Write the next rows of a mirror's full data; False = there was nothing to do. Raises Corruption.

    `let_go` is called before everything that was there is removed: the full data is taken again.
    """
    mirror, to = business.committed.mirror, business.filled_to
    assert mirror is not None, "only a mirror is filled from above"
    reached = business.materialised
    batch = store.batch()
    if reached.filled < mirror.begin:
        let_go(business)
        reached = _begin(business, mirror, batch)
    else:
        index = _rows(store, business, reached.filled + 1, to, batch)
        reached = replace(reached, filled=index)
    if reached.filled == business.materialised.filled:
        return False
    batch.put(keys.STATE, keys.materialised_key(business.number), encode_materialised(reached))
    store.write(batch, durable=False)
    business.materialised = reached
    return True


def _begin(business: Business, mirror: Mirror, batch: Batch) -> Materialised:
    number = business.number
    prefix = keys.number_prefix(number)
    batch.delete_range(keys.ROW, prefix, keys.after_prefix(prefix))
    for start in (keys.SCAVENGED + prefix, keys.SUM + prefix, keys.UNDESCRIBED + prefix):
        batch.delete_range(keys.STATE, start, keys.after_prefix(start))
    business.scavenged, business.forgotten_below, business.undescribed = {}, {}, {}
    return Materialised(
        offset=mirror.offset, sequence=mirror.sequence, nbytes=business.nbytes_trimmed, filled=mirror.begin
    )


def _rows(store: Store, business: Business, first: int, to: int, batch: Batch) -> int:
    """Put rows of the entries from `first` up to `to`; return the last one that is done."""
    done, nbytes = first - 1, 0
    for index, entry in business.log.entries(store, first, to + 1):
        if entry.kind is EntryKind.FULL_ROWS:
            chunk = decode_chunk(entry.body)
            prefix = np.frombuffer(keys.row_prefix(business.number, chunk.table_id), dtype=np.uint8)
            ids = chunk.rows.record_ids
            row_keys = put_together(np.broadcast_to(prefix, (len(chunk.rows), len(prefix))), ids)
            batch.put_many(keys.ROW, row_keys, chunk.rows.packed.split())
            nbytes += len(entry.body)
        done = index
        if nbytes >= STEP_BYTES_MAX:
            break
    return done
