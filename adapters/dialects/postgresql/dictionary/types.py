"""PostgreSQL's types as logical types. Pure; the dictionary supplies the rows of pg_type.

Values travel as the text of the type's output function under VENUS's session settings, so every type reads back
exactly. A type that only PostgreSQL has becomes the logical type NATIVE with PostgreSQL's spelling. Types whose values
mean something only inside their own database, such as object ids and role names, are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from venus.errors import UnsupportedType
from venus.model import Kind, LogicalType

_VARIABLE_HEADER = 4
_FRACTION_DIGITS = 6
_INTERVAL_ANY = 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class PgType:
    """A row of pg_type."""

    oid: int
    namespace: str
    name: str
    #: b base, c composite, d domain, e enum, r range, m multirange; no column is of a pseudo-type.
    sort: str
    base: int = 0
    base_modifier: int = -1
    base_spelled: str = ""
    element: int = 0
    is_array: bool = False
    #: The extension that created it, quoted for SQL.
    extension: str = ""


_PLAIN = {
    "int2": LogicalType(kind=Kind.INT, length=2),
    "int4": LogicalType(kind=Kind.INT, length=4),
    "int8": LogicalType(kind=Kind.INT, length=8),
    "float4": LogicalType(kind=Kind.FLOAT, length=4),
    "float8": LogicalType(kind=Kind.FLOAT, length=8),
    "bool": LogicalType(kind=Kind.BOOL),
    "text": LogicalType(kind=Kind.TEXT),
    "bytea": LogicalType(kind=Kind.BYTES),
    "date": LogicalType(kind=Kind.DATE),
    "json": LogicalType(kind=Kind.JSON, name="json"),
    "jsonb": LogicalType(kind=Kind.JSON, name="jsonb"),
    "uuid": LogicalType(kind=Kind.UUID),
}
_TEMPORAL = {
    "time": Kind.TIME,
    "timetz": Kind.TIMETZ,
    "timestamp": Kind.TIMESTAMP,
    "timestamptz": Kind.TIMESTAMPTZ,
}
#: Types that name an object or role of their own database. In another database, the name is missing or means something
#: else.
_LOCAL = (
    "regproc regprocedure regoper regoperator regclass regtype regrole regnamespace regconfig "
    "regdictionary regcollation regdatabase aclitem tid"
)
#: Types whose equal values have the same text, so that a key can be grouped and compared directly.
_IDENTITY = "int2 int4 int8 uuid bool bytea date time timestamp timestamptz oid char macaddr macaddr8 pg_lsn xid8"
_TEXTUAL = {"text", "varchar", "name"}


def logical_type(oid: int, modifier: int, spelled: str, types: Mapping[int, PgType]) -> LogicalType:
    """Return the logical type of a column. Raises UnsupportedType if its values cannot be carried exactly."""
    if _is_large_object(oid, types):
        raise UnsupportedType("a reference to a large object, whose bytes are not in the row")
    found, modifier = _resolve_domain(oid, modifier, types)
    spelled = base_spelling(oid, spelled, types)
    if found.is_array:
        return LogicalType(kind=Kind.ARRAY, element=logical_type(found.element, modifier, spelled, types))
    if found.namespace != "pg_catalog":
        return LogicalType(kind=Kind.NATIVE, name=spelled.removesuffix("[]"))
    if found.name in _LOCAL.split():
        raise UnsupportedType(f"{found.name} means something only inside its own database")
    return _builtin_type(found.name, modifier) or LogicalType(kind=Kind.NATIVE, name=spelled.removesuffix("[]"))


def _builtin_type(name: str, modifier: int) -> LogicalType | None:
    if plain := _PLAIN.get(name):
        return plain
    if kind := _TEMPORAL.get(name):
        return LogicalType(kind=kind, precision=modifier if modifier >= 0 else _FRACTION_DIGITS)
    width = max(modifier - _VARIABLE_HEADER, 0)
    match name:
        case "varchar":
            return LogicalType(kind=Kind.TEXT, length=width)
        case "bpchar" if modifier >= 0:
            return LogicalType(kind=Kind.CHAR, length=width)
        case "numeric":
            return _decimal_type(modifier)
        case "interval":
            digits = modifier & _INTERVAL_ANY if modifier >= 0 else _INTERVAL_ANY
            return LogicalType(kind=Kind.INTERVAL, precision=min(digits, _FRACTION_DIGITS))
    return None


def _decimal_type(modifier: int) -> LogicalType:
    if modifier < 0:
        return LogicalType(kind=Kind.DECIMAL)
    packed = modifier - _VARIABLE_HEADER
    # eleven bits, two's complement: a scale may be negative
    return LogicalType(kind=Kind.DECIMAL, precision=packed >> 16 & 0xFFFF, scale=((packed & 0x7FF) ^ 1024) - 1024)


def _resolve_domain(oid: int, modifier: int, types: Mapping[int, PgType]) -> tuple[PgType, int]:
    """Return the base type of a domain, which has the same values; only the checks are the domain's."""
    found = types[oid]
    while found.sort == "d":
        modifier = found.base_modifier if found.base_modifier >= 0 else modifier
        found = types[found.base]
    return found, modifier


