"""VENUS's own columns beside a table's, where changes are Arrow: in files of Parquet and in Spark's frames."""

from __future__ import annotations

import pyarrow as pa

from venus.codec.changes import TableChanges
from venus.model import ChangeKind, Sequence

#: VENUS's own columns.
OFFSET, SEQUENCE, DELETED, GONE_BEFORE, COMMITTED = "_offset", "_sequence", "_deleted", "_gone_before", "_committed_at"
CHANGE_FIELDS = (
    pa.field(OFFSET, pa.int64()),
    pa.field(SEQUENCE, pa.int64()),
    pa.field(DELETED, pa.bool_()),
    #: On a marker, which has no key: every row whose newest sequence is below this is gone (TRUNCATE, end of a sweep).
    pa.field(GONE_BEFORE, pa.int64()),
    pa.field(COMMITTED, pa.timestamp("us", tz="UTC")),
)


def gone_before(section: TableChanges, sequence: int) -> Sequence | None:
    """Return below which sequence a marker removes rows; None if it removes none."""
    if section.kind is ChangeKind.TRUNCATE:
        return Sequence(sequence)
    return section.sweep_before if section.kind is ChangeKind.SWEEP_END else None
