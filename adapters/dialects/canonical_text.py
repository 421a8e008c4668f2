"""Canonical text of values (change.proto): how a float is written, and which type changes keep the text. Pure.

A float has the text that PostgreSQL writes, so that a value compares equal as text at source, broker and target.

Some changes of a column's type keep the text of all values, and therefore the record ids (bytes of the keys): the
database either keeps every value as it is or refuses the change. Databases refuse a number that no longer fits, but
alter decimal places and trailing blanks silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from venus.model import Kind, LogicalType, TableSchema

Rule = Callable[[LogicalType, LogicalType], bool]

_WIDTH = re.compile(r"\(\d+(,-?\d+)?\)")


def _accept_any_width(_: LogicalType, __: LogicalType) -> bool:
    """Return True: a change of the width of this kind of type keeps the text of every value."""
    return True


def _are_whole_numbers(before: LogicalType, now: LogicalType) -> bool:
    """Whether both types hold whole numbers only; a decimal without a precision may hold fractions."""
    return all(t.kind is Kind.INT or (t.precision > 0 and t.scale == 0) for t in (before, now))


def _has_no_decimal_places(_: LogicalType, now: LogicalType) -> bool:
    """Whether an integer stays without decimal places as a decimal: true for a scale of 0."""
    return now.scale == 0


def _has_same_scale(before: LogicalType, now: LogicalType) -> bool:
    """Whether a change between decimal types keeps the decimal places of every value."""
    if before.precision and now.precision:
        return before.scale == now.scale
    return before.scale == 0 and not now.precision


def _has_enough_digits(before: LogicalType, now: LogicalType) -> bool:
    """Whether the new type rounds no fraction of a second. The text omits trailing zeros of the fraction."""
    return before.precision <= now.precision


def _has_same_length(before: LogicalType, now: LogicalType) -> bool:
    return before.length == now.length


def _has_same_name(before: LogicalType, now: LogicalType) -> bool:
    """Whether two native types differ at most in width. False for fixed-width `bit`, which pads values with zeros."""
    fixed = before.name.startswith("bit") and not before.name.startswith("bit varying")
    return not fixed and _WIDTH.sub("", before.name) == _WIDTH.sub("", now.name)


def _has_same_element_text(before: LogicalType, now: LogicalType) -> bool:
    return before.element is not None and now.element is not None and keeps_text(before.element, now.element)


#: A change between two kinds that is not listed does not keep the text.
RULES: dict[tuple[Kind, Kind], Rule] = {
    (Kind.INT, Kind.INT): _accept_any_width,
    (Kind.INT, Kind.DECIMAL): _has_no_decimal_places,
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
    (Kind.ARRAY, Kind.ARRAY): _has_same_element_text,
}


def keeps_text(before: LogicalType, now: LogicalType) -> bool:
    """Whether a change of a column's type keeps the canonical text of every value that the new type accepts."""
    rule = RULES.get((before.kind, now.kind))
    return before == now or (rule is not None and rule(before, now))


def changed_key_column(now: TableSchema, before: TableSchema) -> str:
    """Return the first key column whose new type may change the canonical text of its values; empty if none."""
    types = {c.name: c.type for c in before.columns}
    for column in now.columns:
        if column.name in now.key and not keeps_text(types[column.name], column.type):
            return column.name
    return ""


def has_changes_of_values(before: TableSchema, now: TableSchema) -> bool:
    """Whether rows sent in version `before` may lack a value or have another text: a column is new or has changed."""
    known = {c.number: c for c in before.columns}
    return any(
        (was := known.get(c.number)) is None or was.name != c.name or not keeps_text(was.type, c.type)
        for c in now.columns
    )


#: The power of ten from which PostgreSQL writes an exponent, by the number's size in bytes.
_DIGITS = {4: 6, 8: 15}
_ODD = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def float_text(number: float, *, length: int) -> str:
    """Return the shortest text that parses to the same float of `length` bytes, in PostgreSQL's notation."""
    exact = np.float32(number) if length == 4 else np.float64(number)
    if not np.isfinite(exact):
        return _ODD[str(float(exact))]
    mantissa, _, exponent = np.format_float_scientific(exact, trim="-").partition("e")
    power = int(exponent)
    if -5 < power < _DIGITS[length]:
        return str(np.format_float_positional(exact, trim="-"))
    return f"{mantissa.rstrip('.')}e{'-' if power < 0 else '+'}{abs(power):02}"
