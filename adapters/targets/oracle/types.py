"""The types of an Oracle target: how each is declared, bound and read, without loss (VENUS 3.4). Pure.

`RULES` is the table from which code, `venus check` and the reference page are made. Oracle silently rounds fractions,
and stores NULL for an empty text. So VENUS checks a value against its column before it binds the value, and an unfit
value waits in quarantine. An empty text or binary value in a LOB column is written as an empty LOB, which is not NULL.

The declared types are those of Oracle 11.2, which exist in every later version, so 23ai's BOOLEAN is not used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Context, Decimal
from functools import partial
from math import isfinite
from typing import Any

from venus.adapters.targets.relational.place import UnfitValue
from venus.model import Column, Kind, LogicalType, TableSchema

#: The longest VARCHAR2 and RAW of a database with the usual MAX_STRING_SIZE, and the keys of an index of 8 KB blocks.
TEXT_BYTES_MAX, RAW_BYTES_MAX, KEY_BYTES_MAX = 4000, 2000, 6000
_CHARACTER_BYTES = 4
#: The digits that every NUMBER keeps, and the range of its powers of ten.
_DIGITS_MAX, _SCALE_MIN, _SCALE_MAX = 38, -84, 127
_POWER_MIN, _POWER_MAX = -130, 126
_FRACTION_USUAL, _FRACTION_MAX = 6, 9
_UTC = "+00"
#: A decimal context that keeps every digit of any number.
_EXACT = Context(prec=200_000, Emax=999_999, Emin=-999_999)


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleTypeRule:
    """How one kind of value is declared, for the documentation."""

    source: str
    declared: str
    note: str = ""


RULES: Mapping[Kind, OracleTypeRule] = {
    Kind.INT: OracleTypeRule(source="integer", declared="`NUMBER(5)`, `NUMBER(10)`, `NUMBER(19)`"),
    Kind.DECIMAL: OracleTypeRule(
        source="decimal",
        declared="`NUMBER(p,s)`, `NUMBER`",
        note="text above 38 digits; NaN, infinity, and more than 38 digits in a `NUMBER` are refused; 1.50 becomes 1.5",
    ),
    Kind.FLOAT: OracleTypeRule(
        source="floating point", declared="`BINARY_DOUBLE`", note="NaN, infinity and -0 are refused"
    ),
    Kind.TEXT: OracleTypeRule(
        source="text",
        declared="`VARCHAR2(n CHAR)`, `CLOB`; in a key or an index `VARCHAR2(n BYTE)`",
        note="an empty text is kept in a `CLOB`, and refused in a `VARCHAR2`, where Oracle stores NULL",
    ),
    Kind.CHAR: OracleTypeRule(source="blank-padded text", declared="`VARCHAR2(n CHAR)`", note="with its blanks"),
    Kind.BYTES: OracleTypeRule(
        source="bytes", declared="`BLOB`; in a key or an index `RAW(n)`", note="an empty value is refused in a `RAW`"
    ),
    Kind.BOOL: OracleTypeRule(source="boolean", declared="`NUMBER(1)`", note="0 and 1, in every version"),
    Kind.DATE: OracleTypeRule(
        source="date", declared="`DATE`", note="years 1 to 9999 without 5 to 14 October 1582; others are refused"
    ),
    Kind.TIME: OracleTypeRule(source="time", declared="`VARCHAR2(40 BYTE)`", note="as text"),
    Kind.TIMETZ: OracleTypeRule(source="time with time zone", declared="`VARCHAR2(40 BYTE)`", note="as text"),
    Kind.TIMESTAMP: OracleTypeRule(source="timestamp", declared="`TIMESTAMP(p)`", note="the days of a date"),
    Kind.TIMESTAMPTZ: OracleTypeRule(
        source="timestamp with time zone",
        declared="`TIMESTAMP(p) WITH TIME ZONE`",
        note="in UTC; in a key or an index `TIMESTAMP(p)`, because Oracle has no key with a time zone",
    ),
    Kind.INTERVAL: OracleTypeRule(source="interval", declared="`VARCHAR2(120 BYTE)`", note="as text"),
    Kind.JSON: OracleTypeRule(source="JSON", declared="`CLOB`", note="the text as the source has it"),
    Kind.UUID: OracleTypeRule(source="uuid", declared="`VARCHAR2(36 BYTE)`", note="as text"),
    Kind.ARRAY: OracleTypeRule(source="array", declared="`CLOB`", note="as text"),
    Kind.NATIVE: OracleTypeRule(source="other types", declared="`CLOB`", note="as text"),
}
_DIGITS = {2: 5, 4: 10, 8: 19}
_PLAIN = {
    Kind.FLOAT: "BINARY_DOUBLE",
    Kind.BOOL: "NUMBER(1)",
    Kind.DATE: "DATE",
    Kind.TIME: "VARCHAR2(40 BYTE)",
    Kind.TIMETZ: "VARCHAR2(40 BYTE)",
    Kind.INTERVAL: "VARCHAR2(120 BYTE)",
    Kind.UUID: "VARCHAR2(36 BYTE)",
}


# -- declarations ------------------------------------------------------------------------------------------------------


def declared_type(kind: LogicalType, *, indexed: bool = False, room: int = TEXT_BYTES_MAX) -> str:
    """Return a column's type. `room`: the size in bytes for an indexed value without a limit."""
    if plain := _PLAIN.get(kind.kind):
        return plain
    if kind.kind is Kind.INT:
        return f"NUMBER({_DIGITS.get(kind.length, 19)})"
    if kind.kind is Kind.DECIMAL and not kind.precision:
        return "NUMBER"
    if kind.kind is Kind.DECIMAL and kind.precision <= _DIGITS_MAX and _SCALE_MIN <= kind.scale <= _SCALE_MAX:
        return f"NUMBER({kind.precision},{kind.scale})"
    if kind.kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        digits = kind.precision if 0 < kind.precision <= _FRACTION_MAX else _FRACTION_USUAL
        zone = " WITH TIME ZONE" if kind.kind is Kind.TIMESTAMPTZ and not indexed else ""
        return f"TIMESTAMP({digits}){zone}"
    if kind.kind is Kind.BYTES:
        return f"RAW({min(kind.length or room, RAW_BYTES_MAX)})" if indexed else "BLOB"
    size = kind.length if kind.kind in (Kind.TEXT, Kind.CHAR) else 0
    size = max(size, 1) if kind.kind is Kind.CHAR else size
    if 0 < size * _CHARACTER_BYTES <= TEXT_BYTES_MAX:
        return f"VARCHAR2({size} CHAR)"
    return f"VARCHAR2({min(room, TEXT_BYTES_MAX)} BYTE)" if indexed else "CLOB"


