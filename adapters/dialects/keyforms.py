"""Whether a key that was altered still gives each row the same record id: a wider column does. Pure."""

from __future__ import annotations

from venus.model import Kind, LogicalType, TableSchema


def another_form(now: TableSchema, before: TableSchema) -> str:
    """Return the first column of the key whose values have another text now, empty if none has."""
    types = {c.name: c.type for c in before.columns}
    for column in now.columns:
        if column.name in now.key and _form(column.type) != _form(types[column.name]):
            return column.name
    return ""


def _form(kind: LogicalType) -> tuple[object, ...]:
    """Digits behind the point and blanks at the end are part of a key's text, its width is not."""
    if kind.kind in (Kind.INT, Kind.DECIMAL):
        return ("number", kind.scale)
    return (kind.kind, kind.length if kind.kind is Kind.CHAR else 0)
