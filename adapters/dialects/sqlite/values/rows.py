"""The statements that read one captured table, and its rows as sections (dialects/rows.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from venus.adapters.dialects.rows import FillCursor, Row, TableAccess
from venus.adapters.dialects.sqlite.connection import quote
from venus.adapters.dialects.sqlite.dictionary.tables import (
    SqliteTable,
    identity_condition,
    log_key_columns,
    log_table_name,
)
from venus.adapters.dialects.sqlite.sql import statement
from venus.adapters.dialects.sqlite.values.canonical_text import SqliteValueError, SqliteValueRule, value_rule
from venus.codec.columns import Value
from venus.codec.layout import Layout
from venus.model import Kind, LogicalType

_UNBOUNDED = (Kind.TEXT, Kind.BYTES, Kind.JSON)
#: A column with a declared length up to this counts as narrow.
_NARROW_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteAccess(TableAccess):
    """Statements and rules that read one version of a table."""

    VALUE_ERROR = SqliteValueError

    rules: tuple[SqliteValueRule, ...]
    changes_sql: str
    fill_sql: str
    fill_next_sql: str
    fill_rest_sql: str  # the next rows, up to the end of the fill
    tail_sql: str  # the last rows in key order
    key_may_be_null: bool
    null_key_sql: str  # finds a row whose key is NULL

    def canonical_texts(self, column: int, values: Sequence[Any]) -> Sequence[Value]:
        return self.rules[column].canonical_texts(values)


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
