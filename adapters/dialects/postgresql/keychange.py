"""Whether the key of a captured PostgreSQL table is another one than its registered version has. Pure."""

from __future__ import annotations

from venus.adapters.dialects.keyforms import keeps_text
from venus.adapters.dialects.postgresql.dictionary import Table
from venus.model import TableSchema

_WAY_OUT = "run `venus install-triggers`, then `venus resync`"


def key_change(known: TableSchema, table: Table) -> str:
    """Say what has become of the key; empty if it is what it was, or wider."""
    if not table.key:
        return f"its key is gone: give it one, {_WAY_OUT}"
    now = tuple(k.name for k in table.key)
    if now != known.key:
        return f"its key was ({', '.join(known.key)}) and is ({', '.join(now)}): {_WAY_OUT}"
    before = {c.name: c for c in known.columns}
    for column in table.columns:
        was = before.get(column.name)
        if column.name not in known.key:
            continue
        if was is None or was.number != column.number or not keeps_text(was.type, column.type):
            return f"key column {column.name} was recreated as {column.source_type}: {_WAY_OUT}"
    return ""
