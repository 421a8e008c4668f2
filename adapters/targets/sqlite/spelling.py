"""The spellings of values in an application's SQLite table, and canonical text in these spellings. Pure.

SQLite has no type for some values, such as times, so a column may hold any of several spellings. VENUS reads all of
them (dialects/sqlite/rows.py), and writes values back in the spelling of the column's other values. So the application
finds each value unchanged, and texts still compare and sort as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from venus.adapters.dialects.sqlite.dictionary.types import Affinity, affinity
from venus.codec.columns import Value
from venus.model import Kind

#: Returns the stored value of a canonical text.
Spelling = Callable[[Any], Any]
_UTC = "+00"


def _write_same(text: Value) -> Value:
    """Return the canonical text, which is stored unchanged."""
    return text


def _write_number(text: str) -> int | float:
    """Return a number as SQLite stores it in a numeric column: a whole one as an integer, any other as a float."""
    try:
        value = Decimal(text)
        whole = int(value) if value == value.to_integral_value() else None
    except (InvalidOperation, OverflowError, ValueError):  # NaN, infinity
        return float(text)
    return whole if whole is not None and -(1 << 63) <= whole < 1 << 63 else float(text)


def _write_boolean(true: Any, false: Any) -> Spelling:
    """Return the spelling that stores these two values for true and false."""
    return lambda text: true if text == "t" else false


def _write_fraction(clock: str, digits: int, *, always: bool) -> str:
    """Return a time with `digits` digits of a fraction, unless it has more; `always`: even if it has no fraction."""
    whole, _, fraction = clock.partition(".")
    if len(fraction) > digits or not (fraction or always):
        return clock
    return f"{whole}.{fraction.ljust(digits, '0')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClockSpelling:
    """Spelling of a time, or of a date and time: separator, digits of the fraction, and zone."""

    between: str = " "
    digits: int = 0
    always: bool = False
    zone: str = ""

    def __call__(self, text: str) -> str:
        date, blank, clock = text.removesuffix(_UTC).rpartition(" ")
        return (
            f"{date}{self.between if blank else ''}{_write_fraction(clock, self.digits, always=self.always)}{self.zone}"
        )


#: Fractions of a second: without trailing zeros; as Python's isoformat(); as SQLAlchemy; as JavaScript and
#: strftime('%f').
_FRACTIONS = ((0, False), (6, False), (6, True), (3, True))
_CLOCKS = tuple(_ClockSpelling(digits=digits, always=always) for digits, always in _FRACTIONS)
_MOMENTS = tuple(
    _ClockSpelling(between=between, digits=digits, always=always, zone=zone)
    for between in (" ", "T")
    for zone in ("", "Z", "+00:00")
    for digits, always in _FRACTIONS
)
_BOOLEANS = ((1, 0), ("t", "f"), ("true", "false"), ("TRUE", "FALSE"), ("True", "False"))
#: By kind: the spellings of its values. A new column gets the first one.
SPELLINGS: Mapping[Kind, tuple[Spelling, ...]] = {
    Kind.INT: (int,),
    Kind.FLOAT: (float, _write_number),
    Kind.DECIMAL: (_write_number, float),
    Kind.BOOL: tuple(_write_boolean(*both) for both in _BOOLEANS),
    Kind.TIME: _CLOCKS,
    Kind.TIMESTAMP: _MOMENTS,
    Kind.TIMESTAMPTZ: _MOMENTS,
    Kind.UUID: (
        _write_same,
        str.upper,
        lambda text: text.replace("-", ""),
        lambda text: text.replace("-", "").upper(),
        lambda text: UUID(text).bytes,
    ),
}


def list_spellings(kind: Kind, declared: str) -> tuple[Spelling, ...]:
    """Return the possible spellings of a column; if its affinity decides how numbers are stored, only one."""
    found = SPELLINGS.get(kind, (_write_same,))
    is_decided = kind in (Kind.DECIMAL, Kind.FLOAT) and affinity(declared) is not Affinity.BLOB
    return found[:1] if is_decided else found


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpelling:
    """The spelling of a column. `other`: the first value with another spelling, and how it would come back."""

    write: Spelling
    other: tuple[Any, Any] | None = None


def find_spelling(spellings: tuple[Spelling, ...], values: Iterable[tuple[Any, Value]]) -> ColumnSpelling:
    """Return the spelling that all values of a column have; `values`: each stored value with its canonical text."""
    left = spellings
    if len(left) == 1:
        return ColumnSpelling(write=left[0])
    for stored, text in values:
        matching = tuple(one for one in left if _is_same_value(one(text), stored))
        if not matching:
            return ColumnSpelling(write=left[0], other=(stored, left[0](text)))
        left = matching
    return ColumnSpelling(write=left[0])


def _is_same_value(one: Any, other: Any) -> bool:
    """Return whether two stored values are equal and have the same type."""
    return type(one) is type(other) and one == other


def write_values(write: Spelling, values: Iterable[Value]) -> Iterator[Any]:
    """Yield canonical texts in this spelling. Raises ValueError or OverflowError for a text that has no stored form."""
    return (None if value is None else write(value) for value in values)
