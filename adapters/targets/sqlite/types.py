"""The types of a SQLite target: how each is declared, written and read, without loss (VENUS 3.4). Pure.

`RULES` is the table from which code, `venus check` and the reference page are made. Tables are STRICT, so a column has
one storage class and SQLite converts nothing. SQLite has no types for decimals and dates, so VENUS stores their
canonical text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from typing import Any

from venus.adapters.dialects.canonical_text import float_text
from venus.adapters.targets.relational.place import UnfitValue
from venus.codec.columns import Value
from venus.model import Column, Kind, LogicalType

INTEGER, REAL, TEXT, BLOB = "INTEGER", "REAL", "TEXT", "BLOB"
_UTC = "+00"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRule:
    """How one kind of value is stored: `write` converts canonical values to stored ones, `read` does the reverse.

    With None, the value is stored unchanged. `write` raises UnfitValue for a value that SQLite would change.
    """

    source: str  # for the documentation
    declared: str
    write: Callable[[Sequence[Value]], Sequence[Any]] | None = None
    read: Callable[[Sequence[Any], LogicalType], Sequence[Value]] | None = None
    note: str = ""


def _write_integers(values: Sequence[Value]) -> Sequence[Any]:
    if None in values:
        return [None if v is None else int(v) for v in values]
    return list(map(int, values))  # type: ignore[arg-type]


def _read_integers(values: Sequence[Any], kind: LogicalType) -> Sequence[Value]:
    return [None if v is None else str(v) for v in values]


def _write_float(text: str) -> float:
    """Convert a text to a float. Raises UnfitValue for NaN and -0, which SQLite does not store."""
    value = float(text)
    # SQLite stores NULL for NaN, and 0 for -0
    if isnan(value) or (value == 0 and text.startswith("-")):
        raise UnfitValue(f"SQLite stores another value for {text}")
    return value


def _write_floats(values: Sequence[Value]) -> Sequence[Any]:
    return [None if v is None else _write_float(v) for v in values]  # type: ignore[arg-type]


def _read_floats(values: Sequence[Any], kind: LogicalType) -> Sequence[Value]:
    return [None if v is None else float_text(float(v), length=kind.length) for v in values]


def _write_booleans(values: Sequence[Value]) -> Sequence[Any]:
    return [None if v is None else int(v == "t") for v in values]


def _read_booleans(values: Sequence[Any], kind: LogicalType) -> Sequence[Value]:
    return [None if v is None else "ft"[v] for v in values]


def _write_instants(values: Sequence[Value]) -> Sequence[Any]:
    """Convert timestamps with a time zone to stored texts without it; they are in UTC."""
    return [None if v is None else v.removesuffix(_UTC) for v in values]  # type: ignore[arg-type]


def _read_instants(values: Sequence[Any], kind: LogicalType) -> Sequence[Value]:
    """Convert stored timestamps to canonical text with the time zone +00."""
    # "infinity" has no zone, and "... +00 BC" has kept its zone
    return [f"{v}{_UTC}" if v is not None and v[-1].isdigit() else v for v in values]


RULES: Mapping[Kind, StorageRule] = {
    Kind.INT: StorageRule(source="integer", declared=INTEGER, write=_write_integers, read=_read_integers),
    Kind.DECIMAL: StorageRule(
        source="decimal", declared=TEXT, note="every digit, with NaN and infinity; `CAST(x AS REAL)` to calculate"
    ),
    Kind.FLOAT: StorageRule(
        source="floating point", declared=REAL, write=_write_floats, read=_read_floats, note="NaN and -0 are refused"
    ),
    Kind.TEXT: StorageRule(source="text", declared=TEXT, note="NUL characters included"),
    Kind.CHAR: StorageRule(source="blank-padded text", declared=TEXT, note="with its blanks"),
    Kind.BYTES: StorageRule(source="bytes", declared=BLOB),
    Kind.BOOL: StorageRule(
        source="boolean", declared=INTEGER, write=_write_booleans, read=_read_booleans, note="0 and 1"
    ),
    Kind.DATE: StorageRule(
        source="date", declared=TEXT, note="`2026-11-20`; BC and infinity as PostgreSQL writes them"
    ),
    Kind.TIME: StorageRule(source="time", declared=TEXT),
    Kind.TIMETZ: StorageRule(source="time with time zone", declared=TEXT),
    Kind.TIMESTAMP: StorageRule(source="timestamp", declared=TEXT, note="`2026-11-20 23:59:59.1`"),
    Kind.TIMESTAMPTZ: StorageRule(
        source="timestamp with time zone",
        declared=TEXT,
        write=_write_instants,
        read=_read_instants,
        note="in UTC without a zone, as SQLite's date functions read it",
    ),
    Kind.INTERVAL: StorageRule(source="interval", declared=TEXT),
    Kind.JSON: StorageRule(source="JSON", declared=TEXT, note="the text as the source has it"),
    Kind.UUID: StorageRule(source="uuid", declared=TEXT),
    Kind.ARRAY: StorageRule(source="array", declared=TEXT),
    Kind.NATIVE: StorageRule(source="other types", declared=TEXT),
}


def declared_type(kind: LogicalType) -> str:
    """Return a column's type in a STRICT table."""
    return RULES[kind.kind].declared


