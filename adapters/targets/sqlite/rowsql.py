"""The statements that change one table of a SQLite target, and the functions that run them (VENUS 3.4).

A statement runs for many rows at once in the driver, with values in their stored form (types.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from venus.adapters.dialects.statements import Statements
from venus.adapters.targets.relational.place import UnfitValue, name_columns
from venus.adapters.targets.relational.row_statements import TableStatements
from venus.adapters.targets.relational.session import Refusal
from venus.adapters.targets.sqlite.ddl import SqlitePlacedTable, side_definitions
from venus.adapters.targets.sqlite.session import SqliteSession
from venus.adapters.targets.sqlite.spelling import write_values
from venus.adapters.targets.sqlite.types import value_writer
from venus.codec.columns import Value, keys_to_columns, to_columns
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.model import Column, LogicalType, TableSchema

if TYPE_CHECKING:
    from venus.adapters.targets.sqlite.application import ApplicationTable, SqliteApplicationTables

statement = Statements(__name__.rpartition(".")[0])


class SqliteTableStatements(TableStatements):
    """Statements that write to one target table; `columns` are those of `schema`, which may be an older version."""

    placed: SqlitePlacedTable

    def __init__(
        self, placed: SqlitePlacedTable, group: str, application: SqliteApplicationTables | None = None
    ) -> None:
        super().__init__(placed, group, "main.")
        #: The reader and writer of the application's tables, in a file that follows.
        self.application = application
        #: Whether to refuse rows that a table of the application would store with a different value.
        self.is_exact = True
        key = placed.schema.key
        self.names |= {
            "strict": "STRICT",
            "definitions": side_definitions(placed, (c.name for c in placed.schema.wire_columns)),
            "key_definitions": side_definitions(placed, key),
            "keys_equal": " AND ".join(f"{placed.column(k)} = ?{n}" for n, k in enumerate(key, 1)),
        }

    def _application_parts(self, table: ApplicationTable) -> dict[str, str]:
        """Return the parts of statements that differ for a table of the application: types and key comparison."""
        wire = [table.column(self.placed.fold(c.name)) for c in self.placed.schema.wire_columns]
        key = [(self.placed.column(k), table.column(self.placed.fold(k))) for k in self.placed.schema.key]
        return {
            "strict": "STRICT" if table.table.strict else "",
            "definitions": ", ".join(table.define(name) for name in wire if name),
            "key_definitions": ", ".join(table.define(name) for _, name in key if name),
            "keys_equal": " AND ".join(table.same_key(c, f"?{n}", name) for n, (c, name) in enumerate(key, 1)),
            "match": " AND ".join(table.same_key(f"s.{c}", f"t.{c}", name) for c, name in key),
        }

    def same(self, column: Column) -> str:
        name = self.placed.column(column.name)
        return f"t.{name} COLLATE BINARY IS s.{name}"

    def text(self, block: str, **more: str) -> str:
        table = self.application.find(self.placed.name) if self.application is not None else None
        if table is None:
            return statement("apply", block, **(self.names | more))
        own = self._application_parts(table)
        if block == "create_stage":
            more["columns"] = own["key_definitions" if more.get("stage") == self.key_stage else "definitions"]
        if block == "delete_staged" and not table.has_exact_key:
            block = "delete_staged_exact"
        return statement("apply", block, **(self.names | own | more))

    def store(
        self, session: SqliteSession, columns: Sequence[Column], was: Sequence[LogicalType], values: Iterable[Any]
    ) -> list[Sequence[Any]]:
        """Convert canonical values of these columns to stored values. Raises Refusal for an unfit value."""
        if self.application is None:
            return stored_columns(was, [c.type for c in columns], values)
        writers = [partial(write_values, self.application.writer(session, self.placed, c)) for c in columns]
        return _store_all(writers, values)


def row_sql(placed: SqlitePlacedTable, group: str) -> SqliteTableStatements:
    """Return the statements that write to the target table of this version."""
    return SqliteTableStatements(placed, group)


def stored_columns(
    was: Iterable[LogicalType], kinds: Iterable[LogicalType], values: Iterable[Sequence[Value]]
) -> list[Sequence[Any]]:
    """Convert canonical columns of types `was` to stored values of types `kinds`. Raises Refusal for an unfit value."""
    return _store_all([value_writer(old, kind) for old, kind in zip(was, kinds, strict=True)], values)


def _store_all(
    writers: Iterable[Callable[[Sequence[Value]], Iterable[Any]] | None], values: Iterable[Sequence[Value]]
) -> list[Sequence[Any]]:
    """Convert columns with one function each; None keeps the values. Raises Refusal for an unfit value."""
    try:
        return [column if write is None else list(write(column)) for write, column in zip(writers, values, strict=True)]
    except (UnfitValue, ValueError, OverflowError) as unfit:
        raise Refusal(str(unfit), "SQLITE_MISMATCH", summary="no column of SQLite can hold a value of it") from unfit


def _stored_keys(
    session: SqliteSession, sql: SqliteTableStatements, layout: Layout, record_ids: PackedBytes
) -> list[Sequence[Any]]:
    """Return the key columns of these rows as stored values."""
    columns = name_columns(sql.placed, layout.columns[: layout.key_count])
    types = [c.type for c in columns]
    return sql.store(session, columns, types, keys_to_columns(record_ids, layout))


def delete_keys(session: SqliteSession, sql: SqliteTableStatements, layout: Layout, record_ids: PackedBytes) -> None:
    """Delete rows by their keys."""
    keys = _stored_keys(session, sql, layout, record_ids)
    session.write_many(sql.text("delete_keys"), zip(*keys, strict=True))


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
    stored = sql.store(session, columns, [layout.columns[n].type for n in kept], [values[n] for n in kept])
    relation = names.get("table", sql.stage if block == "put_staged" else sql.placed.sql)
    names = {"columns": sql.placed.columns(c.name for c in columns)} | names
    written = session.insert_columns(lambda marks: sql.text(block, rows=marks, **names), _row_marks(len(kept)), stored)
    if sql.application is not None and sql.is_exact and written == len(record_ids):
        keys = list(zip(*_stored_keys(session, sql, layout, record_ids), strict=True))
        sql.application.require_exact(
            session, sql.placed, schema, (record_ids, rows), keys, sql.text("has_key"), relation
        )
    return written


def stage_keys(session: SqliteSession, sql: SqliteTableStatements, layout: Layout, record_ids: PackedBytes) -> None:
    """Add keys of deleted rows to their staging table."""
    names = {"stage": sql.key_stage, "columns": sql.placed.key}
    keys = _stored_keys(session, sql, layout, record_ids)
    session.insert_columns(lambda marks: sql.text("put_staged", rows=marks, **names), _row_marks(len(keys)), keys)


def record_keys(
    session: SqliteSession, sql: SqliteTableStatements, layout: Layout, record_ids: PackedBytes, offset: int
) -> None:
    """Record that changes at `offset` have touched these keys of the table."""
    keys = _stored_keys(session, sql, layout, record_ids)
    session.insert_columns(lambda marks: sql.text("touch_keys", rows=marks), _row_marks(len(keys), str(offset)), keys)


def _row_marks(count: int, *more: str) -> str:
    """Return the parameter marks of a row, followed by the SQL values `more`."""
    return f"({', '.join(['?'] * count + list(more))})"