def key_bytes(declared: str) -> int:
    """Return how many bytes a column of this type occupies in an index."""
    size = int(found[1]) if (found := re.match(r"(?:VARCHAR2|RAW)\((\d+)", declared)) else 0
    if declared.startswith("VARCHAR2"):
        return size * _CHARACTER_BYTES if declared.endswith("CHAR)") else size
    return size or 24


def declared_columns(schema: TableSchema) -> dict[str, str]:
    """Return the type of every column. Values without a limit share the size limit of the indexes that contain them."""
    indexed = _indexed_columns(schema)
    by_name = {c.name: c for c in schema.columns}
    room = min((_free_bytes([by_name[n] for n in names if n in by_name]) for names in indexes_of(schema)), default=0)
    return {c.name: declared_type(c.type, indexed=c.name in indexed, room=max(room, 1)) for c in schema.columns}


def indexes_of(schema: TableSchema) -> list[tuple[str, ...]]:
    """Return the columns of the key and of every index of plain columns."""
    return [schema.key, *(i.columns for i in schema.indexes if not i.definition)]


def _indexed_columns(schema: TableSchema) -> set[str]:
    """Return the columns that are in the key or an index."""
    return {name for names in indexes_of(schema) for name in names}


def _free_bytes(columns: Sequence[Column]) -> int:
    """Return how many bytes each value without a limit may have in an index of these columns."""
    sizes = [key_bytes(declared_type(c.type, indexed=True, room=1)) for c in columns]
    unlimited = sum(size == 1 for size in sizes)
    return min((KEY_BYTES_MAX - sum(sizes)) // max(unlimited, 1), TEXT_BYTES_MAX)


def is_lob(declared: str) -> bool:
    """Return whether a declared type is a LOB."""
    return declared in ("CLOB", "NCLOB", "BLOB")


def becomes_text(kind: LogicalType) -> bool:
    """Return whether the target stores values as text because none of its types holds them exactly."""
    return kind.kind in (Kind.TIME, Kind.TIMETZ, Kind.INTERVAL, Kind.ARRAY, Kind.NATIVE) or (
        kind.kind is Kind.DECIMAL and not declared_type(kind).startswith("NUMBER")
    )


# -- values to be bound ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ColumnBinding:
    """How the values of a column are bound: `{b}` in `sql` is the bind variable.

    `convert` returns what the driver binds, or raises UnfitValue. `db_type`: the driver's type; empty = the driver
    chooses.
    """

    convert: Callable[[Any], Any]
    sql: str = "{b}"
    db_type: str = ""


def binding(kind: LogicalType, declared: str) -> ColumnBinding:
    """Return how values of a canonical type are bound to a column of the declared type."""
    word = declared.partition("(")[0]
    if kind.kind is Kind.BOOL and word == "NUMBER":
        return ColumnBinding(lambda text: Decimal(int(text == "t")), db_type="NUMBER")
    if word == "NUMBER":
        return ColumnBinding(partial(_to_number, _parse_limits(declared)), db_type="NUMBER")
    if word in ("BINARY_DOUBLE", "BINARY_FLOAT"):
        return ColumnBinding(_to_float, db_type="BINARY_DOUBLE")
    if word == "DATE":
        return ColumnBinding(_to_day, "TO_DATE({b}, 'YYYY-MM-DD')")
    if word == "TIMESTAMP":
        digits = int(declared[10])
        shown = _FRACTION_USUAL if digits <= _FRACTION_USUAL else _FRACTION_MAX
        sql = f"TO_TIMESTAMP({{b}}, 'YYYY-MM-DD HH24:MI:SS.FF{shown}')"
        sql = f"FROM_TZ({sql}, '+00:00')" if declared.endswith("ZONE") else sql
        return ColumnBinding(partial(_to_moment, digits, shown), sql)
    if word == "VARCHAR2":
        return ColumnBinding(partial(_to_text, *_text_limits(declared)))
    if word == "RAW":
        return ColumnBinding(partial(_to_raw, int(declared[4:-1])))
    return ColumnBinding(lambda value: value, db_type="LONG" if word == "CLOB" else "LONG_RAW")


def _parse_limits(declared: str) -> tuple[int, int] | None:
    """Return precision and scale of a NUMBER; None = it has neither."""
    found = re.fullmatch(r"NUMBER\((\d+)(?:,(-?\d+))?\)", declared)
    return (int(found[1]), int(found[2] or 0)) if found else None


def _to_number(limits: tuple[int, int] | None, text: str) -> Decimal:
    """Convert a decimal text to a number. Raises UnfitValue unless NUMBER stores every digit."""
    number = Decimal(text)
    if not number.is_finite():
        raise UnfitValue("a NUMBER is neither infinite nor NaN")
    _, digits, exponent = number.normalize(_EXACT).as_tuple()
    assert isinstance(exponent, int)
    power = len(digits) + exponent
    if number and limits is not None and (-exponent > limits[1] or power > limits[0] - limits[1]):
        raise UnfitValue(f"it does not fit NUMBER({limits[0]},{limits[1]})")
    if number and (len(digits) > _DIGITS_MAX or not _POWER_MIN < power <= _POWER_MAX):
        raise UnfitValue(f"a NUMBER has {_DIGITS_MAX} digits")
    return number


def _to_float(text: str) -> float:
    """Convert a text to a float. Raises UnfitValue for infinity, NaN and -0."""
    value = float(text)
    if not isfinite(value) or (value == 0 and text.startswith("-")):
        raise UnfitValue("it is infinite, NaN or -0")
    return value


def _to_day(text: str) -> str:
    """Return a date as it is. Raises UnfitValue for a date that Oracle's calendar lacks."""
    if len(text) != 10 or not is_calendar_day(text):
        raise UnfitValue(f"no DATE {_NO_DAY}")
    return text


#: The days that are missing in Oracle's calendar, which changes from Julian to Gregorian at this date.
_SKIPPED = ("1582-10-05", "1582-10-14")
_NO_DAY = "is before the year 1, behind 9999, or among the days that Oracle's calendar skips"


def is_calendar_day(text: str) -> bool:
    """Return whether this date, from the year 1 on, exists in Oracle's calendar."""
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return not _SKIPPED[0] <= text <= _SKIPPED[1]


def _to_moment(digits: int, shown: int, text: str) -> str:
    """Return a timestamp with `shown` digits of a fraction. Raises UnfitValue if it needs more than `digits`."""
    moment = text.removesuffix(_UTC)
    whole, _, fraction = moment.partition(".")
    if len(whole) != 19 or not is_calendar_day(whole[:10]):
        raise UnfitValue(f"no TIMESTAMP {_NO_DAY}")
    if len(fraction.rstrip("0")) > digits:
        raise UnfitValue(f"its seconds have more than {digits} decimal places")
    return f"{whole}.{fraction.ljust(shown, '0')[:shown]}"


def _text_limits(declared: str) -> tuple[int, bool]:
    """Return the size of a VARCHAR2 and whether it counts characters."""
    found = re.fullmatch(r"VARCHAR2\((\d+) (CHAR|BYTE)\)", declared)
    assert found is not None, declared
    return int(found[1]), found[2] == "CHAR"


def _to_text(size: int, counts_chars: bool, text: str) -> str:
    """Return a text as it is. Raises UnfitValue if the text is empty or longer than `size`."""
    if not text:
        raise UnfitValue("Oracle stores NULL for an empty text")
    octets = len(text.encode())
    if octets > TEXT_BYTES_MAX or (len(text) if counts_chars else octets) > size:
        raise UnfitValue(f"it is longer than {size} {'characters' if counts_chars else 'bytes'}")
    return text


def _to_raw(size: int, octets: Any) -> bytes:
    """Return the bytes as they are. Raises UnfitValue for a value that is empty or longer than `size`."""
    if not octets:
        raise UnfitValue("Oracle stores NULL for an empty RAW")
    if len(octets) > size:
        raise UnfitValue(f"it is longer than {size} bytes")
    return bytes(octets)


# -- values that are read ----------------------------------------------------------------------------------------------

_MOMENT = "TO_CHAR({c}, 'SYYYY-MM-DD HH24:MI:SS.FF6')"
_LONG_MOMENT = "TO_CHAR({c}, 'SYYYY-MM-DD HH24:MI:SS.FF9')"


def read_sql(declared: str, column: str) -> str:
    """Return the SQL that reads a column's value in the form that `read_rule` converts."""
    if declared == "DATE":
        text = "TO_CHAR({c}, 'SYYYY-MM-DD HH24:MI:SS')"
    elif declared.startswith("TIMESTAMP"):
        text = _MOMENT if int(declared[10]) <= _FRACTION_USUAL else _LONG_MOMENT
        column = f"SYS_EXTRACT_UTC({column})" if declared.endswith("ZONE") else column
    else:
        text = "{c}"
    return text.replace("{c}", column)


def read_rule(kind: LogicalType, declared: str) -> str:
    """Return the name of the rule that converts a value as read to canonical text (dialects/oracle/rows.py)."""
    if kind.kind is Kind.BOOL:
        return "flag"
    if declared.startswith("NUMBER"):
        return "number"
    if declared.startswith("BINARY"):
        return "single" if kind.length == 4 else "double"
    if declared == "DATE":
        return "day"
    if declared.startswith("TIMESTAMP"):
        return "instant" if kind.kind is Kind.TIMESTAMPTZ else "moment"
    return "octets" if kind.kind is Kind.BYTES else "text"