#: The declaration of a new column in a file that was the application's, so that capture reads it as this type.
_DECLARATIONS: Mapping[Kind, Callable[[LogicalType], str]] = {
    Kind.INT: lambda kind: {2: "SMALLINT", 4: "MEDIUMINT"}.get(kind.length, "BIGINT"),
    Kind.DECIMAL: lambda kind: f"NUMERIC({kind.precision},{kind.scale})" if kind.precision else "NUMERIC",
    Kind.FLOAT: lambda kind: "DOUBLE" if kind.length == 8 else "",
    Kind.TEXT: lambda kind: f"VARCHAR({kind.length})" if kind.length else TEXT,
    Kind.BYTES: lambda _: BLOB,
    Kind.BOOL: lambda _: "BOOLEAN",
    Kind.DATE: lambda _: "DATE",
    Kind.TIME: lambda _: "TIME",
    Kind.TIMESTAMP: lambda _: "TIMESTAMP",
    Kind.TIMESTAMPTZ: lambda _: "TIMESTAMPTZ",
    Kind.UUID: lambda _: "UUID",
    Kind.JSON: lambda kind: "JSON" if kind.name in ("", "json") else "",
}


def application_type(kind: LogicalType) -> str:
    """Return the type of a new column in a file that was the application's; empty if no type can hold its values."""
    declare = _DECLARATIONS.get(kind.kind)
    return declare(kind) if declare is not None else ""


def value_writer(was: LogicalType, kind: LogicalType) -> Callable[[Sequence[Value]], Sequence[Any]] | None:
    """Return the function that converts values of an older type `was` for a column of type `kind`; None = unchanged."""
    if kind.kind is Kind.DECIMAL and (padding := scale_padding(was, kind)):
        return partial(_pad_fractions, padding)
    return RULES[was.kind].write


def scale_padding(was: LogicalType, kind: LogicalType) -> str:
    """Return the digits to append to stored decimals because the column's scale has grown; empty = none."""
    before, after = max(was.scale, 0), max(kind.scale, 0)
    if not (was.precision and kind.precision) or after <= before:
        return ""
    return ("" if before else ".") + "0" * (after - before)


def _pad_fractions(padding: str, values: Sequence[Value]) -> Sequence[Any]:
    """Append digits to the decimals among these values."""
    return [f"{v}{padding}" if isinstance(v, str) and v[-1:].isdigit() else v for v in values]


def canonical_values(column: Column, values: Sequence[Any]) -> Sequence[Value]:
    """Convert stored values of a column to canonical values."""
    read = RULES[column.type.kind].read
    return values if read is None else read(values, column.type)


def keeps_values(was: LogicalType, kind: LogicalType) -> bool:
    """Return whether the stored values of a column stay valid if its type changes, apart from padding a grown scale."""
    if was.kind is not kind.kind:
        return {was.kind, kind.kind} <= {Kind.TEXT, Kind.CHAR}
    if kind.kind is Kind.DECIMAL:
        return not kind.precision or (bool(was.precision) and max(kind.scale, 0) >= max(was.scale, 0))
    if kind.kind is Kind.FLOAT:
        return was.length == kind.length
    return kind.kind not in (Kind.ARRAY, Kind.NATIVE) or was == kind
