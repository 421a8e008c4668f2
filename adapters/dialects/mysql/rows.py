"""Rows of a captured table at MySQL: the statements that read it, canonical text, sections (dialects/rows.py).

The canonical text is that of protos/venus/wire/change.proto. A value without a canonical form (a zero date, 31
February under ALLOW_INVALID_DATES) is never changed silently: it halts its table, or becomes NULL if the source's URL
requests that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from typing import Any

from venus.adapters.dialects.canonical_text import float_text
from venus.adapters.dialects.mysql.dictionary.tables import MysqlTable
from venus.adapters.dialects.mysql.dictionary.types import NO_TEXT, MysqlDeclaredType, read_expression
from venus.adapters.dialects.mysql.sql import literal, log_key_columns, log_table_name, quote, statement
from venus.adapters.dialects.rows import FillCursor, Row, TableAccess
from venus.codec.columns import Value
from venus.codec.row_bytes import Layout
from venus.model import Column, Kind, TableSchema

MysqlValueRule = Callable[[Seq[Value]], Seq[Value]]

_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)(.*)", re.DOTALL)


class MysqlValueError(ValueError):
    """A value that has no canonical form."""


def value_rule(column: Column, declared: MysqlDeclaredType, *, zero_dates_null: bool) -> MysqlValueRule | None:
    """Return the conversion of a column's values; None if the server's texts are canonical."""
    kind = column.type.kind
    if declared.may_be_no_text:
        return partial(_check_texts, charset=declared.charset)
    if kind is Kind.FLOAT:
        return partial(_convert_each, partial(_convert_float, length=column.type.length))
    if kind is Kind.BOOL:
        return partial(_convert_each, lambda v: "t" if v == "1" else "f")
    if kind is Kind.INTERVAL:
        return partial(_convert_each, _trim_fraction) if column.type.precision else None
    if kind in (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        zone = "+00" if kind is Kind.TIMESTAMPTZ else ""
        fraction = bool(column.type.precision) and kind is not Kind.DATE
        return partial(_convert_dates, is_date=kind is Kind.DATE, fraction=fraction, zone=zone, null=zero_dates_null)
    return None


def _convert_each(write: Callable[[str], str], values: Seq[Value]) -> list[Value]:
    """Convert the values that are not NULL with `write`."""
    return [v if v is None else write(v) for v in values]  # type: ignore[arg-type]


def _check_texts(values: Seq[Value], *, charset: str) -> Seq[Value]:
    """Return the texts. Raises MysqlValueError if bytes of one are not text in its character set."""
    for value in values:
        if value is not None and value.startswith(NO_TEXT):  # type: ignore[arg-type]
            raise MysqlValueError(f"its bytes {value[1:]!r} are not text in {charset}")
    return values


def _convert_float(text: str, *, length: int) -> str:
    return float_text(float(text), length=length)


def _trim_fraction(text: str) -> str:
    """Remove trailing zeros of a fraction."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def _convert_dates(values: Seq[Value], *, is_date: bool, fraction: bool, zone: str, null: bool) -> Seq[Value]:
    """Convert a column of dates. If all dates are valid, one check of the whole column is enough."""
    parse: Callable[[str], object] = date.fromisoformat if is_date else datetime.fromisoformat
    try:
        for value in values:
            if value is not None:
                parse(value)  # type: ignore[arg-type]
    except ValueError:
        return [_convert_date(v, parse, fraction=fraction, zone=zone, null=null) for v in values]  # type: ignore[arg-type]
    if not fraction and not zone:
        return values
    return _convert_each(lambda v: (_trim_fraction(v) if fraction else v) + zone, values)


def _convert_date(
    value: str | None, parse: Callable[[str], object], *, fraction: bool, zone: str, null: bool
) -> str | None:
    """Convert one date. An invalid one raises MysqlValueError, or becomes NULL if `null`."""
    if value is None:
        return None
    text, era = value, ""
    match = _DATE.fullmatch(value)
    if match and match[1] == "0000" and match[2] != "00" and match[3] != "00":
        text, era = f"0001-{match[2]}-{match[3]}{match[4]}", " BC"  # MySQL's calendar has a year 0
    try:
        parse(text)
    except ValueError:
        if null:
            return None
        raise MysqlValueError(f"{value} is not a calendar date") from None
    return (_trim_fraction(text) if fraction else text) + zone + era


