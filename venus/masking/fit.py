"""Checks whether a rule fits its column: its type, its keys, and the other end of its foreign keys. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from decimal import Decimal, InvalidOperation

from venus.masking.syntax import ColumnRule
from venus.model import Column, ForeignKey, Kind, LogicalType, TableSchema

#: The length of an hmac of 128 bits as hexadecimal text, and as bytes.
HMAC_CHARS, HMAC_BYTES = 32, 16
_DAY = re.compile(r"\d{4,6}-\d\d-\d\d")
_MOMENT = re.compile(r"\d{4,6}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,9})?")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_INT_BITS = {2: 15, 4: 31, 8: 63}
_TIMES = (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)


def is_citext(logical: LogicalType) -> bool:
    """Return whether this is the text type of PostgreSQL that ignores case."""
    return logical.kind is Kind.NATIVE and logical.name.rpartition(".")[2].strip('"') == "citext"


def _is_text(logical: LogicalType) -> bool:
    return logical.kind is Kind.TEXT or is_citext(logical)


def find_misfit(rule: ColumnRule, column: Column, schema: TableSchema) -> str:
    """Return why a rule cannot be applied to a column, as the end of a sentence; empty = it can."""
    if problem := _find_key_problem(rule, column, schema):
        return problem
    kind = column.type
    match rule.mask:
        case "hmac":
            return _find_hmac_problem(kind)
        case "year" if kind.kind not in _TIMES:
            return "is no date: year needs a date or a timestamp"
        case "truncate" if not _is_text(kind):
            return "is no text: truncate needs a text column"
        case "text":
            return _find_text_problem(rule.argument, kind)
        case "constant":
            return _find_constant_problem(rule.argument, kind, schema)
    return ""


def _find_key_problem(rule: ColumnRule, column: Column, schema: TableSchema) -> str:
    """Return why a key column must not have this rule; empty = it may."""
    in_key = column.name in schema.key
    if rule.mask == "drop":
        return "is in the key of its table, and a key column cannot be dropped" if in_key else ""
    place = "the key" if in_key else _unique_place(column, schema)
    if not place or not rule.is_masked:
        return ""
    if rule.mask != "hmac":
        return f"is in {place}: only hmac keeps its values distinct"
    if is_citext(column.type):
        return f"is citext and in {place}: values that differ in case only would no longer be equal"
    return ""


def _unique_place(column: Column, schema: TableSchema) -> str:
    """Return the unique index or foreign key that a column belongs to, in words; empty = none."""
    for index in schema.indexes:
        if index.unique and column.name in index.columns:
            return f"unique index {index.name}"
    for key in schema.foreign_keys:
        if column.name in key.columns:
            return f"foreign key {key.name}"
    return ""


def _find_hmac_problem(kind: LogicalType) -> str:
    """Return why a column of this type cannot be masked with hmac; empty = it can."""
    if kind.kind is Kind.UUID or is_citext(kind):
        return ""
    if kind.kind is Kind.TEXT:
        short = 0 < kind.length < HMAC_CHARS
        return f"holds {kind.length} characters, and an hmac has {HMAC_CHARS}" if short else ""
    if kind.kind is Kind.BYTES:
        short = 0 < kind.length < HMAC_BYTES
        return f"holds {kind.length} bytes, and an hmac has {HMAC_BYTES}" if short else ""
    return "is neither text, uuid nor binary: hmac needs one of these"


def _find_text_problem(text: str, kind: LogicalType) -> str:
    """Return why a fixed text does not fit a column; empty = it fits."""
    if not _is_text(kind):
        return "is no text: a fixed text needs a text column; use constant or null"
    if kind.length and len(text) > kind.length:
        return f"holds {kind.length} characters, and the text has {len(text)}"
    return ""


def _find_constant_problem(value: str, kind: LogicalType, schema: TableSchema) -> str:
    """Return why a column of this type cannot have this constant; empty = it can."""
    if _is_text(kind):
        return _find_text_problem(value, kind)
    own = next((t for t in schema.types if t.labels and kind.kind is Kind.NATIVE and t.sql_name == kind.name), None)
    if own is not None:
        return "" if value in own.labels else f"is an enum without the label {value!r}"
    check = _CONSTANTS.get(kind.kind)
    if check is None:
        return f"is {kind.kind.name.lower()}: constant is for text, numbers, boolean, dates, uuid, JSON and enums"
    return "" if check(value, kind) else f"is {kind.kind.name.lower()}, and {value!r} is no such value"


def _is_int(value: str, kind: LogicalType) -> bool:
    """Return whether a text is an integer within the range of the type."""
    bits = _INT_BITS.get(kind.length, 63)
    return re.fullmatch(r"0|-?[1-9]\d{0,18}", value) is not None and -(2**bits) <= int(value) < 2**bits


def _is_decimal(value: str, kind: LogicalType) -> bool:
    """Return whether a text is a number with the scale of the type, and within its precision."""
    try:
        number = Decimal(value)
    except InvalidOperation:
        return False
    exponent = number.as_tuple().exponent
    if re.fullmatch(r"-?\d+(\.\d+)?", value) is None or not isinstance(exponent, int):
        return False
    if not kind.precision:
        return True
    return -exponent == max(kind.scale, 0) and abs(number) < Decimal(10) ** (kind.precision - kind.scale)


def _is_json(value: str, _: LogicalType) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


_CONSTANTS = {
    Kind.INT: _is_int,
    Kind.DECIMAL: _is_decimal,
    Kind.BOOL: lambda value, _: value in ("t", "f"),
    Kind.DATE: lambda value, _: _DAY.fullmatch(value) is not None,
    Kind.TIMESTAMP: lambda value, _: _MOMENT.fullmatch(value) is not None,
    Kind.UUID: lambda value, _: _UUID.fullmatch(value) is not None,
    Kind.JSON: _is_json,
}

PlacedRules = Mapping[int, tuple[str, ColumnRule]]
_End = tuple[str, ColumnRule] | None


def find_unequal_ends(
    schema: TableSchema, known: Seq[TableSchema], found: Mapping[int, PlacedRules]
) -> Iterator[tuple[ForeignKey, _End, TableSchema, _End]]:
    """Yield each foreign key whose columns are masked differently from the columns it refers to, with both rules."""
    tables = {(s.namespace, s.name): s for s in known}
    for key in schema.foreign_keys:
        other = tables.get((key.referred_namespace, key.referred_table))
        if other is None:
            continue
        for name, referred in zip(key.columns, key.referred_columns, strict=False):
            ours, theirs = _rule_of(schema, name, found), _rule_of(other, referred, found)
            masks = {end[1].mask if end is not None and end[1].is_masked else "" for end in (ours, theirs)}
            kinds = {_kind_of(schema, name), _kind_of(other, referred)}
            is_dropped = ours is not None and ours[1].mask == "drop"
            if not is_dropped and (len(masks) > 1 or (masks != {""} and len(kinds) > 1)):
                yield key, ours, other, theirs


def _rule_of(schema: TableSchema, name: str, found: Mapping[int, PlacedRules]) -> _End:
    """Return the rule for a column, None if it has none."""
    numbers = [c.number for c in schema.columns if c.name == name]
    return found.get(schema.table_id, {}).get(numbers[0]) if numbers else None


def _kind_of(schema: TableSchema, name: str) -> Kind | None:
    """Return the kind of the column with this name, None if there is none."""
    return next((c.type.kind for c in schema.columns if c.name == name), None)
