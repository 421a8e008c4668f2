"""Rows as values in one order, and as forms (dialects/verify_contract.py), from which checksums are computed. Pure.

Rows from every side arrive as sections of canonical text (TableChanges), in the table version in which they were
written.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from venus.adapters.dialects.verify_contract import (
    HEX_DIGITS,
    SEPARATOR,
    FormStyle,
    Key,
    key_forms,
    sized_forms,
    style_of,
)
from venus.codec.batch import TableChanges
from venus.codec.columns import Value, keys_from_columns, keys_to_columns, to_columns
from venus.codec.row_bytes import Layout
from venus.errors import ProtocolError
from venus.model import Column, Kind, LogicalType, TableSchema
from venus.predicates.evaluation import Bools, evaluate_predicate
from venus.predicates.ranges import Predicate, compile_predicate

Row = tuple[Value, ...]
Columns = Seq[Seq[Value]]
Checksums = npt.NDArray[np.uint64]

_SHIFT = np.uint64(64 - 4 * HEX_DIGITS)
_DIGESTS: dict[str, tuple[Callable[[bytes], bytes], int]] = {
    "md5": (lambda text: hashlib.md5(text, usedforsecurity=False).digest(), 2),
    "sha256": (lambda text: hashlib.sha256(text).digest(), 4),
}


def columns_of(section: TableChanges, versions: Mapping[int, TableSchema], wanted: TableSchema) -> Columns:
    """Return the values of `wanted`'s columns, in its wire order; columns that an older version lacks are NULL."""
    schema = versions.get(section.schema_version)
    if schema is None:
        raise ProtocolError(
            f"{wanted.qualified_name}: rows of version {section.schema_version}, which is not known here"
        )
    found = to_columns(section.record_ids, section.rows, Layout.of(schema))
    if schema == wanted:
        return found
    by_number = {c.number: values for c, values in zip(schema.wire_columns, found, strict=True)}
    missing = [None] * section.count
    return [by_number.get(c.number, missing) for c in wanted.wire_columns]


def rows_inside(predicate: str, columns: Columns, schema: TableSchema) -> Bools:
    """Mark the rows that a predicate chooses; `columns` are the values, in the schema's wire order."""
    by_number = {c.number: values for c, values in zip(schema.wire_columns, columns, strict=True)}

    def column_array(wanted: Column) -> pa.Array:
        values = (v.encode() if isinstance(v, str) else v for v in by_number[wanted.number])
        return pa.array(list(values), pa.large_binary())

    return evaluate_predicate(_compile_predicate(predicate, schema), column_array, len(columns[0]))


@lru_cache(maxsize=16)
def _compile_predicate(predicate: str, schema: TableSchema) -> Predicate:
    return compile_predicate(predicate, schema)


def keys_of(section: TableChanges, versions: Mapping[int, TableSchema], wanted: TableSchema) -> list[Key]:
    """Return the keys of a section's changes, including deleted rows."""
    schema = versions.get(section.schema_version, wanted)
    return key_forms(keys_to_columns(section.record_ids, Layout.of(schema)), wanted)


def checksums(columns: Columns, schema: TableSchema, digest: str) -> Checksums:
    """Return the checksum of each row, or of each key if `columns` are the key's alone."""
    texts = [sized_forms(c.type, values) for c, values in zip(schema.wire_columns, columns, strict=False)]
    hashed, words = _DIGESTS[digest]
    lines = map(SEPARATOR.join, zip(*texts, strict=True))
    octets = b"".join([hashed(line.encode()) for line in lines])
    return np.frombuffer(octets, dtype=">u8")[::words].astype(np.uint64) >> _SHIFT


def record_ids(keys: Seq[Key], schema: TableSchema) -> list[bytes] | None:
    """Return the record ids of keys; None if a form does not determine the spelling of the key (1.5 or 1.50)."""
    layout = Layout.of(schema)
    types = [c.type for c in layout.columns[: layout.key_count]]
    if any(style_of(t) is FormStyle.NUMBER for t in types):
        return None
    columns = [[_canonical_value(kind, key[n]) for key in keys] for n, kind in enumerate(types)]
    return keys_from_columns(columns, layout).split()


