"""The statements that change one table of a SQLite target, and the functions that run them (VENUS 3.4).

A statement runs for many rows at once in the driver, with values in their stored form (types.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from venus.adapters.dialects.statements import Statements
from venus.adapters.targets.relational.place import UnfitValue
from venus.adapters.targets.relational.row_statements import TableStatements
from venus.adapters.targets.relational.session import Refusal
from venus.adapters.targets.sqlite.ddl import SqlitePlacedTable, side_definitions
from venus.adapters.targets.sqlite.session import SqliteSession
from venus.adapters.targets.sqlite.types import value_writer
from venus.codec.columns import Value, keys_to_columns, to_columns
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.model import Column, LogicalType, TableSchema

statement = Statements(__name__.rpartition(".")[0])


class SqliteTableStatements(TableStatements):
    """Statements for one table version. `columns` are those of `schema`, which may be an older version."""

    def __init__(self, placed: SqlitePlacedTable, group: str) -> None:
        super().__init__(placed, group, "main.")
        key = placed.schema.key
        self.names |= {
            "definitions": side_definitions(placed, (c.name for c in placed.schema.wire_columns)),
            "key_definitions": side_definitions(placed, key),
            "keys_equal": " AND ".join(f"{placed.column(k)} = ?" for k in key),
        }

    def same(self, column: Column) -> str:
        name = self.placed.column(column.name)
        return f"t.{name} COLLATE BINARY IS s.{name}"

    def text(self, block: str, **more: str) -> str:
        return statement("apply", block, **(self.names | more))


def row_sql(placed: SqlitePlacedTable, group: str) -> SqliteTableStatements:
    """Return the statements for a table version."""
    return SqliteTableStatements(placed, group)


def stored_columns(
    was: Iterable[LogicalType], kinds: Iterable[LogicalType], values: Iterable[Sequence[Value]]
) -> list[Sequence[Any]]:
    """Return columns in their stored form. Raises Refusal for a value that SQLite would change."""
    found: list[Sequence[Any]] = []
    try:
        for old, kind, column in zip(was, kinds, values, strict=True):
            write = value_writer(old, kind)
            found.append(column if write is None else write(column))
    except (UnfitValue, OverflowError) as unfit:
        raise Refusal(str(unfit), "SQLITE_MISMATCH", summary="no column of SQLite can hold a value of it") from unfit
    return found


def stored_keys(layout: Layout, record_ids: PackedBytes) -> list[Sequence[Any]]:
    """Return the key columns of rows in their stored form."""
    types = [c.type for c in layout.columns[: layout.key_count]]
    return stored_columns(types, types, keys_to_columns(record_ids, layout))


def delete_keys(session: SqliteSession, sql: SqliteTableStatements, layout: Layout, record_ids: PackedBytes) -> None:
    """Delete rows by their keys."""
    session.write_many(sql.text("delete_keys"), zip(*stored_keys(layout, record_ids), strict=True))


def insert_rows(
    session: SqliteSession,
    sql: SqliteTableStatements,
    schema: TableSchema,
    record_ids: PackedBytes,
    rows: PackedBytes,
    *,
    block: str = "insert",
    **names: str,
) -> int:
    """Insert rows of version `schema` into the table, and return their number. Raises Refusal."""
    layout = Layout.of(schema)
    here = {c.number: c for c in sql.placed.schema.columns}
    kept = [n for n, c in enumerate(layout.columns) if c.number in here]
    values = to_columns(record_ids, rows, layout)
    columns = [here[layout.columns[n].number] for n in kept]
    stored = stored_columns(
        (layout.columns[n].type for n in kept), (c.type for c in columns), [values[n] for n in kept]
    )
    names = {"columns": sql.placed.columns(c.name for c in columns), "marks": _marks(len(kept))} | names
    return session.write_many(sql.text(block, **names), zip(*stored, strict=True))


def stage_keys(session: SqliteSession, sql: SqliteTableStatements, layout: Layout, record_ids: PackedBytes) -> None:
    """Add keys to the staging table of deleted rows."""
    text = sql.text("put_staged", stage=sql.key_stage, columns=sql.placed.key, marks=_marks(layout.key_count))
    session.write_many(text, zip(*stored_keys(layout, record_ids), strict=True))


def record_keys(
    session: SqliteSession, sql: SqliteTableStatements, layout: Layout, record_ids: PackedBytes, offset: int
) -> None:
    """Add keys to the record of a table's changed keys."""
    text = sql.text("touch_keys", marks=_marks(layout.key_count), offset=str(offset))
    session.write_many(text, zip(*stored_keys(layout, record_ids), strict=True))


def _marks(count: int) -> str:
    return ", ".join("?" * count)
