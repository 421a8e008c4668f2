"""Canonical text (change.proto), alike in all dialects: of floats, and which changes of a type keep it. Pure.

A float has the text that PostgreSQL writes, so that a value compares equal as text at source, broker and target.

Some changes of a type keep the text of all values, and so the record ids of a key: the database either keeps every
value as it is or refuses the change. Databases refuse a number that no longer fits, but alter decimal places and
trailing blanks silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from venus.model import Kind, LogicalType, TableSchema

Rule = Callable[[LogicalType, LogicalType], bool]

_WIDTH = re.compile(r"\(\d+(,-?\d+)?\)")


def _accept_any_width(_: LogicalType, __: LogicalType) -> bool:
    """Return True: a change of width keeps every text."""
    return True


def _are_whole_numbers(before: LogicalType, now: LogicalType) -> bool:
    """Whether both types have whole numbers only; a decimal without a precision keeps the digits of each value."""
    return all(t.kind is Kind.INT or (t.precision > 0 and t.scale == 0) for t in (before, now))


def _fits_decimal(_: LogicalType, now: LogicalType) -> bool:
    """Whether whole numbers stay without decimal places: a decimal of scale 0 adds none."""
    return now.scale == 0


def _has_same_scale(before: LogicalType, now: LogicalType) -> bool:
    if before.precision and now.precision:
        return before.scale == now.scale
    return before.scale == 0 and not now.precision


def _has_enough_digits(before: LogicalType, now: LogicalType) -> bool:
    """Whether no fraction is rounded; trailing zeros of a fraction of a second are not part of the text."""
    return before.precision <= now.precision


def _has_same_length(before: LogicalType, now: LogicalType) -> bool:
    return before.length == now.length


def _has_same_name(before: LogicalType, now: LogicalType) -> bool:
    """Whether the names of the types are equal apart from the width. Bits of a fixed width are padded with zeros."""
    fixed = before.name.startswith("bit") and not before.name.startswith("bit varying")
    return not fixed and _WIDTH.sub("", before.name) == _WIDTH.sub("", now.name)


def _has_same_elements(before: LogicalType, now: LogicalType) -> bool:
    return before.element is not None and now.element is not None and keeps_text(before.element, now.element)


#: A change between two kinds that is not listed does not keep the text.
RULES: dict[tuple[Kind, Kind], Rule] = {
    (Kind.INT, Kind.INT): _accept_any_width,
    (Kind.INT, Kind.DECIMAL): _fits_decimal,
    (Kind.DECIMAL, Kind.INT): _are_whole_numbers,
    (Kind.DECIMAL, Kind.DECIMAL): _has_same_scale,
    (Kind.TEXT, Kind.TEXT): _accept_any_width,
    (Kind.CHAR, Kind.CHAR): _has_same_length,
    (Kind.BYTES, Kind.BYTES): _accept_any_width,
    (Kind.TIME, Kind.TIME): _has_enough_digits,
    (Kind.TIMETZ, Kind.TIMETZ): _has_enough_digits,
    (Kind.TIMESTAMP, Kind.TIMESTAMP): _has_enough_digits,
    (Kind.TIMESTAMPTZ, Kind.TIMESTAMPTZ): _has_enough_digits,
    (Kind.INTERVAL, Kind.INTERVAL): _has_enough_digits,
    (Kind.NATIVE, Kind.NATIVE): _has_same_name,
    (Kind.ARRAY, Kind.ARRAY): _has_same_elements,
}


def keeps_text(before: LogicalType, now: LogicalType) -> bool:
    """Whether every value that the change keeps has the same canonical text afterwards."""
    rule = RULES.get((before.kind, now.kind))
    return before == now or (rule is not None and rule(before, now))


def changed_key_column(now: TableSchema, before: TableSchema) -> str:
    """Return the first key column whose values have another text now; empty if there is none."""
    types = {c.name: c.type for c in before.columns}
    for column in now.columns:
        if column.name in now.key and not keeps_text(types[column.name], column.type):
            return column.name
    return ""


def has_changes_of_values(before: TableSchema, now: TableSchema) -> bool:
    """Whether rows sent before lack a value or have a different text: a column is new, retyped or renamed."""
    known = {c.number: c for c in before.columns}
    return any(
        (was := known.get(c.number)) is None or was.name != c.name or not keeps_text(was.type, c.type)
        for c in now.columns
    )


#: The power of ten from which PostgreSQL writes an exponent, by the number's size in bytes.
_DIGITS = {4: 6, 8: 15}
_ODD = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def float_text(number: float, *, length: int) -> str:
    """Return the shortest text that reads back equal as a number of `length` bytes, spelt as PostgreSQL does."""
    exact = np.float32(number) if length == 4 else np.float64(number)
    if not np.isfinite(exact):
        return _ODD[str(float(exact))]
    mantissa, _, exponent = np.format_float_scientific(exact, trim="-").partition("e")
    power = int(exponent)
    if -5 < power < _DIGITS[length]:
        return str(np.format_float_positional(exact, trim="-"))
    return f"{mantissa.rstrip('.')}e{'-' if power < 0 else '+'}{abs(power):02}"