def _is_large_object(oid: int, types: Mapping[int, PgType]) -> bool:
    """Return whether a type is the domain `lo`, a reference to a large object, or a domain over it."""
    found = types[oid]
    while found.sort == "d" and found.name != "lo":
        found = types[found.base]
    return found.name == "lo"


def base_spelling(oid: int, spelled: str, types: Mapping[int, PgType]) -> str:
    """Return the spelling of a domain's base type: a log's column must not inherit NOT NULL or a check."""
    found = types[oid]
    while found.sort == "d":
        spelled = found.base_spelled
        found = types[found.base]
    return spelled


_WIDTH = re.compile(r"\(\d+(,-?\d+)?\)")
#: Spellings without a width for types whose plain name means a width of one.
_WITHOUT_WIDTH = {"character": "bpchar", "bit": "bit varying"}


def without_width(spelled: str) -> str:
    """Return a type without its width: a log's column must accept the values of a key that becomes wider."""
    if '"' in spelled:
        return spelled  # a type of the application, which has no width
    plain, array = _WIDTH.sub("", spelled), ""
    if plain.startswith("interval"):
        plain = "interval" + plain[plain.index("[") :] if "[" in plain else "interval"
    if plain.endswith("[]"):
        plain, array = plain.removesuffix("[]"), "[]"
    return _WITHOUT_WIDTH.get(plain, plain) + array


#: The widest type of each family. A log's column has this type, whose values have the same text.
_LOG_TYPES = {"smallint": "bigint", "integer": "bigint", "character varying": "text"}
#: Further conversions of a log's column that keep its rows, for a key that became numeric.
_LOG_WIDENS = {("smallint", "numeric"), ("integer", "numeric"), ("bigint", "numeric")}


def log_type(spelled: str) -> str:
    """Return the type of the log's column for a key column of this type; it accepts every value of a wider key."""
    wide = without_width(spelled)
    return _LOG_TYPES.get(wide, wide)


def can_widen(log: str, to: str) -> bool:
    """Return whether a log's column can be converted to another type while it has rows."""
    return log_type(log) == to or (log, to) in _LOG_WIDENS


def accepted_types(spelled: str) -> tuple[str, ...]:
    """Return the types that a key's column may change to without a new trigger: its log accepts their values."""
    wide = log_type(spelled)
    family = tuple(narrow for narrow, log in _LOG_TYPES.items() if log == wide)
    return (*family, wide) if family and without_width(spelled) in (*family, wide) else (spelled,)


def is_identity(oid: int, modifier: int, types: Mapping[int, PgType], *, deterministic: bool) -> bool:
    """Return whether equal keys of this type always have the same text (1.0 and 1.00 do not)."""
    found, modifier = _resolve_domain(oid, modifier, types)
    if found.sort == "e":
        return True
    if found.namespace != "pg_catalog" or found.is_array:
        return False
    if found.name in _TEXTUAL or (found.name == "bpchar" and modifier >= 0):
        return deterministic
    return found.name in _IDENTITY.split() or (found.name == "numeric" and modifier >= 0)
