"""Rows of a captured table at SQLite: the statements that read it, canonical text, sections (dialects/rows.py).

SQLite stores any value in any column, so every value is checked. A value that the column's logical type cannot hold
exactly is never altered; it raises `SqliteValueError`. The canonical text is that of protos/venus/wire/change.proto.
Rules for values with several interpretations:

- a REAL in a DECIMAL(p, s) column is the decimal that SQLite itself prints for it, 15 digits: 0.1 + 0.2 is 0.30;
- a BOOLEAN is 0 or 1, or the text t, f, true, false;
- dates and times are ISO texts, as SQLite's own date functions read them: `T` or a blank between date and time, no
  zone means UTC, a zone is applied. Numbers are refused as dates: seconds, milliseconds and Julian days look alike;
- a UUID is text, with hyphens or without, or 16 bytes.

A key accepts only one spelling of each value, because two rows that SQLite distinguishes must not become one. A date
and time in a key must have no zone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from math import isfinite
from typing import Any
from uuid import UUID

from venus.adapters.dialects.rows import FillCursor, Row, TableAccess
from venus.adapters.dialects.sqlite.connection import quote
from venus.adapters.dialects.sqlite.dictionary.tables import (
    SqliteTable,
    identity_condition,
    log_key_columns,
    log_table_name,
)
from venus.adapters.dialects.sqlite.sql import statement
from venus.codec.columns import Value
from venus.codec.row_bytes import Layout
from venus.errors import UnsupportedType
from venus.model import Column, Kind, LogicalType

Stored = int | float | str | bytes | None
Text = str | bytes

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_CLOCK = r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?"
_TIME = re.compile(_CLOCK, re.ASCII)
_MOMENT = re.compile(rf"(\d{{4}})-(\d\d)-(\d\d)(?:[ T]{_CLOCK})?(?: ?(Z|[+-]\d\d:\d\d))?", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_HEX32 = re.compile(r"[0-9a-fA-F]{32}")
#: Patterns of texts that are canonical already, one in each line: one match nearly always accepts a whole column.
_LEAP_YEAR = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_PLAIN_DATE = (
    r"(?!0000)(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    rf"|02-(?:0[1-9]|1\d|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_PLAIN_CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{0,5}[1-9])?"
_DATES, _CLOCKS, _MOMENTS = (
    re.compile(rf"(?:{line}\n)++", re.ASCII) for line in (_PLAIN_DATE, _PLAIN_CLOCK, f"{_PLAIN_DATE} {_PLAIN_CLOCK}")
)
_MICROSECOND_DIGITS = 6
#: Digits that SQLite's own conversion from REAL to text keeps.
_REAL_DIGITS = 15
#: PostgreSQL writes numbers from this one up with an exponent, Python from 1e16.
_EXPONENT_FROM = 1e15


class SqliteValueError(ValueError):
    """A stored value that the column's logical type cannot hold exactly."""


@dataclass(frozen=True, slots=True)
class SqliteValueRule:
    """Conversion of one column's values: `fast` for the expected storage classes, `other` for the rest."""

    expected: frozenset[type]
    fast: Callable[[Any], Text] | None  # None: the value is canonical already
    other: Callable[[Any], Text]
    plain: re.Pattern[str] | None = None  # lines that need no change

    def canonical_text(self, value: Stored) -> Text | None:
        """Return the canonical text of one value."""
        if value is None:
            return None
        if type(value) in self.expected:
            return value if self.fast is None else self.fast(value)  # type: ignore[return-value]
        return self.other(value)

    def canonical_texts(self, values: Sequence[Stored]) -> Sequence[Text | None]:
        """Return the canonical texts of many values. Raises SqliteValueError for a value without canonical text."""
        classes = set(map(type, values))
        nulls = type(None) in classes
        if not classes - {type(None)} <= self.expected:
            return [self.canonical_text(v) for v in values]
        if self.fast is None:
            return values  # type: ignore[return-value]
        if self.plain is not None and _are_lines(values, self.plain):
            return values  # type: ignore[return-value]
        fast = self.fast
        return [None if v is None else fast(v) for v in values] if nulls else list(map(fast, values))


def _are_lines(values: Sequence[Stored], pattern: re.Pattern[str]) -> bool:
    """Return whether every value matches the pattern; they are tested together, as lines of one text."""
    present = [v for v in values if v is not None]
    lines = "\n".join(present) + "\n"  # type: ignore[arg-type]
    return lines.count("\n") == len(present) and pattern.fullmatch(lines) is not None


def value_rule(column: Column, *, in_key: bool) -> SqliteValueRule:
    """Return the conversion of a column's values."""
    make = _RULES.get(column.type.kind)
    if make is None:
        raise UnsupportedType(f"column {column.name}: no rule for {column.type.kind.name} in SQLite")
    return make(column.type, in_key)


def _refuse(expected: str, value: Stored) -> Text:
    storage_class = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}[type(value)]
    raise SqliteValueError(f"{storage_class} {_format_value(value)} is no {expected}")


