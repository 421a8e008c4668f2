"""COPY of full data rows of any schema version into a table of the newest version (VENUS 3.3, full interface).

Rows from before an ADD COLUMN lack that column and get its default. Rows from before a DROP COLUMN lose that column.
"""

from __future__ import annotations

from venus.adapters.targets.postgresql.naming import PlacedTable
from venus.adapters.targets.postgresql.session import TargetSession
from venus.adapters.targets.postgresql.statements import statement
from venus.codec.changes import TableChanges
from venus.codec.chunk import FullRows
from venus.codec.columns import from_columns, to_columns
from venus.codec.copy_text import messages_to_copy, to_copy
from venus.codec.layout import Layout
from venus.codec.packed import PackedBytes
from venus.codec.stored_rows import HEAD_BYTES
from venus.model import Column, TableSchema


def copy_rows(
    session: TargetSession, table: str, placed: PlacedTable, section: TableChanges, schema: TableSchema
) -> None:
    """COPY a section of version `schema` into `table`, which has the columns of `placed`."""
    session.copy_in(copy_statement(table, placed, schema), copy_text(placed, section, schema))


def copy_statement(table: str, placed: PlacedTable, schema: TableSchema) -> str:
    """Return the COPY statement for rows of version `schema`."""
    names = {c.number: c.name for c in placed.schema.columns}
    columns = placed.columns(names[c.number] for c in schema.wire_columns if c.number in names)
    return statement("apply", "copy_in", table=table, columns=columns)


def copy_full(session: TargetSession, table: str, placed: PlacedTable, rows: FullRows, schema: TableSchema) -> None:
    """COPY rows of the full data of version `schema` into `table`, which has the columns of `placed`."""
    session.copy_in(copy_statement(table, placed, schema), full_rows_text(placed, rows, schema))


def copy_text(placed: PlacedTable, section: TableChanges, schema: TableSchema) -> bytes:
    """Return a section's rows as the lines of that COPY."""
    kept = _kept_columns(placed, schema)
    record_ids, rows, layout = section.record_ids, section.rows, Layout.of(schema)
    if len(kept) < len(schema.columns):
        record_ids, rows, layout = _drop_columns(record_ids, rows, schema, kept)
    return to_copy(record_ids, rows, layout)


def full_rows_text(placed: PlacedTable, rows: FullRows, schema: TableSchema) -> bytes:
    """Return rows of the full data as the lines of that COPY, without a copy in memory if every column is kept."""
    if len(_kept_columns(placed, schema)) < len(schema.columns):
        return copy_text(placed, rows.changes, schema)
    return messages_to_copy(rows.stored.packed, Layout.of(schema), head=HEAD_BYTES)


def _kept_columns(placed: PlacedTable, schema: TableSchema) -> list[Column]:
    numbers = {c.number for c in placed.schema.columns}
    return [c for c in schema.wire_columns if c.number in numbers]


def _drop_columns(
    record_ids: PackedBytes, rows: PackedBytes, schema: TableSchema, kept: list[Column]
) -> tuple[PackedBytes, PackedBytes, Layout]:
    """Remove columns, value by value; only rows from before a DROP COLUMN need this."""
    values = dict(
        zip((c.number for c in schema.wire_columns), to_columns(record_ids, rows, Layout.of(schema)), strict=True)
    )
    narrow = TableSchema(
        table_id=schema.table_id,
        version=-schema.version,  # layouts are cached by version, and no real version is negative
        namespace=schema.namespace,
        name=schema.name,
        columns=tuple(kept),
        key=schema.key,
    )
    layout = Layout.of(narrow)
    new_ids, new_rows = from_columns([values[c.number] for c in kept], layout)
    return new_ids, new_rows, layout
