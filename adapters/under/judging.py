"""What a predicate makes of changes: a row that is outside travels on as its key alone, a deletion. Pure.

So a row that leaves the range is deleted at the target, one that enters is inserted, and one that was never in deletes
nothing. The verdict depends on the change alone, not on what was there before: whoever reads the queue again, after a
crash or to catch up, gets the same one.
"""

from __future__ import annotations

import numpy as np

from venus.adapters.under.fold import Rows
from venus.codec.filtering import inside_of
from venus.codec.packed import Packed
from venus.model import TableSchema
from venus.predicates.ranges import Predicate


def judged(rows: Rows, predicate: Predicate | None, version: TableSchema) -> Rows:
    """Return the changes as the target gets them; in order, as many as there were."""
    live = ~rows.is_deleted
    if predicate is None or not live.any():
        return rows
    present = rows.where(live)
    kept = np.zeros(len(rows), dtype=np.bool_)
    kept[live] = inside_of(predicate, present.record_ids, present.rows, version)
    if (kept == live).all():
        return rows
    data = np.frombuffer(rows.rows.data, dtype=np.uint8)[np.repeat(kept, rows.rows.sizes)].tobytes()
    sizes = np.where(kept, rows.rows.sizes, 0).astype(np.uint32)
    return Rows(record_ids=rows.record_ids, rows=Packed(data, sizes), is_deleted=~kept, offsets=rows.offsets)
