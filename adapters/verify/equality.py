"""The arbiter: are two values of a column the same value? Pure.

Checksums only say where to look. What is reported has been compared here, by the column's type: 100 and 100.00 are one
number, 'ab' and 'ab   ' one CHAR(5), .5 and 0.5 one decimal, a JSON document is not its blanks.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

from venus.adapters.verify.rows import Row
from venus.codec.columns import Value
from venus.model import Kind, LogicalType, TableSchema

_STRING_OR_BLANKS = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+')


def same(kind: LogicalType, one: Value, other: Value) -> bool:
    """Say whether two canonical values are equal; NULL equals NULL."""
    if one == other:
        return True
    if one is None or other is None or isinstance(one, bytes) or isinstance(other, bytes):
        return False
    compare = _COMPARE.get(kind.kind)
    if compare is None:
        return False
    try:
        return compare(one, other, kind)
    except (ValueError, InvalidOperation, OverflowError):
        return False


def differing(schema: TableSchema, one: Row, other: Row) -> list[int]:
    """Return which columns, in wire order, differ."""
    return list(_differing(schema, one, other))


def equal(schema: TableSchema, one: Row | None, other: Row | None) -> bool:
    """Say whether two rows are equal; None = no row."""
    if one is None or other is None:
        return one is other
    return next(_differing(schema, one, other), None) is None


def _differing(schema: TableSchema, one: Row, other: Row) -> Iterator[int]:
    for n, column in enumerate(schema.wire_columns):
        if one[n] != other[n] and not same(column.type, one[n], other[n]):
            yield n


def _numbers(one: str, other: str, _: LogicalType) -> bool:
    left, right = Decimal(one), Decimal(other)
    return left == right or (left.is_nan() and right.is_nan())


def _floats(one: str, other: str, kind: LogicalType) -> bool:
    left, right = float(one), float(other)
    if kind.length == 4:
        left, right = (struct.unpack("f", struct.pack("f", v))[0] for v in (left, right))
    return left == right or (math.isnan(left) and math.isnan(right))


def _padded(one: str, other: str, _: LogicalType) -> bool:
    return one.rstrip(" ") == other.rstrip(" ")


def _documents(one: str, other: str, _: LogicalType) -> bool:
    try:
        return _same_document(_document(one), _document(other))
    except RecursionError:  # nested more deeply than Python goes: the order of members counts then
        return _without_blanks(one) == _without_blanks(other)


def _document(text: str) -> Any:
    """Parse JSON; decimals, so that 0.1 is not equal to its neighbours, and integers may have any number of digits."""
    return json.loads(text, parse_float=Decimal, parse_int=Decimal, object_pairs_hook=_members)


def _without_blanks(text: str) -> str:
    """Return JSON without the blanks between its tokens."""
    return _STRING_OR_BLANKS.sub(r"\1", text)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that is there twice: which one counts is for every reader to say."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name is there twice")
    return members


def _same_document(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other  # for Python true is 1
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same_document(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same_document, one, other))
    return bool(one == other)


def _moments(one: str, other: str, _: LogicalType) -> bool:
    return _plain_moment(one) == _plain_moment(other)


def _plain_moment(text: str) -> str:
    """Take the zeros off a fraction, and let every spelling of UTC be the same."""
    era = " BC" if text.endswith(" BC") else ""
    text = text.removesuffix(" BC")
    for zone in ("+00:00", "+00", "Z"):
        if text.endswith(zone):
            text, era = text.removesuffix(zone), "+00" + era
            break
    text = text.replace("T", " ", 1)
    head, dot, fraction = text.partition(".")
    fraction = fraction.rstrip("0") if fraction.isdecimal() else fraction
    return f"{head}{dot if fraction else ''}{fraction}{era}"


def _uuids(one: str, other: str, _: LogicalType) -> bool:
    return one.replace("-", "").lower() == other.replace("-", "").lower()


_COMPARE: dict[Kind, Callable[[str, str, LogicalType], bool]] = {
    Kind.INT: _numbers,
    Kind.DECIMAL: _numbers,
    Kind.FLOAT: _floats,
    Kind.CHAR: _padded,
    Kind.JSON: _documents,
    Kind.TIME: _moments,
    Kind.TIMETZ: _moments,
    Kind.TIMESTAMP: _moments,
    Kind.TIMESTAMPTZ: _moments,
    Kind.UUID: _uuids,
}
