"""A MariaDB or MySQL target as one side of a comparison (dialects/verify_contract.py).

The expressions of types.py read rows as canonical text, according to the source's types; VENUS computes the compared
forms from that text. The snapshot also contains VENUS's own tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Any

from venus.adapters.dialects.canonical_text import float_text
from venus.adapters.dialects.mysql.dictionary.tables import MysqlTable
from venus.adapters.dialects.mysql.rows import MysqlAccess
from venus.adapters.dialects.mysql.sql import literal
from venus.adapters.dialects.mysql.sql import statement as dialect_statement
from venus.adapters.dialects.mysql.verify import MysqlChecksumReader, key_condition
from venus.adapters.dialects.mysql.verify import form_sql as application_form_sql
from venus.adapters.dialects.verify_contract import (
    NULL,
    FormStyle,
    Key,
    Subject,
    style_of,
)
from venus.adapters.targets.mysql.database import MysqlDatabase
from venus.adapters.targets.mysql.naming import MysqlPlacedTable, quote
from venus.adapters.targets.mysql.rowsql import value_writer
from venus.adapters.targets.mysql.types import read_sql
from venus.adapters.targets.relational.row_target import SessionReader, build_section
from venus.codec.batch import TableChanges
from venus.codec.columns import Value
from venus.model import Column, Kind

PIECE_ROWS = 5_000
_SECTION_BYTES = 1 << 30
_NULL = f"CHAR({ord(NULL)} USING utf8mb4)"


def text_sql(placed: MysqlPlacedTable, column: Column) -> str:
    """Return the SQL that reads a column as canonical text; binary and floating-point values are read unchanged."""
    name = f"t.{placed.column(column.name)}"
    read = read_sql(column.type, name)
    if column.type.kind in (Kind.BYTES, Kind.FLOAT):
        return read
    return f"CONVERT(CAST({read} AS CHAR) USING utf8mb4)"


def form_sql(placed: MysqlPlacedTable, column: Column, *, bare: bool = False) -> str:
    """Return the SQL of a column's form, the text that is compared; `bare`: without its length in front."""
    text, style = text_sql(placed, column), style_of(column.type)
    if style is FormStyle.HEX:
        text = f"LOWER(HEX({text}))"
    elif column.type.kind is Kind.FLOAT:
        text = f"CAST({text} AS CHAR)"
    elif style is FormStyle.NUMBER:
        short = f"TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM {text}))"
        text = f"IF(LOCATE('.', {text}), {short}, {text})"
    elif style is FormStyle.PADDED:
        text = f"TRIM(TRAILING ' ' FROM {text})"
    if style in (FormStyle.FREE, FormStyle.PADDED) and not bare:
        text = f"CONCAT(LENGTH({text}), ':', {text})"
    return f"COALESCE({text}, {_NULL})"


