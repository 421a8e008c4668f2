"""The types of a MariaDB or MySQL target: how each is declared, written and read, without loss (VENUS 3.4). Pure.

`RULES` is the table from which code, `venus check` and the reference page are made. In strict mode, the server refuses
a value that its column cannot hold; the value waits in quarantine. A type without an exact counterpart becomes text.

Texts have a collation without padding: they compare byte by byte, with trailing blanks, as keys do at the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from venus.model import Column, Kind, LogicalType, TableSchema

#: The longest key of InnoDB, the longest row without its large values, and the widest character.
KEY_BYTES_MAX = 3072
ROW_BYTES_MAX = 65_000
_CHARACTER_BYTES = 4
#: Longer texts become LONGTEXT, because the length of each VARCHAR counts towards the limit of a row.
_VARCHAR_MAX = 16_000
_DIGITS_MAX, _SCALE_MAX = 65, 30
_INT = {2: "smallint", 4: "int", 8: "bigint"}
_FRACTION_MAX = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRule:
    """How one kind of value is declared, written and read. `{v}`: the COPY text as SQL; `{c}`: the column.

    `write` makes the server warn about a value that it would change; VENUS then writes the rows one by one.
    """

    source: str  # for the documentation
    declared: str  # for the documentation
    write: str = "{v}"
    read: str = "{c}"
    note: str = ""


#: A date whose year has four digits; the server interprets other years in its own way.
_CALENDAR = "IF(SUBSTR({v}, 5, 1) <> '-' OR RIGHT({v}, 2) = 'BC', 'x', {v})"


def _fraction_trimmed(suffix: str = "") -> str:
    """Return the SQL that reads a time as text without trailing zeros; `suffix` follows the text."""
    text = "TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM CAST({c} AS CHAR)))"
    return f"CONCAT({text}, '{suffix}')" if suffix else text


RULES: Mapping[Kind, TypeRule] = {
    Kind.INT: TypeRule(source="integer", declared="`smallint`, `int`, `bigint`"),
    Kind.DECIMAL: TypeRule(
        source="decimal", declared="`decimal(p,s)`", note="text if it has no precision, or more than 65,30 digits"
    ),
    Kind.FLOAT: TypeRule(
        source="floating point",
        declared="`double`",
        write="IF({v} = '-0', 'x', {v})",
        note="NaN, infinity and -0 are refused",
    ),
    Kind.TEXT: TypeRule(source="text", declared="`varchar(n)`, `longtext`"),
    Kind.CHAR: TypeRule(source="blank-padded text", declared="`varchar(n)`", note="with its blanks"),
    Kind.BYTES: TypeRule(source="bytes", declared="`longblob`, `varbinary(n)`", write="UNHEX(SUBSTR({v}, 3))"),
    Kind.BOOL: TypeRule(source="boolean", declared="`tinyint(1)`", write="({v} = 't')", read="ELT({c} + 1, 'f', 't')"),
    Kind.DATE: TypeRule(
        source="date",
        declared="`date`",
        write="IF(CHAR_LENGTH({v}) <> 10, 'x', {v})",
        note="years 1 to 9999; BC and infinity are refused",
    ),
    Kind.TIME: TypeRule(source="time", declared="`time(6)`", read=_fraction_trimmed()),
    Kind.TIMESTAMP: TypeRule(
        source="timestamp", declared="`datetime(6)`", write=_CALENDAR, read=_fraction_trimmed(), note="years 1 to 9999"
    ),
    Kind.TIMESTAMPTZ: TypeRule(
        source="timestamp with time zone",
        declared="`datetime(6)`",
        write=_CALENDAR.replace(", {v})", ", TRIM(TRAILING '+00' FROM {v}))"),
        read=_fraction_trimmed("+00"),
        note="in UTC; `timestamp` would end in 2038",
    ),
    Kind.UUID: TypeRule(source="uuid", declared="`char(36)`"),
    Kind.TIMETZ: TypeRule(source="time with time zone", declared="`varchar(40)`", note="as text"),
    Kind.INTERVAL: TypeRule(source="interval", declared="`varchar(120)`", note="as text"),
    Kind.JSON: TypeRule(source="JSON", declared="`longtext`", note="the text as the source has it"),
    Kind.ARRAY: TypeRule(source="array", declared="`longtext`", note="as text"),
    Kind.NATIVE: TypeRule(source="other types", declared="`longtext`", note="as text"),
}
_BECOMES_TEXT = frozenset({Kind.TIMETZ, Kind.INTERVAL, Kind.ARRAY, Kind.NATIVE})
_PLAIN = {
    Kind.FLOAT: "double",
    Kind.BOOL: "tinyint(1)",
    Kind.DATE: "date",
    Kind.JSON: "longtext",
    Kind.ARRAY: "longtext",
    Kind.NATIVE: "longtext",
    Kind.TIMETZ: "varchar(40)",
    Kind.INTERVAL: "varchar(120)",
    Kind.UUID: "char(36)",
}
_TEMPORAL = {Kind.TIME: "time", Kind.TIMESTAMP: "datetime", Kind.TIMESTAMPTZ: "datetime"}


def is_text(declared: str) -> bool:
    """Return whether a declared type holds characters."""
    return declared.startswith(("varchar", "char", "longtext", "text", "mediumtext", "tinytext"))


def _has_digits(kind: LogicalType) -> bool:
    """Return whether the server's decimal type has enough digits for this decimal."""
    precision, scale = _digits(kind)
    return 0 < precision <= _DIGITS_MAX and 0 <= scale <= min(_SCALE_MAX, precision)


