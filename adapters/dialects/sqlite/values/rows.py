"""Rows of one captured table as sections: SQL text, bounded reading, canonical text, packed bytes.

This step lies between the snapshot and the batches. Later steps see no values of SQLite.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from venus.adapters.dialects.fill_cursor import FillCursor
from venus.adapters.dialects.halted_tables import UnfitRow
from venus.adapters.dialects.row_limits import find_too_large
from venus.adapters.dialects.sqlite.connection import quote
from venus.adapters.dialects.sqlite.dictionary.tables import (
    SqliteTable,
    identity_condition,
    log_key_columns,
    log_table_name,
)
from venus.adapters.dialects.sqlite.sql import statement
from venus.adapters.dialects.sqlite.values.canonical_text import SqliteValueError, SqliteValueRule, value_rule
from venus.codec.changes import TableChanges
from venus.codec.columns import Value, from_columns, keys_from_columns
from venus.codec.layout import Layout
from venus.codec.packed import PackedBytes
from venus.model import Kind, LogicalType

Row = tuple[Any, ...]

#: Rows fetched at a time where a row may be large: a section exceeds its limit by at most this many rows.
PIECE_ROWS = 16
#: Assumed size of a value that has no length of its own.
VALUE_BYTES = 10
_UNBOUNDED = (Kind.TEXT, Kind.BYTES, Kind.JSON)
#: A column with a declared length up to this counts as narrow.
_NARROW_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteAccess:
    """Statements and rules that read one version of a table."""

    layout: Layout
    rules: tuple[SqliteValueRule, ...]
    changes_sql: str
    fill_sql: str
    fill_next_sql: str
    fill_rest_sql: str  # the next rows, up to the end of the fill
    tail_sql: str  # the last rows in key order
    key_may_be_null: bool
    null_key_sql: str  # finds a row whose key is NULL
    wide: tuple[int, ...]  # columns whose values may be large

    @property
    def key_count(self) -> int:
        """How many key columns a row begins with."""
        return self.layout.key_count


def build_access(found: SqliteTable) -> SqliteAccess:
    """Build the statements for a table as it is at present."""
    layout = Layout.of(found.schema)
    key = layout.columns[: layout.key_count]
    others = "".join(f"t.{quote(c.name)}, " for c in layout.columns[layout.key_count :])
    parts = {"table": f"main.{quote(found.schema.name)}", "columns": others}
    fill = {**parts, "table_key": ", ".join(f"t.{quote(c.name)}" for c in key), "rows": "?"}
    # SQLite compares a row of several columns through their index only if no collation is named.
    places = [_with_collation(f"t.{quote(k.name)}", "" if k.is_own else k.collation) for k in found.key]
    order, backwards = ", ".join(places), ", ".join(f"{column} DESC" for column in places)
    marks = ", ".join("?" * len(key))
    behind = f"({order}) > ({marks})"
    return SqliteAccess(
        layout=layout,
        rules=tuple(value_rule(c, in_key=n < layout.key_count) for n, c in enumerate(layout.columns)),
        changes_sql=_build_changes_sql(found, parts, is_there=f"t.{quote(key[0].name)} IS NOT NULL"),
        fill_sql=statement("cut", "fill", **fill, order=order, after=""),
        fill_next_sql=statement("cut", "fill", **fill, order=order, after=f"WHERE {behind}"),
        # a NULL in a key compares as neither greater nor less, and must still be found
        fill_rest_sql=statement("cut", "fill", **fill, order=order, after=f"WHERE {behind} AND ({behind}) IS NOT TRUE"),
        tail_sql=statement("cut", "fill", **fill, order=backwards, after=""),
        key_may_be_null=bool(found.key_may_be_null),
        null_key_sql=statement("cut", "null_key", **parts, null=" OR ".join(f"t.{quote(c.name)} IS NULL" for c in key)),
        wide=tuple(n for n, c in enumerate(layout.columns) if _is_wide(c.type)),
    )


def _build_changes_sql(found: SqliteTable, parts: Mapping[str, str], *, is_there: str) -> str:
    """Build the query that joins a table with its log: each key once, however often it was written."""
    logged = [f"k{n}" for n in range(1, len(found.key) + 1)]
    # 1 and 1.0 fall into one group unless the storage class is part of the grouping
    classes = [f"typeof({k})" for k, column in zip(logged, found.key, strict=True) if not column.exact]
    collated = [_with_collation(f"t.{quote(k.name)}", k.collation) for k in found.key]
    identical = [
        f"{at} = g.{k}" + ("" if c.exact else f" AND {identity_condition(f't.{quote(c.name)}', f'g.{k}', c)}")
        for at, k, c in zip(collated, logged, found.key, strict=True)
    ]
    return statement(
        "cut",
        "changes",
        **parts,
        log=quote(log_table_name(found.schema.table_id)),
        log_key=", ".join(f"g.{k}" for k in logged),
        is_there=is_there,
        grouped=log_key_columns(len(logged)),
        group_by=", ".join(logged + classes),
        same=" AND ".join(identical),
    )


def _is_wide(logical: LogicalType) -> bool:
    return logical.kind in _UNBOUNDED and not 0 < logical.length <= _NARROW_MAX


def _with_collation(column: str, collation: str) -> str:
    return f"{column} COLLATE {quote(collation)}" if collation else column


class SqliteRowStream:
    """The rows of a statement, taken in portions of bounded size."""

    def __init__(self, cursor: sqlite3.Cursor, access: SqliteAccess) -> None:
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
            weight += self._estimate_size(piece)
            rows += piece
        return rows

    def _estimate_size(self, piece: list[Row]) -> int:
        lengths = sum(len(v) for i in self._wide for row in piece if (v := row[i]).__class__ in (str, bytes))
        return lengths + len(piece) * self._row_bytes


def build_sections(rows: list[Row], access: SqliteAccess, *, bytes_max: int) -> Iterator[TableChanges]:
    """Convert rows (key, other columns, exists, only inserted) to sections within the limit, tombstones first.

    Raises UnfitRow.
    """
    gone = [row for row in rows if not row[-2]]
    there = [row for row in rows if row[-2]] if gone else rows
    if gone:
        yield from _divide_section(_build_section(access, gone, deleted=True), bytes_max)
    if there:
        yield from _divide_section(_build_section(access, there, deleted=False), bytes_max)


def _build_section(access: SqliteAccess, rows: list[Row], *, deleted: bool) -> TableChanges:
    columns = list(zip(*rows, strict=True))
    count = access.key_count if deleted else len(access.layout.columns)
    texts = _canonical_columns(access, columns[:count], rows)
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
        inserts_only=not deleted and all(columns[-1]),
    )


def _canonical_columns(access: SqliteAccess, columns: Sequence[Row], rows: list[Row]) -> list[Sequence[Value]]:
    texts = []
    for n, (rule, values) in enumerate(zip(access.rules, columns, strict=False)):
        try:
            texts.append(rule.canonical_texts(values))
        except SqliteValueError:
            _raise_unfit_row(access, n, values, rows)
            raise
    for n in range(access.key_count):
        if None in columns[n]:
            raise UnfitRow(f"column {access.layout.columns[n].name} is NULL in a key")
    return texts


def _raise_unfit_row(access: SqliteAccess, column: int, values: Row, rows: list[Row]) -> None:
    for value, row in zip(values, rows, strict=True):
        try:
            access.rules[column].canonical_text(value)
        except SqliteValueError as e:
            name = access.layout.columns[column].name
            raise UnfitRow(f"row {describe_key(access, row)}: column {name}: {e}") from e


def describe_key(access: SqliteAccess, row: Row) -> str:
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
    """Return the key of a row, with the storage class of each value, for a cursor."""
    return [_encode_tag(value) for value in row[:key_count]]


def _encode_tag(value: Any) -> list[Any]:
    if isinstance(value, bytes):
        return ["blob", value.hex()]
    return ["real", value.hex()] if isinstance(value, float) else ["as it is", value]


def fill_statement(access: SqliteAccess, cursor: bytes) -> tuple[str, list[Any]]:
    """Return the statement that reads the next rows, and its parameters without the number of rows."""
    if not cursor:
        return access.fill_sql, []
    place = FillCursor.parse(cursor)
    bounds = [_decode_tag(tag, value) for tag, value in [*place.after, *(place.end or [])]]
    return access.fill_next_sql if place.end is None else access.fill_rest_sql, bounds


def _decode_tag(tag: str, value: Any) -> Any:
    if tag == "blob":
        return bytes.fromhex(value)
    return float.fromhex(value) if tag == "real" else value