def _format_value(value: Stored) -> str:
    text = f"x'{value[:16].hex()}'" if isinstance(value, bytes) else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _make_rule(
    expected: type | tuple[type, ...],
    fast: Callable[[Any], Text] | None,
    other: Any,
    plain: re.Pattern[str] | None = None,
) -> SqliteValueRule:
    return SqliteValueRule(frozenset(expected if isinstance(expected, tuple) else (expected,)), fast, other, plain)


def _int_rule(logical: LogicalType, in_key: bool) -> SqliteValueRule:
    bits = 8 * (logical.length or 8)
    refuse = partial(_refuse, f"{bits}-bit integer")
    if bits == 64:
        return _make_rule(int, str, refuse)
    limit = 1 << (bits - 1)
    return _make_rule(int, lambda v: str(v) if -limit <= v < limit else refuse(v), refuse)


def float_text(value: float) -> str:
    """Return the shortest text that reads back equal, in PostgreSQL's notation."""
    text = repr(value)
    if text.endswith("inf"):
        return "Infinity" if value > 0 else "-Infinity"
    text = text.removesuffix(".0")
    if "e" not in text and abs(value) >= _EXPONENT_FROM:
        digits = text.lstrip("-").replace(".", "")
        fraction = digits[1:].rstrip("0")
        text = f"{'-' if value < 0 else ''}{digits[0]}{'.' if fraction else ''}{fraction}e+15"
    return text


def _float_rule(logical: LogicalType, in_key: bool) -> SqliteValueRule:
    def to_float_text(value: Stored) -> Text:
        exact = isinstance(value, int) and abs(value) <= 1 << 53
        return float_text(float(value)) if exact else _refuse("floating-point number", value)  # type: ignore[arg-type]

    return _make_rule(float, float_text, to_float_text)


def _plain_decimal(value: float) -> Text:
    """Return the text of a number without a declared scale: all of its digits, without an exponent."""
    if isinstance(value, int):
        return str(value)
    text = float_text(value)
    return format(Decimal(text), "f") if "e" in text else text


def _printed_decimal(value: float) -> Decimal:
    return Decimal(f"{value:.{_REAL_DIGITS}g}")


def _decimal_rule(logical: LogicalType, in_key: bool) -> SqliteValueRule:
    expected = f"DECIMAL({logical.precision},{logical.scale})" if logical.precision else "number"
    refuse = partial(_refuse, expected)
    if not logical.precision:
        return _make_rule((int, float), _plain_decimal, refuse)
    scale, limit = logical.scale, 10 ** (logical.precision - logical.scale)
    zeros = "." + "0" * scale if scale else ""

    def format_scaled(value: float) -> Text:
        if isinstance(value, int):
            return f"{value}{zeros}" if -limit < value < limit else refuse(value)
        text = f"{value:.{scale}f}"
        fits = isfinite(value) and abs(value) < limit
        # If the exact digits do not end at the scale, the digits that SQLite prints must.
        if fits and (float(text) == value or (not in_key and _printed_decimal(value) == Decimal(text))):
            return text
        return refuse(value)

    return _make_rule((int, float), format_scaled, refuse)


def _text_rule(logical: LogicalType, in_key: bool) -> SqliteValueRule:
    refuse = partial(_refuse, f"text of at most {logical.length} characters" if logical.length else "text")
    if not logical.length:
        return _make_rule(str, None, refuse)
    length = logical.length
    return _make_rule(str, lambda v: v if len(v) <= length else refuse(v), refuse)


def _bytes_rule(logical: LogicalType, in_key: bool) -> SqliteValueRule:
    return _make_rule(bytes, None, partial(_refuse, "blob"))


def _bool_rule(logical: LogicalType, in_key: bool) -> SqliteValueRule:
    texts = {"t": "t", "true": "t", "f": "f", "false": "f"}
    refuse = partial(_refuse, "boolean")

    def to_bool_text(value: Stored) -> Text:
        boolean = texts.get(value.lower()) if isinstance(value, str) and not in_key else None
        return boolean or refuse(value)

    return _make_rule(int, lambda v: "ft"[v] if v in (0, 1) else refuse(v), to_bool_text)


def _date_rule(logical: LogicalType, in_key: bool) -> SqliteValueRule:
    refuse = partial(_refuse, "date (YYYY-MM-DD)")

    def to_date_text(value: str) -> Text:
        try:
            return date.fromisoformat(value).isoformat() if _DATE.fullmatch(value) else refuse(value)
        except SqliteValueError:
            raise
        except ValueError:
            return refuse(value)

    return _make_rule(str, to_date_text, refuse, _DATES)


def _parse_fraction(digits: str | None) -> int | None:
    """Return the microseconds, None if there are finer digits."""
    digits = (digits or "").rstrip("0")
    return int(digits.ljust(_MICROSECOND_DIGITS, "0")) if len(digits) <= _MICROSECOND_DIGITS else None


def _clock_text(hour: str, minute: str, second: str | None, digits: str | None) -> str | None:
    micros = _parse_fraction(digits)
    if micros is None or int(hour) > 23 or int(minute) > 59 or int(second or 0) > 59:
        return None
    fraction = f".{micros:06}".rstrip("0") if micros else ""
    return f"{hour}:{minute}:{second or '00'}{fraction}"


