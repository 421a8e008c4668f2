"""Declared types and defaults of SQLite as logical types and standard SQL.

SQLite does not enforce declarations: a type name only gives a column an *affinity* (sqlite.org/datatype3.html 3.1), and
neither widths nor ranges are checked. VENUS gives the target the declared type and checks every value against it
(rows.py). If the declaration names no type, or an unknown one, the content of the column decides.

Only defaults that mean the same in every database are carried. Other defaults are left out; the rows contain the
resulting values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Set
from enum import Enum

from venus.model import Kind, LogicalType

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_TEXT = re.compile(r"'(?:[^']|'')*'")
_NUMERIC = (Kind.INT, Kind.DECIMAL, Kind.FLOAT)
_TEXTUAL = (Kind.TEXT, Kind.CHAR)
#: SQLite's clock is in UTC; in other databases a session has a time zone.
_NOW = {
    (Kind.TIMESTAMP, "CURRENT_TIMESTAMP"): "(CURRENT_TIMESTAMP AT TIME ZONE 'UTC')",
    (Kind.TIMESTAMPTZ, "CURRENT_TIMESTAMP"): "CURRENT_TIMESTAMP",
    (Kind.DATE, "CURRENT_DATE"): "CAST(CURRENT_TIMESTAMP AT TIME ZONE 'UTC' AS date)",
}
_TRUE_FALSE = {"0": "false", "1": "true", "FALSE": "false", "TRUE": "true"}


def portable_default(default: str | None, logical: LogicalType) -> str:
    """Return the default as standard SQL, empty if it has no portable form."""
    text = (default or "").strip()
    if logical.kind in _NUMERIC:
        return text if _NUMBER.fullmatch(text) else ""
    if logical.kind in _TEXTUAL:
        return text if _TEXT.fullmatch(text) else ""
    if logical.kind is Kind.BOOL:
        return _TRUE_FALSE.get(text.upper(), "")
    return _NOW.get((logical.kind, text.upper()), "")


_DECLARED = re.compile(r"^\s*([^(]*?)\s*(?:\(\s*([+-]?\d+)\s*(?:,\s*([+-]?\d+)\s*)?\))?\s*([^(]*?)\s*$")
#: PostgreSQL's widest numeric(p, s); SQLite accepts any number there.
_PRECISION_MAX = 1000


class Affinity(Enum):
    """How SQLite converts a value that it stores in a column."""

    TEXT = "TEXT"
    NUMERIC = "NUMERIC"
    INTEGER = "INTEGER"
    REAL = "REAL"
    BLOB = "BLOB"


def affinity(declared: str) -> Affinity:
    """Return the affinity of a declared type, by SQLite's five rules in their order."""
    name = declared.upper()
    if "INT" in name:
        return Affinity.INTEGER
    if any(part in name for part in ("CHAR", "CLOB", "TEXT")):
        return Affinity.TEXT
    if not name or "BLOB" in name:
        return Affinity.BLOB
    if any(part in name for part in ("REAL", "FLOA", "DOUB")):
        return Affinity.REAL
    return Affinity.NUMERIC


INT = LogicalType(kind=Kind.INT, length=8)
FLOAT = LogicalType(kind=Kind.FLOAT, length=8)
TEXT = LogicalType(kind=Kind.TEXT)
BYTES = LogicalType(kind=Kind.BYTES)
NUMBER = LogicalType(kind=Kind.DECIMAL)
TIMESTAMP = LogicalType(kind=Kind.TIMESTAMP, precision=6)
TIMESTAMPTZ = LogicalType(kind=Kind.TIMESTAMPTZ, precision=6)
TIME = LogicalType(kind=Kind.TIME, precision=6)


def _sized_type(kind: Kind) -> Callable[[int, int], LogicalType]:
    """Return a function that makes a type of this kind from the length in a declaration."""
    return lambda length, _: LogicalType(kind=kind, length=max(length, 0))


def _decimal_type(precision: int, scale: int) -> LogicalType:
    if not 0 < precision <= _PRECISION_MAX or not 0 <= scale <= precision:
        return NUMBER
    return LogicalType(kind=Kind.DECIMAL, precision=precision, scale=scale)


#: Type names with a meaning of their own. INTEGER is not among them: it is 64 bits wide in SQLite.
_NAMED: dict[str, LogicalType | Callable[[int, int], LogicalType]] = {
    "TINYINT": LogicalType(kind=Kind.INT, length=2),
    "SMALLINT": LogicalType(kind=Kind.INT, length=2),
    "INT2": LogicalType(kind=Kind.INT, length=2),
    "MEDIUMINT": LogicalType(kind=Kind.INT, length=4),
    "BOOL": LogicalType(kind=Kind.BOOL),
    "BOOLEAN": LogicalType(kind=Kind.BOOL),
    "DATE": LogicalType(kind=Kind.DATE),
    "TIME": TIME,
    "DATETIME": TIMESTAMP,
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMP WITHOUT TIME ZONE": TIMESTAMP,
    "TIMESTAMPTZ": TIMESTAMPTZ,
    "TIMESTAMP WITH TIME ZONE": TIMESTAMPTZ,
    "DECIMAL": _decimal_type,
    "DEC": _decimal_type,
    "NUMERIC": _decimal_type,
    "NUMBER": _decimal_type,
    "UUID": LogicalType(kind=Kind.UUID),
    "GUID": LogicalType(kind=Kind.UUID),
    "UNIQUEIDENTIFIER": LogicalType(kind=Kind.UUID),
    "JSON": LogicalType(kind=Kind.JSON),
    "VARBINARY": BYTES,
    "BINARY": BYTES,
    "BYTEA": BYTES,
}
#: Types by affinity, where the name does not decide. NUMERIC and "no type" are ambiguous.
_BY_AFFINITY: dict[Affinity, LogicalType | Callable[[int, int], LogicalType]] = {
    Affinity.INTEGER: INT,
    # CHAR(n) too: SQLite does not pad, and a target that pads would change the value.
    Affinity.TEXT: _sized_type(Kind.TEXT),
    Affinity.REAL: FLOAT,
}
#: Sets of storage classes that form one type.
_BY_CONTENT: dict[frozenset[str], LogicalType] = {
    frozenset({"integer"}): INT,
    frozenset({"real"}): FLOAT,
    frozenset({"integer", "real"}): NUMBER,
    frozenset({"text"}): TEXT,
    frozenset({"blob"}): BYTES,
}


def declared_type(declared: str) -> LogicalType | None:
    """Return the logical type of a declaration, or None if it names none."""
    match = _DECLARED.match(declared.upper())
    name, first, second, rest = match.groups() if match else (declared.upper(), None, None, "")
    words = " ".join(f"{name} {rest}".split())
    rule = _NAMED.get(words)
    if rule is None and words not in ("", "ANY"):
        if affinity(declared) is Affinity.BLOB:
            return BYTES
        rule = _BY_AFFINITY.get(affinity(declared))
    if callable(rule):
        return rule(int(first or 0), int(second or 0))
    return rule


def content_type(storage_classes: Set[str]) -> LogicalType | None:
    """Return the logical type of a column by its storage classes, or None if they do not form one type."""
    return _BY_CONTENT.get(frozenset(storage_classes) - {"null"})