def _canonical_value(kind: LogicalType, form: str) -> str | bytes:
    """Return the canonical value that has this form."""
    match style_of(kind):
        case FormStyle.HEX:
            return bytes.fromhex(form)
        case FormStyle.PADDED:
            return form.ljust(kind.length)
    return form


def key_as_dict(key: Key, schema: TableSchema) -> dict[str, str]:
    """Return a key by column name, for display."""
    return dict(zip(schema.key, key, strict=True))


_STRING_OR_BLANKS = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+')


def is_same_value(kind: LogicalType, one: Value, other: Value) -> bool:
    """Return whether two canonical values are equal; NULL equals NULL."""
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


def differing_columns(schema: TableSchema, one: Row, other: Row) -> list[int]:
    """Return the differing columns, in wire order."""
    return list(_differing_positions(schema, one, other))


def is_equal_row(schema: TableSchema, one: Row | None, other: Row | None) -> bool:
    """Return whether two rows are equal; None stands for no row."""
    if one is None or other is None:
        return one is other
    return next(_differing_positions(schema, one, other), None) is None


def _differing_positions(schema: TableSchema, one: Row, other: Row) -> Iterator[int]:
    """Yield the numbers of the columns, in wire order, in which two rows differ."""
    for n, column in enumerate(schema.wire_columns):
        if one[n] != other[n] and not is_same_value(column.type, one[n], other[n]):
            yield n


def _is_same_number(one: str, other: str, _: LogicalType) -> bool:
    left, right = Decimal(one), Decimal(other)
    return left == right or (left.is_nan() and right.is_nan())


def _is_same_float(one: str, other: str, kind: LogicalType) -> bool:
    left, right = float(one), float(other)
    if kind.length == 4:
        left, right = (struct.unpack("f", struct.pack("f", v))[0] for v in (left, right))
    return left == right or (math.isnan(left) and math.isnan(right))


def _is_same_padded(one: str, other: str, _: LogicalType) -> bool:
    """Return whether two CHAR values are equal: trailing blanks do not count."""
    return one.rstrip(" ") == other.rstrip(" ")


def _is_same_json(one: str, other: str, _: LogicalType) -> bool:
    try:
        return _is_same_document(_parse_json(one), _parse_json(other))
    except RecursionError:  # nested more deeply than Python supports: then the order of members counts
        return _without_blanks(one) == _without_blanks(other)


def _parse_json(text: str) -> Any:
    """Parse JSON with decimals, so that 0.1 does not equal its neighbours, and integers of any length."""
    return json.loads(text, parse_float=Decimal, parse_int=Decimal, object_pairs_hook=_unique_members)


def _without_blanks(text: str) -> str:
    """Return JSON without the blanks between its tokens."""
    return _STRING_OR_BLANKS.sub(r"\1", text)


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object. Rejects a duplicate name: parsers differ about which one counts."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name appears twice")
    return members


def _is_same_document(one: Any, other: Any) -> bool:
    """Return whether two parsed JSON documents are equal; the order of members does not matter."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other  # in Python, True equals 1
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same_document(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same_document, one, other))
    return bool(one == other)


def _is_same_moment(one: str, other: str, _: LogicalType) -> bool:
    return _normalise_moment(one) == _normalise_moment(other)


def _normalise_moment(text: str) -> str:
    """Return a time without trailing zeros of its fraction, and with one spelling of UTC."""
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


def _is_same_uuid(one: str, other: str, _: LogicalType) -> bool:
    return one.replace("-", "").lower() == other.replace("-", "").lower()


_COMPARE: dict[Kind, Callable[[str, str, LogicalType], bool]] = {
    Kind.INT: _is_same_number,
    Kind.DECIMAL: _is_same_number,
    Kind.FLOAT: _is_same_float,
    Kind.CHAR: _is_same_padded,
    Kind.JSON: _is_same_json,
    Kind.TIME: _is_same_moment,
    Kind.TIMETZ: _is_same_moment,
    Kind.TIMESTAMP: _is_same_moment,
    Kind.TIMESTAMPTZ: _is_same_moment,
    Kind.UUID: _is_same_uuid,
}
