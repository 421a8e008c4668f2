"""A SQLite target as one side of a comparison (dialects/verify_contract.py): VENUS computes the checksums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from venus.adapters.dialects.sqlite.sql import statement as dialect_statement
from venus.adapters.dialects.sqlite.verify import PIECE_ROWS, SECTION_BYTES, SqliteRowReader, stored_key
from venus.adapters.dialects.verify_contract import FormStyle, Key, Subject, style_of
from venus.adapters.targets.relational.row_target import SessionReader, build_section
from venus.adapters.targets.sqlite.rowsql import stored_columns
from venus.adapters.targets.sqlite.types import canonical_values
from venus.codec.batch import TableChanges
from venus.codec.columns import Value
from venus.model import Column, Kind


class SqliteTargetReader(SessionReader, SqliteRowReader):
    """A session that reads a target for a comparison."""

    def _table(self, subject: Subject) -> str:
        return str(self._place(subject).sql)

    def _column(self, subject: Subject, name: str) -> str:
        return f"t.{self._place(subject).column(name)}"

    def _stored_key(self, subject: Subject, key: Key) -> tuple[Any, ...]:
        columns = subject.schema.wire_columns[: len(key)]
        types = [c.type for c in columns]
        stored = stored_columns(types, types, [[_key_value(c, form)] for c, form in zip(columns, key, strict=True)])
        return tuple(value for (value,) in stored)

    def _key_term(self, subject: Subject, name: str) -> str:
        """Return the SQL of a key column's compared text, because rows are searched by it: 1.5 finds 1.50."""
        column = self._column(subject, name)
        match style_of(next(c.type for c in subject.schema.columns if c.name == name)):
            case FormStyle.NUMBER:
                short = f"rtrim(rtrim({column}, '0'), '.')"
                return f"CASE WHEN instr({column}, '.') THEN {short} ELSE {column} END"
            case FormStyle.PADDED:
                return f"rtrim({column}, ' ')"
        return column

    def _fetch(self, text: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._session.rows(text)
        return found

    def _read_rows(self, subject: Subject, where: str, values: list[Any], rows_max: int) -> Iterator[TableChanges]:
        placed, schema = self._place(subject), subject.schema
        columns = ", ".join(f"t.{placed.column(c.name)}" for c in schema.wire_columns)
        limit = f" LIMIT {rows_max}" if rows_max else ""
        parts = {"columns": columns, "table": placed.sql, "where": where, "limit": limit}
        text = dialect_statement("verify", "rows", **parts)
        for rows in self._session.stream(text, values, PIECE_ROWS):
            stored = list(zip(*rows, strict=True))[: len(schema.columns)]
            values = [canonical_values(c, v) for c, v in zip(schema.wire_columns, stored, strict=True)]
            yield build_section(schema, values)


class SqliteFollowerReader(SqliteTargetReader):
    """Session that reads the application's tables in its former file, as capture reads them, for a comparison."""

    def _stored_key(self, subject: Subject, key: Key) -> tuple[Any, ...]:
        return stored_key(subject, key)

    def _key_term(self, subject: Subject, name: str) -> str:
        """Return the SQL of a key column, because rows are searched by stored values."""
        return self._column(subject, name)

    def _read_rows(self, subject: Subject, where: str, values: list[Any], rows_max: int) -> Iterator[TableChanges]:
        placed, application = self._place(subject), self._target.application
        assert application is not None
        access = application.access(placed, subject.schema)
        limit = f" LIMIT {rows_max}" if rows_max else ""
        parts = {"columns": access.columns_sql, "table": placed.sql, "where": where, "limit": limit}
        for rows in self._session.stream(dialect_statement("verify", "rows", **parts), values, PIECE_ROWS):
            yield from access.build_sections(rows, bytes_max=SECTION_BYTES)


def _key_value(column: Column, form: str) -> Value:
    """Return the value of a key column by its compared text."""
    return bytes.fromhex(form) if column.type.kind is Kind.BYTES else form
