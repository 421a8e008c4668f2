"""What a predicate makes of changes: a row that is outside travels on as its key alone, a deletion. Pure.

So a row that leaves the range is deleted at the target, one that enters is inserted, and one that was never in deletes
nothing. The verdict depends on the change alone, not on what was there before: whoever reads the queue again, after a
crash or to catch up, gets the same one.
"""

from __future__ import annotations

from venus.adapters.under.fold import Rows
from venus.codec.filtering import as_keys
from venus.model import TableSchema
from venus.predicates.ranges import Predicate


def judged(rows: Rows, predicate: Predicate | None, version: TableSchema) -> Rows:
    """Return the changes as the target gets them; in order, as many as there were."""
    found = None
    if predicate is not None:
        found = as_keys(predicate, rows.record_ids, rows.rows, rows.is_deleted, version)
    if found is None:
        return rows
    kept, is_deleted = found
    is_new = None if rows.is_new is None else rows.is_new & ~is_deleted
    return Rows(record_ids=rows.record_ids, rows=kept, is_deleted=is_deleted, offsets=rows.offsets, is_new=is_new)