class MysqlTargetReader(SessionReader, MysqlChecksumReader):
    """A session that reads a target for a comparison."""

    # -- sizes -----------------------------------------------------------------------------------------------------

    def estimate_rows(self, subject: Subject) -> int:
        placed = self._place(subject)
        names = {"database": literal(placed.namespace), "name": literal(placed.name)}
        found = self._session.row(dialect_statement("verify", "estimate", **names))
        return int(found[0])

    # -- checksums -------------------------------------------------------------------------------------------------

    def _query(self, block: str, subject: Subject, **parts: str) -> Seq[tuple[Any, ...]]:
        table = self._place(subject).sql
        found: list[tuple[Any, ...]] = self._session.rows(dialect_statement("verify", block, table=table, **parts))
        return found

    def _form_terms(self, subject: Subject, *, bare: bool = False) -> list[str]:
        placed = self._place(subject)
        return [form_sql(placed, column, bare=bare) for column in subject.schema.wire_columns]

    def _leading_key(self, subject: Subject) -> str:
        return f"t.{self._place(subject).column(subject.schema.key[0])}"

    def _key_parts(self, subject: Subject, keys: Seq[Key]) -> dict[str, str]:
        placed, schema = self._place(subject), subject.schema
        columns = schema.wire_columns[: len(schema.key)]
        writers = [_write_text if _is_shortened(c) else value_writer(c.type, placed.types[c.name]) for c in columns]
        rows = (
            ", ".join(write(_key_value(c, text)) for write, c, text in zip(writers, columns, key, strict=True))
            for key in keys
        )
        names = ", ".join(
            form_sql(placed, c, bare=True) if _is_shortened(c) else f"t.{placed.column(c.name)}" for c in columns
        )
        return {"where": f"({names}) IN ({', '.join(f'({row})' for row in rows)})"}

    # -- rows ------------------------------------------------------------------------------------------------------

    def _read_rows(self, subject: Subject, where: str, limit: str) -> Iterator[TableChanges]:
        """Yield the rows that meet the condition `where`, as sections."""
        placed, schema = self._place(subject), subject.schema
        columns = "".join(f"{text_sql(placed, c)}, " for c in schema.wire_columns)
        parts = {"columns": columns, "table": placed.sql, "where": where, "limit": limit}
        for rows in self._session.stream(dialect_statement("verify", "rows", **parts), PIECE_ROWS):
            texts = list(zip(*rows, strict=True))[: len(schema.columns)]
            values = [_canonical_values(c, v) for c, v in zip(schema.wire_columns, texts, strict=True)]
            yield build_section(schema, values)


class FollowerReader(MysqlTargetReader):
    """Session that reads the application's tables in its former database, as capture reads them, for a comparison."""

    _target: MysqlDatabase

    def _access(self, subject: Subject) -> tuple[MysqlTable, MysqlAccess]:
        """Return a table of the application, and the statements that read its rows as capture does."""
        application, placed = self._target.application, self._place(subject)
        assert application is not None
        access, table = application.access(placed, subject.schema), application.find(placed.name)
        assert table is not None
        return table, access

    def _form_terms(self, subject: Subject, *, bare: bool = False) -> list[str]:
        placed, (table, _) = self._place(subject), self._access(subject)
        own = {c.name: c.type for c in table.columns}
        return [
            application_form_sql(c.type, table.declared[c.name], f"t.{quote(c.name)}", bare=bare)
            if c.name in own and own[c.name].kind is c.type.kind
            else form_sql(placed, c, bare=bare)
            for c in subject.schema.wire_columns
        ]

    def _key_parts(self, subject: Subject, keys: Seq[Key]) -> dict[str, str]:
        columns = [f"t.{quote(name)}" for name in subject.schema.key]
        return {"where": key_condition(subject, columns, keys)}

    def _read_rows(self, subject: Subject, where: str, limit: str) -> Iterator[TableChanges]:
        access = self._access(subject)[1]
        parts = {"columns": access.columns_sql, "table": self._place(subject).sql, "where": where, "limit": limit}
        with self._session.read_texts():
            for rows in self._session.stream(dialect_statement("verify", "rows", **parts), PIECE_ROWS):
                yield from access.build_sections(rows, bytes_max=_SECTION_BYTES)


def _is_shortened(column: Column) -> bool:
    """Return whether the compared text of a key may be shorter than the stored one: 1.5 for 1.50, or without blanks."""
    return style_of(column.type) in (FormStyle.NUMBER, FormStyle.PADDED)


def _write_text(form: Value) -> str:
    """Return a compared text as SQL."""
    assert isinstance(form, str)
    return literal(form)


def _key_value(column: Column, text: str) -> Value:
    """Return the value of a key column by its compared text."""
    return bytes.fromhex(text) if column.type.kind is Kind.BYTES else text


def _canonical_values(column: Column, values: Seq[Any]) -> Seq[Value]:
    """Return the values of a column as canonical text; only floats are not read in that form."""
    if column.type.kind is not Kind.FLOAT:
        return values
    return [None if v is None else float_text(float(v), length=column.type.length) for v in values]
