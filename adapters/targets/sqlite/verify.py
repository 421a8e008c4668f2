"""A SQLite target as one side of a comparison (dialects/verify_contract.py): VENUS reads rows and computes checksums.

VENUS's own tables are in the same snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from venus.adapters.dialects.sqlite.sql import statement as dialect_statement
from venus.adapters.dialects.sqlite.verify import PIECE_ROWS, SqliteRowReader
from venus.adapters.dialects.verify_contract import FormStyle, Key, Subject, style_of
from venus.adapters.targets.contract import ReachedOffset
from venus.adapters.targets.relational.target import read_parked_rows, read_reached_offset
from venus.adapters.targets.sqlite.database import SqliteDatabase
from venus.adapters.targets.sqlite.ddl import SqlitePlacedTable
from venus.adapters.targets.sqlite.rowsql import stored_columns
from venus.adapters.targets.sqlite.types import canonical_values
from venus.codec.batch import TableChanges
from venus.codec.columns import Value, from_columns
from venus.codec.row_bytes import Layout
from venus.model import Column, Kind, TableSchema


class SqliteTargetReader(SqliteRowReader):
    """A session that reads a target for a comparison."""

    def __init__(self, target: SqliteDatabase) -> None:
        self._target = target
        self._session = target.connect("verify")

    def close(self) -> None:
        self._session.close()

    def begin(self, subject: Subject) -> None:
        self.end()
        self._session.begin_snapshot()

    def end(self) -> None:
        self._session.rollback()

    def read_reached_offset(self, subject: Subject) -> ReachedOffset:
        """Return how far this table is in the snapshot of `begin`."""
        return read_reached_offset(self._target, self._session, subject)

    def read_parked_rows(self, subject: Subject) -> dict[bytes, str]:
        """Return the reasons why changes of single rows were not applied, by record id."""
        return read_parked_rows(self._target, self._session, subject)

    def _place(self, subject: Subject) -> SqlitePlacedTable:
        return self._target.place(subject.schema)

    def _table(self, subject: Subject) -> str:
        return self._place(subject).sql

    def _column(self, subject: Subject, name: str) -> str:
        return f"t.{self._place(subject).column(name)}"

    def _stored_key(self, subject: Subject, key: Key) -> tuple[Any, ...]:
        columns = subject.schema.wire_columns[: len(key)]
        types = [c.type for c in columns]
        stored = stored_columns(types, types, [[_key_value(c, form)] for c, form in zip(columns, key, strict=True)])
        return tuple(value for (value,) in stored)

    def _key_term(self, subject: Subject, name: str) -> str:
        """Return the form of a key, because `_stored_key` has no more than that: 1.50 is sought as 1.5."""
        column = self._column(subject, name)
        match style_of(next(c.type for c in subject.schema.columns if c.name == name)):
            case FormStyle.NUMBER:
                short = f"rtrim(rtrim({column}, '0'), '.')"
                return f"CASE WHEN instr({column}, '.') THEN {short} ELSE {column} END"
            case FormStyle.PADDED:
                return f"rtrim({column}, ' ')"
        return column

    def _fetch(self, text: str) -> list[tuple[Any, ...]]:
        return self._session.rows(text)

    def _read_rows(self, subject: Subject, where: str, values: list[Any], rows_max: int) -> Iterator[TableChanges]:
        placed, schema = self._place(subject), subject.schema
        columns = ", ".join(f"t.{placed.column(c.name)}" for c in schema.wire_columns)
        limit = f" LIMIT {rows_max}" if rows_max else ""
        parts = {"columns": columns, "table": placed.sql, "where": where, "limit": limit}
        text = dialect_statement("verify", "rows", **parts)
        for rows in self._session.stream(text, values, PIECE_ROWS):
            yield _build_section(schema, rows)


def _key_value(column: Column, form: str) -> Value:
    return bytes.fromhex(form) if column.type.kind is Kind.BYTES else form


def _build_section(schema: TableSchema, rows: Seq[tuple[Any, ...]]) -> TableChanges:
    stored = list(zip(*rows, strict=True))[: len(schema.columns)]
    columns = [canonical_values(c, v) for c, v in zip(schema.wire_columns, stored, strict=True)]
    record_ids, packed = from_columns(columns, Layout.of(schema))
    return TableChanges(
        table_id=schema.table_id,
        schema_version=schema.version,
        record_ids=record_ids,
        rows=packed,
        is_deleted=np.zeros(len(record_ids), dtype=np.bool_),
    )
