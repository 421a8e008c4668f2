"""Brings rows of the full data into a table, whatever schema version they were written in (VENUS 3.3, full interface).

The table has the newest version's columns. Rows that were written before a column was added lack it and get its
default; of rows that still have a dropped column, that column is left out.
"""

from __future__ import annotations

from venus.adapters.targets.postgresql.naming import Placed
from venus.adapters.targets.postgresql.session import Session
from venus.adapters.targets.postgresql.statements import statement
from venus.codec.changes import TableChanges
from venus.codec.chunk import FullRows
from venus.codec.columns import from_columns, to_columns
from venus.codec.copytext import messages_to_copy, to_copy
from venus.codec.layout import Layout
from venus.codec.packed import Packed
from venus.codec.stored import HEAD_BYTES
from venus.model import Column, TableSchema


def copy_rows(session: Session, table: str, placed: Placed, section: TableChanges, schema: TableSchema) -> None:
    """COPY a section of `schema`'s version into `table`, which is laid out like `placed`."""
    session.copy_in(copy_statement(table, placed, schema), copy_text(placed, section, schema))


def copy_statement(table: str, placed: Placed, schema: TableSchema) -> str:
    """Return the COPY that takes rows of `schema`'s version."""
    names = {c.number: c.name for c in placed.schema.columns}
    columns = placed.columns(names[c.number] for c in schema.wire_columns if c.number in names)
    return statement("apply", "copy_in", table=table, columns=columns)


def copy_full(session: Session, table: str, placed: Placed, rows: FullRows, schema: TableSchema) -> None:
    """COPY rows of the full data in `schema`'s version into `table`, which is laid out like `placed`."""
    session.copy_in(copy_statement(table, placed, schema), full_text(placed, rows, schema))


def copy_text(placed: Placed, section: TableChanges, schema: TableSchema) -> bytes:
    """Return a section's rows as the lines of that COPY."""
    kept = _kept(placed, schema)
    record_ids, rows, layout = section.record_ids, section.rows, Layout.of(schema)
    if len(kept) < len(schema.columns):
        record_ids, rows, layout = _without(record_ids, rows, schema, kept)
    return to_copy(record_ids, rows, layout)


def full_text(placed: Placed, rows: FullRows, schema: TableSchema) -> bytes:
    """Return rows of the full data as the lines of that COPY: read where they lie, if every column is wanted."""
    if len(_kept(placed, schema)) < len(schema.columns):
        return copy_text(placed, rows.changes, schema)
    return messages_to_copy(rows.stored.packed, Layout.of(schema), head=HEAD_BYTES)


def _kept(placed: Placed, schema: TableSchema) -> list[Column]:
    numbers = {c.number for c in placed.schema.columns}
    return [c for c in schema.wire_columns if c.number in numbers]


def _without(
    record_ids: Packed, rows: Packed, schema: TableSchema, kept: list[Column]
) -> tuple[Packed, Packed, Layout]:
    """Leave columns out; value by value, but only rows from before a DROP COLUMN come here."""
    values = dict(
        zip((c.number for c in schema.wire_columns), to_columns(record_ids, rows, Layout.of(schema)), strict=True)
    )
    narrow = TableSchema(
        table_id=schema.table_id,
        version=-schema.version,  # never a version of its own: layouts are cached by number
        namespace=schema.namespace,
        name=schema.name,
        columns=tuple(kept),
        key=schema.key,
    )
    layout = Layout.of(narrow)
    new_ids, new_rows = from_columns([values[c.number] for c in kept], layout)
    return new_ids, new_rows, layout
