"""Constants as values of a column's type: their keys for comparison and their SQL. Pure.

Text is compared by code point, whatever the collation of the column is; timestamps with a time zone in UTC; numbers
exactly. A constant without an exact comparison is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from venus.model import Column, Kind, OwnType, TableSchema
from venus.predicates.syntax import Constant, ConstantForm, PredicateRefused
from venus.text.formatting import suggest_nearest

#: Oracle has no empty text: it is NULL there.
_WITHOUT_EMPTY_TEXT = ("oracle",)
_MOMENT = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)(?:[ T](?P<time>\d\d:\d\d(?::\d\d)?)(?:\.(?P<fraction>\d{1,9}))?"
    r"(?P<zone>Z|[-+]\d\d(?::?\d\d)?)?)?"
)
_TIME = re.compile(r"(?P<time>\d\d:\d\d(?::\d\d)?)(?:\.(?P<fraction>\d{1,9}))?")


class PredicateSort(Enum):
    """How values are compared."""

    NUMBER = "number"
    FLOAT = "floating-point number"
    TEXT = "text"
    PADDED = "text whose blanks at the end do not count"
    BYTES = "bytes"
    BOOL = "boolean"
    LABEL = "label of an enum"
    DATE = "date"
    TIME = "time of day"
    MOMENT = "date and time"
    MOMENT_TZ = "date and time with a zone"
    UUID = "UUID"


_SORTS = {
    Kind.INT: PredicateSort.NUMBER,
    Kind.DECIMAL: PredicateSort.NUMBER,
    Kind.TEXT: PredicateSort.TEXT,
    Kind.CHAR: PredicateSort.PADDED,
    Kind.BYTES: PredicateSort.BYTES,
    Kind.BOOL: PredicateSort.BOOL,
    Kind.DATE: PredicateSort.DATE,
    Kind.TIME: PredicateSort.TIME,
    Kind.TIMESTAMP: PredicateSort.MOMENT,
    Kind.TIMESTAMPTZ: PredicateSort.MOMENT_TZ,
    Kind.UUID: PredicateSort.UUID,
}
#: Sorts without an order, or without one that two databases share.
UNORDERED = (PredicateSort.BOOL, PredicateSort.LABEL)
_FORMS = {
    PredicateSort.NUMBER: (ConstantForm.NUMBER, "a number, like 100"),
    PredicateSort.FLOAT: (ConstantForm.NUMBER, "a number, like 0.5"),
    PredicateSort.BYTES: (ConstantForm.BYTES, "bytes, like x'00ff'"),
    PredicateSort.BOOL: (ConstantForm.BOOL, "true or false"),
}


@dataclass(frozen=True, slots=True)
class Value:
    """A constant of a column: `key` is its form for comparisons, `sql` its form in SQL."""

    key: Any
    sql: str


def own_type(schema: TableSchema, column: Column) -> OwnType | None:
    """Return the enum that is the column's type."""
    return next((t for t in schema.types if t.labels and t.sql_name == column.source_type), None)


def sort_of(schema: TableSchema, column: Column) -> PredicateSort | None:
    """Return how a column's values are compared; None = they cannot be compared exactly."""
    kind = column.type.kind
    if kind is Kind.FLOAT:
        return PredicateSort.FLOAT if column.type.length == 8 else None  # four bytes: databases widen them differently
    if kind is Kind.NATIVE and own_type(schema, column) is not None:
        return PredicateSort.LABEL
    return _SORTS.get(kind)


def value_of(constant: Constant, schema: TableSchema, column: Column, sort: PredicateSort) -> Value:
    """Return a constant as a value of the column. Raises PredicateRefused."""
    form, wanted = _FORMS.get(sort, (ConstantForm.TEXT, "text in single quotes"))
    if constant.form is not form:
        raise _refusal(constant, f"{column.name} is compared as {sort.value}: write {wanted}")
    match sort:
        case PredicateSort.NUMBER:
            return Value(constant.value, _number(constant))
        case PredicateSort.FLOAT:
            return Value(_float(constant), _number(constant))
        case PredicateSort.BYTES:
            return Value(constant.value, constant.sql)
        case PredicateSort.BOOL:
            return Value(b"t" if constant.value else b"f", constant.sql)
    text = str(constant.value)
    if "\0" in text:
        raise _refusal(constant, "no text has a zero character")
    key = _key(constant, text, schema, column, sort)
    zone = "+00" if sort is PredicateSort.MOMENT_TZ else ""
    return Value(key.encode(), "'" + key.replace("'", "''") + zone + "'")