def _time_rule(logical: LogicalType, in_key: bool) -> SqliteValueRule:
    refuse = partial(_refuse, "time (HH:MM:SS)")

    def to_time_text(value: str) -> Text:
        match = _TIME.fullmatch(value)
        written = _clock_text(*match.groups()) if match else None
        return written if written and (written == value or not in_key) else refuse(value)

    return _make_rule(str, to_time_text, refuse, _CLOCKS)


def _parse_moment(value: str) -> str | None:
    """Return a date and time in UTC, None if the text is not one."""
    match = _MOMENT.fullmatch(value)
    if match is None:
        return None
    year, month, day, hour, minute, second, digits, zone = match.groups()
    micros = _parse_fraction(digits)
    if micros is None:
        return None
    try:
        moment = datetime(int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), micros)
        if zone not in (None, "Z"):
            offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6]))
            moment = moment - offset if zone[0] == "+" else moment + offset
    except (ValueError, OverflowError):
        return None
    text = moment.isoformat(" ")
    return text.rstrip("0") if moment.microsecond else text


def _moment_rule(logical: LogicalType, in_key: bool, *, zone: str) -> SqliteValueRule:
    refuse = partial(
        _refuse, f"date and time (YYYY-MM-DD HH:MM:SS{', in UTC without a zone' if in_key and zone else ''})"
    )

    def to_moment_text(value: str) -> Text:
        written = _parse_moment(value)
        if written is None or (in_key and written != value):
            return refuse(value)
        return written + zone

    return _make_rule(str, to_moment_text, refuse, None if zone else _MOMENTS)


def _uuid_rule(logical: LogicalType, in_key: bool) -> SqliteValueRule:
    refuse = partial(_refuse, "UUID")

    def normalise_uuid(value: str) -> Text:
        if _UUID.fullmatch(value):
            return value
        if in_key or not (_UUID.fullmatch(value.lower()) or _HEX32.fullmatch(value)):
            return refuse(value)
        return str(UUID(value))

    def to_uuid_text(value: Stored) -> Text:
        whole = isinstance(value, bytes) and len(value) == 16 and not in_key
        return str(UUID(bytes=value)) if whole else refuse(value)  # type: ignore[arg-type]

    return _make_rule(str, normalise_uuid, to_uuid_text)


def _json_rule(logical: LogicalType, in_key: bool) -> SqliteValueRule:
    def to_json_text(value: Stored) -> Text:
        # NUMERIC affinity converts a text that is a number
        if isinstance(value, int):
            return str(value)
        return repr(value) if isinstance(value, float) and abs(value) != float("inf") else _refuse("JSON text", value)

    return _make_rule(str, None, to_json_text)


_RULES: dict[Kind, Callable[[LogicalType, bool], SqliteValueRule]] = {
    Kind.INT: _int_rule,
    Kind.FLOAT: _float_rule,
    Kind.DECIMAL: _decimal_rule,
    Kind.TEXT: _text_rule,
    Kind.BYTES: _bytes_rule,
    Kind.BOOL: _bool_rule,
    Kind.DATE: _date_rule,
    Kind.TIME: _time_rule,
    Kind.TIMESTAMP: partial(_moment_rule, zone=""),
    Kind.TIMESTAMPTZ: partial(_moment_rule, zone="+00"),
    Kind.UUID: _uuid_rule,
    Kind.JSON: _json_rule,
}


_UNBOUNDED = (Kind.TEXT, Kind.BYTES, Kind.JSON)
#: A column with a declared length of at most this counts as narrow.
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
    """Return whether values of this type may be large."""
    return logical.kind in _UNBOUNDED and not 0 < logical.length <= _NARROW_MAX


def _with_collation(column: str, collation: str) -> str:
    return f"{column} COLLATE {quote(collation)}" if collation else column


def cursor_key(row: Row, key_count: int) -> list[Any]:
    """Return the key of a row, with the storage class of each value, for a cursor."""
    return [_encode_tag(value) for value in row[:key_count]]


def _encode_tag(value: Any) -> list[Any]:
    """Return a key value for a cursor in JSON, with a tag that tells how to decode it."""
    if isinstance(value, bytes):
        return ["blob", value.hex()]
    return ["real", value.hex()] if isinstance(value, float) else ["as it is", value]


def fill_statement(access: SqliteAccess, cursor: bytes) -> tuple[str, list[Any]]:
    """Return the statement that reads the next rows of a fill, and its parameters except for the number of rows."""
    if not cursor:
        return access.fill_sql, []
    place = FillCursor.parse(cursor)
    bounds = [_decode_tag(tag, value) for tag, value in [*place.after, *(place.end or [])]]
    return access.fill_next_sql if place.end is None else access.fill_rest_sql, bounds


def _decode_tag(tag: str, value: Any) -> Any:
    if tag == "blob":
        return bytes.fromhex(value)
    return float.fromhex(value) if tag == "real" else value
