"""Whether the key of a captured PostgreSQL table is another one than its registered version has. Pure."""

from __future__ import annotations

from venus.adapters.dialects.keyforms import another_form
from venus.adapters.dialects.postgresql.dictionary import Table
from venus.adapters.dialects.postgresql.types import widest
from venus.model import TableSchema

_WAY_OUT = "run `venus install-triggers`, then `venus resync`"


def key_change(known: TableSchema, table: Table) -> str:
    """Say what has become of the key; empty if it is what it was, or wider."""
    if not table.key:
        return f"its key is gone: give it one, {_WAY_OUT}"
    now = tuple(k.name for k in table.key)
    if now != known.key:
        return f"its key was ({', '.join(known.key)}) and is ({', '.join(now)}): {_WAY_OUT}"
    types = {c.name: (c.number, widest(c.source_type)) for c in known.columns}
    reformed = another_form(table.schema(known.table_id, known.version), known)
    for column in table.columns:
        same = types.get(column.name) == (column.number, widest(column.source_type))
        if column.name in known.key and (not same or column.name == reformed):
            return f"key column {column.name} was recreated as {column.source_type}: {_WAY_OUT}"
    return ""