def _key(constant: Constant, text: str, schema: TableSchema, column: Column, sort: PredicateSort) -> str:
    """Return the text by which a constant is compared. Raises PredicateRefused."""
    match sort:
        case PredicateSort.TEXT | PredicateSort.PADDED:
            if not text and schema.source_dialect in _WITHOUT_EMPTY_TEXT:
                raise _refusal(constant, "the source has no empty text, it is NULL there: write IS NULL")
            return text.rstrip(" ") if sort is PredicateSort.PADDED else text
        case PredicateSort.LABEL:
            return _label(constant, text, schema, column)
        case PredicateSort.UUID:
            try:
                return str(UUID(text))
            except ValueError:
                raise _refusal(constant, f"{text!r} is not a UUID") from None
        case PredicateSort.TIME:
            return _time(constant, text)
    return _moment(constant, text, sort)


def _refusal(constant: Constant, what: str) -> PredicateRefused:
    """Return the error for a constant, with its place in the text."""
    return PredicateRefused(f"character {constant.at}: {what}")


def _number(constant: Constant) -> str:
    """Return a number as it is written, without needless zeros."""
    assert isinstance(constant.value, Decimal)
    text = f"{constant.value:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text.removeprefix("+")


def _float(constant: Constant) -> float:
    """Return a number as a float of eight bytes. Raises PredicateRefused if it is too large."""
    assert isinstance(constant.value, Decimal)
    found = float(constant.value)
    if found in (float("inf"), float("-inf")):
        raise _refusal(constant, f"{constant.sql[:40]} does not fit eight bytes")
    return found


def _label(constant: Constant, text: str, schema: TableSchema, column: Column) -> str:
    """Return a label of an enum. Raises PredicateRefused if the enum does not have it."""
    found = own_type(schema, column)
    assert found is not None
    if text not in found.labels:
        raise _refusal(constant, f"{text!r} is not a label of {found.name}{suggest_nearest(text, found.labels)}")
    return text


def _time(constant: Constant, text: str) -> str:
    """Return the normal form of a time of day. Raises PredicateRefused."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise _refusal(constant, f"{text!r} is not a time of day, like '17:30:00'")
    return _check_moment(constant, "2000-01-01", found)[11:]


def _moment(constant: Constant, text: str, sort: PredicateSort) -> str:
    """Return the normal form of a date or moment. Raises PredicateRefused."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise _refusal(constant, f"{text!r} is not a date of the years 0001 to 9999, like '2026-01-31'")
    if sort is PredicateSort.DATE:
        if found["time"]:
            raise _refusal(constant, f"{text!r} has a time of day, which a date is not compared with")
        return _check_moment(constant, found["day"], found)[:10]
    if sort is PredicateSort.MOMENT:
        if found["zone"]:
            raise _refusal(constant, f"{text!r} has a time zone, and the column has none")
        return _check_moment(constant, found["day"], found)
    if not found["zone"]:
        raise _refusal(constant, f"{text!r} has no time zone, like '2026-01-31 00:00:00+00'")
    return _check_moment(constant, found["day"], found, found["zone"])


def _check_moment(constant: Constant, day: str, found: re.Match[str], zone: str = "") -> str:
    """Return a moment as values are normalised: seconds, no zeros at the end of the fraction, UTC."""
    time = found["time"] or "00:00:00"
    time += ":00" if len(time) == len("00:00") else ""
    try:
        moment = datetime.fromisoformat(f"{day}T{time}{zone}")
        moment = moment.astimezone(UTC) if zone else moment
    except (ValueError, OverflowError):
        raise _refusal(constant, f"{constant.value!r} is not an existing date or time") from None
    fraction = (found["fraction"] or "").rstrip("0")
    return f"{moment:%H:%M:%S}".join((f"{moment.year:04}-{moment:%m-%d} ", "")) + (f".{fraction}" if fraction else "")