_UNBOUNDED = (Kind.TEXT, Kind.BYTES, Kind.JSON)
_AS_NUMBER = {"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "year"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlAccess(TableAccess):
    """The statements that read one version of a table, and the rules that convert its values."""

    GONE, FRESH = "0", "1"
    VALUE_ERROR = MysqlValueError
    NULL_IN_KEY = "is not a valid date, which a key requires"

    rules: tuple[MysqlValueRule | None, ...]
    declared: tuple[MysqlDeclaredType, ...]  # of the key's columns
    table_sql: str
    changes_sql: str
    columns_sql: str
    order: tuple[str, ...]  # the terms by which the rows of a fill are ordered

    def canonical_texts(self, column: int, values: Seq[Any]) -> Seq[Value]:
        rule = self.rules[column]
        return values if rule is None else rule(values)

    def fill_sql(self, cursor: bytes, rows: int) -> str:
        """Return the statement of a fill that reads the next rows after a cursor, in key order."""
        return statement(
            "cut",
            "fill",
            columns=self.columns_sql,
            table=self.table_sql,
            after=self._range_condition(cursor),
            order=", ".join(self.order),
            rows=str(rows),
        )

    @property
    def last_sql(self) -> str:
        """The statement that reads the row with the greatest key."""
        return statement(
            "cut",
            "fill",
            columns=self.columns_sql,
            table=self.table_sql,
            after="",
            order=", ".join(f"{column} DESC" for column in self.order),
            rows="1",
        )

    def _range_condition(self, cursor: bytes) -> str:
        """Return the WHERE clause for the keys after a cursor, up to the end of the fill."""
        if not cursor:
            return ""
        place = FillCursor.parse(cursor)
        through = "" if place.end is None else f" AND ({self._key_comparison(place.end, '<=')})"
        return f" WHERE ({self._key_comparison(place.after, '>')}){through}"

    def _key_comparison(self, key: list[Any], operator: str) -> str:
        """Return a comparison of the key, column by column: MySQL uses no index range for a comparison of rows."""
        values = [_decode_tag(v, d) for v, d in zip(key, self.declared, strict=True)]
        cases = []
        for i, value in enumerate(values):
            equal = [f"{self.order[j]} = {values[j]}" for j in range(i)]
            # only the last column may also be equal
            compares = operator if i == len(values) - 1 else operator[0]
            cases.append(" AND ".join([*equal, f"{self.order[i]} {compares} {value}"]))
        return " OR ".join(f"({case})" for case in cases)


def build_access(table: MysqlTable, schema: TableSchema, *, zero_dates_null: bool) -> MysqlAccess:
    """Build the statements for a table as it is at present."""
    layout = Layout.of(schema)
    key = layout.columns[: layout.key_count]
    logged = log_key_columns(len(key))
    declared = tuple(table.declared[c.name] for c in key)
    exact = [not d.is_text for d in declared]
    expressions = [f"{read_expression(table.declared[c.name], f't.{quote(c.name)}')}, " for c in layout.columns]
    same = [
        f"t.{quote(c.name)} = g.{k}" + ("" if e else f" AND CAST(t.{quote(c.name)} AS BINARY) = CAST(g.{k} AS BINARY)")
        for c, k, e in zip(key, logged, exact, strict=True)
    ]
    is_there = f"t.{quote(key[0].name)} IS NOT NULL"
    return MysqlAccess(
        layout=layout,
        rules=tuple(value_rule(c, table.declared[c.name], zero_dates_null=zero_dates_null) for c in layout.columns),
        declared=declared,
        table_sql=table.sql,
        columns_sql="".join(expressions),
        changes_sql=statement(
            "cut",
            "changes",
            log_key=", ".join(read_expression(d, f"g.{k}") for d, k in zip(declared, logged, strict=True)),
            columns="".join(expressions[layout.key_count :]),
            is_there=is_there,
            keys=", ".join(k if e else f"MIN({k}) AS {k}" for k, e in zip(logged, exact, strict=True)),
            group_by=", ".join(k if e else f"CAST({k} AS BINARY)" for k, e in zip(logged, exact, strict=True)),
            log=log_table_name(schema.table_id),
            table=table.sql,
            same=" AND ".join(same),
            # deleted rows come first where keys may be equal without being identical
            order="" if all(exact) else f" ORDER BY {is_there}",
        ),
        order=tuple(_order_term(d, f"t.{quote(c.name)}") for d, c in zip(declared, key, strict=True)),
        wide=tuple(n for n, c in enumerate(layout.columns) if c.type.kind in _UNBOUNDED),
    )


def _order_term(declared: MysqlDeclaredType, column: str) -> str:
    """Return the ORDER BY term of a key column. An ENUM would sort by its number but compare by its text."""
    return f"CONCAT({column})" if declared.data_type in ("enum", "set") else column


def cursor_key(row: Row, key_count: int) -> list[Any]:
    """Return the key of a row as MySQL wrote it, for a cursor."""
    return [[v.hex()] if isinstance(v, bytes) else v for v in row[:key_count]]


def _decode_tag(value: str | list[str], declared: MysqlDeclaredType) -> str:
    """Return a value of a cursor as SQL. Numbers have no quotes: MySQL compares text and numbers as doubles."""
    if isinstance(value, list):
        return f"X'{value[0]}'"
    if declared.data_type in _AS_NUMBER:
        return value
    return f"b'{value}'" if declared.data_type == "bit" else literal(value)
