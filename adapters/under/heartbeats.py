"""The source's clock in a heartbeat row: how old it is when it arrives is the lag from end to end. Pure."""

from __future__ import annotations

from venus.codec.changes import TableChanges
from venus.codec.columns import to_columns
from venus.codec.layout import Layout
from venus.model import ChangeKind, TableSchema


def heartbeat_of(section: TableChanges, schema: TableSchema) -> int | None:
    """Return the last heartbeat of a section, Unix microseconds; None if it has none."""
    if section.kind is not ChangeKind.CHANGES or section.is_deleted.all():
        return None
    layout = Layout.of(schema)
    names = [c.name.lower() for c in layout.columns]
    value = to_columns(section.record_ids, section.rows, layout)[names.index("beat_at")][-1]
    return int(value) if isinstance(value, str) and value.isdecimal() else None