def _digits(kind: LogicalType) -> tuple[int, int]:
    """Return precision and scale for the server; Oracle's scale may be negative or larger than the precision."""
    if not kind.precision:
        return 0, 0
    if kind.scale < 0:
        return kind.precision - kind.scale, 0
    return max(kind.precision, kind.scale), kind.scale


def becomes_text(kind: LogicalType) -> bool:
    """Return whether the target stores values as text because none of its types holds them exactly."""
    return kind.kind in _BECOMES_TEXT or (kind.kind is Kind.DECIMAL and not _has_digits(kind))


def declared_type(kind: LogicalType, *, indexed: bool = False, chars: int = 0) -> str:
    """Return a column's type as the dictionary spells it. `chars`: the length for an indexed text without a limit."""
    if plain := _PLAIN.get(kind.kind):
        return f"varchar({chars})" if indexed and plain == "longtext" else plain
    if word := _TEMPORAL.get(kind.kind):
        return f"{word}({kind.precision if 0 < kind.precision < _FRACTION_MAX else _FRACTION_MAX})"
    if kind.kind is Kind.INT:
        return _INT.get(kind.length, "bigint")
    if kind.kind is Kind.DECIMAL:
        precision, scale = _digits(kind)
        text = f"varchar({chars})" if indexed else "longtext"
        return f"decimal({precision},{scale})" if _has_digits(kind) else text
    if kind.kind is Kind.BYTES:
        size = kind.length or chars * _CHARACTER_BYTES
        return f"varbinary({size})" if indexed else "longblob"
    size = max(kind.length, 1) if kind.kind is Kind.CHAR else kind.length
    if indexed:
        return f"varchar({size or chars})"
    return f"varchar({size})" if 0 < size <= _VARCHAR_MAX else "longtext"


def key_bytes(declared: str) -> int:
    """Return how many bytes a column of this type occupies in an index."""
    word, _, rest = declared.partition("(")
    size = int(rest.rstrip(")").partition(",")[0]) if rest else 0
    match word:
        case "varchar" | "char":
            return size * _CHARACTER_BYTES
        case "varbinary":
            return size
        case "decimal":
            return size // 2 + 2
        case "longtext" | "longblob":
            return KEY_BYTES_MAX + 1
    return 8


def declared_columns(schema: TableSchema) -> dict[str, str]:
    """Return the type of every column. Texts without a limit share the size limit of the indexes that contain them."""
    indexes = [schema.key, *(i.columns for i in schema.indexes if not i.definition)]
    indexed = {name for names in indexes for name in names}
    by_name = {c.name: c for c in schema.columns}
    room = min(
        (_free_chars([by_name[n] for n in names if n in by_name]) for names in indexes), default=KEY_BYTES_MAX // 4
    )
    found = {c.name: declared_type(c.type, indexed=c.name in indexed, chars=max(room, 1)) for c in schema.columns}
    widest = sorted((n for n in found if n not in indexed), key=lambda n: key_bytes(found[n]), reverse=True)
    varying = [n for n in widest if found[n].startswith("varchar")]
    total = sum(key_bytes(t) for t in found.values() if not t.startswith("long"))
    for name in varying:
        if total <= ROW_BYTES_MAX:
            break
        total -= key_bytes(found[name])
        found[name] = "longtext"
    return found


def _free_chars(columns: list[Column]) -> int:
    """Return how many characters each text without a limit may have in an index of these columns."""
    unlimited = [c for c in columns if key_bytes(declared_type(c.type, indexed=True)) == 0]
    if not unlimited:
        return KEY_BYTES_MAX // _CHARACTER_BYTES
    taken = sum(key_bytes(declared_type(c.type, indexed=True)) for c in columns)
    return max(KEY_BYTES_MAX - taken, 0) // _CHARACTER_BYTES // len(unlimited)


def write_sql(kind: LogicalType, value: str) -> str:
    """Return the SQL of the value to store; `value` is the SQL of its canonical text."""
    return RULES[kind.kind].write.replace("{v}", value)


def read_sql(kind: LogicalType, column: str) -> str:
    """Return the SQL that reads a column's value as canonical text."""
    return RULES[kind.kind].read.replace("{c}", column)
