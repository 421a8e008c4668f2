"""Rows of one captured table as sections: SQL text, bounded reading, canonical text, packed bytes.

This step lies between the snapshot and the batches. Later steps see no values of MySQL.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
from pymysql.cursors import SSCursor

from venus.adapters.dialects.fill_cursor import FillCursor
from venus.adapters.dialects.halted_tables import UnfitRow
from venus.adapters.dialects.mysql.dictionary.tables import MysqlTable
from venus.adapters.dialects.mysql.dictionary.types import MysqlDeclaredType, read_expression
from venus.adapters.dialects.mysql.names import literal, log_key_columns, log_table_name, quote
from venus.adapters.dialects.mysql.sql import statement
from venus.adapters.dialects.mysql.values.canonical_text import MysqlValueError, MysqlValueRule, value_rule
from venus.adapters.dialects.row_limits import find_too_large
from venus.codec.changes import TableChanges
from venus.codec.columns import Value, from_columns, keys_from_columns
from venus.codec.layout import Layout
from venus.codec.packed import PackedBytes
from venus.model import Kind, TableSchema

Row = tuple[Any, ...]

#: Rows fetched at a time where a row may be large: a section exceeds its limit by at most this many rows.
PIECE_ROWS = 16
#: Assumed size of a value that has no length of its own.
VALUE_BYTES = 10
_UNBOUNDED = (Kind.TEXT, Kind.BYTES, Kind.JSON)
_AS_NUMBER = {"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "year"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlAccess:
    """Statements and rules that read one version of a table."""

    layout: Layout
    rules: tuple[MysqlValueRule | None, ...]
    declared: tuple[MysqlDeclaredType, ...]  # of the key's columns
    table_sql: str
    changes_sql: str
    columns_sql: str
    order: tuple[str, ...]  # the terms by which the rows of a fill are ordered
    wide: tuple[int, ...]  # columns whose values may be large

    @property
    def key_count(self) -> int:
        """How many key columns a row begins with."""
        return self.layout.key_count

    def fill_sql(self, cursor: bytes, rows: int) -> str:
        """Return the statement that reads the next rows in key order."""
        return statement(
            "cut", "fill", columns=self.columns_sql, table=self.table_sql, after=self._range_condition(cursor),
            order=", ".join(self.order), rows=str(rows),
        )  # fmt: skip

    @property
    def last_sql(self) -> str:
        """The statement that reads the row with the greatest key."""
        return statement(
            "cut", "fill", columns=self.columns_sql, table=self.table_sql, after="",
            order=", ".join(f"{column} DESC" for column in self.order), rows="1",
        )  # fmt: skip

    def _range_condition(self, cursor: bytes) -> str:
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
    """Return the term to order by. An ENUM sorts by its number but compares by its text."""
    return f"CONCAT({column})" if declared.data_type in ("enum", "set") else column


class MysqlRowStream:
    """The rows of a statement, taken in portions of bounded size."""

    def __init__(self, cursor: SSCursor, access: MysqlAccess) -> None:
        self._cursor = cursor
        self._wide = access.wide
        self._row_bytes = VALUE_BYTES * len(access.layout.columns)
        self.ended = False

    def take(self, *, rows_max: int, bytes_max: int) -> list[Row]:
        """Return the next rows: at least one, unless the statement has ended."""
        rows: list[Row] = []
        weight = 0
        while not self.ended and len(rows) < rows_max and weight < bytes_max:
            fitting = (bytes_max - weight) // self._row_bytes + 1
            wanted = min(rows_max - len(rows), PIECE_ROWS if self._wide else fitting)
            piece = self._cursor.fetchmany(wanted)
            self.ended = len(piece) < wanted
            weight += estimate_size(piece, self._wide, self._row_bytes)
            rows += piece
        return rows


def estimate_size(rows: Seq[Row], wide: Seq[int], row_bytes: int) -> int:
    """Return the approximate size of rows in bytes."""
    lengths = sum(len(v) for i in wide for row in rows if (v := row[i]) is not None)
    return lengths + len(rows) * row_bytes


def build_sections(rows: list[Row], access: MysqlAccess, *, bytes_max: int) -> Iterator[TableChanges]:
    """Convert rows (key, other columns, exists, only inserted) to sections within the limit, tombstones first.

    Raises UnfitRow.
    """
    gone = [row for row in rows if row[-2] == "0"]
    there = [row for row in rows if row[-2] != "0"] if gone else rows
    if gone:
        yield from _divide_section(_build_section(access, gone, deleted=True), bytes_max)
    if there:
        yield from _divide_section(_build_section(access, there, deleted=False), bytes_max)


def _build_section(access: MysqlAccess, rows: list[Row], *, deleted: bool) -> TableChanges:
    columns = list(zip(*rows, strict=True))
    texts = _canonical_columns(access, columns[: access.key_count if deleted else len(access.layout.columns)], rows)
    if deleted:
        record_ids = keys_from_columns(texts, access.layout)
        packed = PackedBytes(b"", np.zeros(len(rows), dtype=np.uint32))
    else:
        record_ids, packed = from_columns(texts, access.layout)
        if found := find_too_large(record_ids, packed):
            raise UnfitRow(f"row {describe_key(access, rows[found[0]])}: {found[1]}")
    return TableChanges(
        table_id=access.layout.schema.table_id,
        schema_version=access.layout.schema.version,
        record_ids=record_ids,
        rows=packed,
        is_deleted=np.full(len(rows), deleted, dtype=np.bool_),
        inserts_only=not deleted and all(fresh == "1" for fresh in columns[-1]),
    )


def _canonical_columns(access: MysqlAccess, columns: Seq[Row], rows: list[Row]) -> list[Seq[Value]]:
    texts: list[Seq[Value]] = []
    for n, (rule, values) in enumerate(zip(access.rules, columns, strict=False)):
        try:
            texts.append(values if rule is None else rule(values))
        except MysqlValueError:
            _raise_unfit_row(access, n, rule, values, rows)
            raise
    for n in range(access.key_count):
        if None in texts[n]:
            raise UnfitRow(f"column {access.layout.columns[n].name} is not a valid date, which a key requires")
    return texts


def _raise_unfit_row(
    access: MysqlAccess, column: int, rule: MysqlValueRule | None, values: Row, rows: list[Row]
) -> None:
    for value, row in zip(values, rows, strict=True):
        try:
            if rule is not None:
                rule([value])
        except MysqlValueError as e:
            name = access.layout.columns[column].name
            raise UnfitRow(f"row {describe_key(access, row)}: column {name}: {e}") from e


def describe_key(access: MysqlAccess, row: Row) -> str:
    """Return the key of a row as text for messages."""
    names = (c.name for c in access.layout.columns)
    return ", ".join(f"{name}={value!r}" for name, value in zip(names, row[: access.key_count], strict=False))


def _divide_section(section: TableChanges, bytes_max: int) -> Iterator[TableChanges]:
    """Divide a section that is larger than estimated into sections within the limit. A single row stays whole."""
    if section.nbytes <= bytes_max or section.count == 1:
        yield section
        return
    ids = np.concatenate(([0], np.cumsum(section.record_ids.sizes, dtype=np.int64)))
    rows = np.concatenate(([0], np.cumsum(section.rows.sizes, dtype=np.int64)))
    weight = ids + rows + 9 * np.arange(len(ids)) + 32
    start = 0
    while start < section.count:
        end = max(start + 1, int(np.searchsorted(weight, weight[start] + bytes_max - 32, side="right")) - 1)
        yield TableChanges(
            table_id=section.table_id,
            schema_version=section.schema_version,
            record_ids=_slice_packed(section.record_ids, ids, start, end),
            rows=_slice_packed(section.rows, rows, start, end),
            is_deleted=section.is_deleted[start:end],
            inserts_only=section.inserts_only,
        )
        start = end


def _slice_packed(packed: PackedBytes, offsets: Any, start: int, end: int) -> PackedBytes:
    return PackedBytes(packed.data[offsets[start] : offsets[end]], packed.sizes[start:end])


def cursor_key(row: Row, key_count: int) -> list[Any]:
    """Return the key of a row as MySQL wrote it, for a cursor."""
    return [[v.hex()] if isinstance(v, bytes) else v for v in row[:key_count]]


def _decode_tag(value: str | list[str], declared: MysqlDeclaredType) -> str:
    """Return a key's value as SQL. Numbers have no quotes, because MySQL compares text and numbers as doubles."""
    if isinstance(value, list):
        return f"X'{value[0]}'"
    if declared.data_type in _AS_NUMBER:
        return value
    return f"b'{value}'" if declared.data_type == "bit" else literal(value)
