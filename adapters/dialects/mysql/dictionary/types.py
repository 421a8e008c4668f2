"""The mapping of MySQL's types to logical types, and the expressions that read each type without loss. Pure.

CHAR becomes TEXT: MySQL removes trailing blanks on reading, so a target that pads would change the value. TIME becomes
INTERVAL: its range is -838 to 838 hours. An unsigned integer becomes the next wider type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from venus.errors import UnsupportedType
from venus.model import Kind, LogicalType

_INT_BYTES = {"tinyint": 2, "smallint": 2, "mediumint": 4, "int": 4, "bigint": 8}
_UNSIGNED_BYTES = {"tinyint": 2, "smallint": 4, "mediumint": 4, "int": 8}
_UNSIGNED_BIGINT_DIGITS = 20
_BLOBS = {"tinyblob", "blob", "mediumblob", "longblob", "binary", "varbinary"}
_TEXTS = {"tinytext", "text", "mediumtext", "longtext"}
_SPATIAL = "geometry point linestring polygon multipoint multilinestring multipolygon geometrycollection geomcollection"
#: The longest key that an index accepts.
KEY_BYTES_MAX = 3072
#: Bytes of the widest character of a character set; one byte for those not listed.
_CHARACTER_BYTES = {
    name: size
    for size, names in {
        2: "ucs2 big5 sjis cp932 gbk gb2312 euckr",
        3: "utf8 utf8mb3 ujis eucjpms",
        4: "utf8mb4 utf16 utf16le utf32 gb18030",
    }.items()
    for name in names.split()
}
_FLOAT_BYTES = {"float": 4, "double": 8}
#: Character sets in which every stored value is valid text. In the others a byte may have no character, such as 0x98 in
#: cp1251 or any above 0x7F in ascii, and the server returns a question mark for it.
_WHOLE_SETS = (
    "utf8mb4 utf8mb3 utf8 ucs2 utf16 utf16le utf32 latin1 latin2 latin5 latin7 koi8r koi8u cp850 cp852 "
    "cp866 keybcs2 macce macroman"
)
#: Prefix of a value that is not valid text. None of those character sets has this character.
NO_TEXT = "\U0010ffff"


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlDeclaredType:
    """A column's type as information_schema shows it."""

    data_type: str
    column_type: str
    charset: str = ""
    collation: str = ""
    length: int = 0  # characters
    precision: int = 0
    scale: int = 0
    fraction: int = 0
    is_json: bool = False  # MariaDB's JSON is a LONGTEXT with a check

    @property
    def is_unsigned(self) -> bool:
        """Whether the type has no negative values."""
        return " unsigned" in self.column_type

    @property
    def is_text(self) -> bool:
        """Whether its values are characters, which may be equal in a collation without being identical."""
        return bool(self.collation) and self.data_type not in ("enum", "set")

    @property
    def may_be_no_text(self) -> bool:
        """Whether stored bytes may be invalid in the column's character set."""
        return self.is_text and self.charset not in _WHOLE_SETS.split()


def logical_type(declared: MysqlDeclaredType) -> LogicalType:
    """Return the logical type of a MySQL type. Raises UnsupportedType if its values cannot be carried exactly."""
    name = declared.data_type
    if name in _INT_BYTES:
        if not declared.is_unsigned:
            return LogicalType(kind=Kind.INT, length=_INT_BYTES[name])
        if name == "bigint":
            return LogicalType(kind=Kind.DECIMAL, precision=_UNSIGNED_BIGINT_DIGITS)
        return LogicalType(kind=Kind.INT, length=_UNSIGNED_BYTES[name])
    if name in _FLOAT_BYTES:
        return LogicalType(kind=Kind.FLOAT, length=_FLOAT_BYTES[name])
    if name in _BLOBS:
        return LogicalType(kind=Kind.BYTES, length=declared.length if name.endswith("binary") else 0)
    if declared.is_json or name == "json":
        return LogicalType(kind=Kind.JSON)
    if name in _TEXTS or name in ("enum", "set"):
        return LogicalType(kind=Kind.TEXT)
    if make := _OTHERS.get(name):
        return make(declared)
    if name in _SPATIAL.split():
        raise UnsupportedType("spatial values have no form that both sides read alike")
    raise UnsupportedType(f"no rule for type {declared.column_type}")


def _bit_type(declared: MysqlDeclaredType) -> LogicalType:
    if declared.precision == 1:
        return LogicalType(kind=Kind.BOOL)
    return LogicalType(kind=Kind.NATIVE, name=f"bit({declared.precision})")


_OTHERS: dict[str, Callable[[MysqlDeclaredType], LogicalType]] = {
    "decimal": lambda d: LogicalType(kind=Kind.DECIMAL, precision=d.precision, scale=d.scale),
    "char": lambda d: LogicalType(kind=Kind.TEXT, length=d.length),
    "varchar": lambda d: LogicalType(kind=Kind.TEXT, length=d.length),
    "bit": _bit_type,
    "year": lambda _: LogicalType(kind=Kind.INT, length=2),
    "date": lambda _: LogicalType(kind=Kind.DATE),
    "time": lambda d: LogicalType(kind=Kind.INTERVAL, precision=d.fraction),
    "datetime": lambda d: LogicalType(kind=Kind.TIMESTAMP, precision=d.fraction),
    "timestamp": lambda d: LogicalType(kind=Kind.TIMESTAMPTZ, precision=d.fraction),
    "uuid": lambda _: LogicalType(kind=Kind.UUID),
    "inet4": lambda _: LogicalType(kind=Kind.NATIVE, name="inet"),
    "inet6": lambda _: LogicalType(kind=Kind.NATIVE, name="inet"),
}


def read_expression(declared: MysqlDeclaredType, column: str) -> str:
    """Return the SQL expression that reads a column without loss."""
    name = declared.data_type
    if name in _FLOAT_BYTES:
        return f"{column} * 1e0"  # unconverted, a FLOAT is rounded to six digits and a DOUBLE(m,d) to d
    if name == "bit":
        return f"LPAD(BIN({column} + 0), {declared.precision}, '0')"
    if name == "year":
        return f"{column} + 0"
    if "zerofill" in declared.column_type:
        digits = f"DECIMAL({declared.precision},{declared.scale})" if name == "decimal" else "UNSIGNED"
        return f"CAST({column} AS {digits})"
    return _text_expression(column) if declared.may_be_no_text else column


def _text_expression(column: str) -> str:
    """Return an expression that reads the text; if bytes of it are invalid, it reads NO_TEXT and the first bytes."""
    text = f"CONVERT({column} USING utf8mb4)"
    shown = f"CHAR_LENGTH(REPLACE(REPLACE({text}, '?', ''), '\N{REPLACEMENT CHARACTER}', ''))"
    stored = f"CHAR_LENGTH(REPLACE({column}, '?', ''))"
    return f"IF({shown} < {stored}, CONCAT('{NO_TEXT}', HEX(LEFT({column}, 30))), {text})"


def _unsigned_suffix(declared: MysqlDeclaredType) -> str:
    return " unsigned" if declared.is_unsigned else ""


#: The widest form of types that are not characters.
_WIDEST: dict[str, Callable[[MysqlDeclaredType], str]] = {
    "decimal": lambda d: f"decimal(65,{d.scale}){_unsigned_suffix(d)}",
    "binary": lambda _: f"varbinary({KEY_BYTES_MAX})",
    "varbinary": lambda _: f"varbinary({KEY_BYTES_MAX})",
    "bit": lambda _: "bit(64)",
}


def key_problem(declared: MysqlDeclaredType) -> str:
    """Return why a column cannot be part of a key, empty if it can be."""
    return "equality of floating-point numbers is not exact" if declared.data_type in _FLOAT_BYTES else ""


def log_type(declared: MysqlDeclaredType) -> str:
    """Return the type of a log table's column for this key column.

    The log's type is the widest of its kind, so that the application's statements do not fail when the key becomes
    wider.
    """
    name = declared.data_type
    if name in _INT_BYTES:
        return "bigint unsigned" if declared.is_unsigned else "bigint"
    chars = max(KEY_BYTES_MAX // _CHARACTER_BYTES.get(declared.charset, 1), declared.length)
    collated = f" CHARACTER SET {declared.charset} COLLATE {declared.collation}"
    if name in ("enum", "set"):
        return f"varchar({chars}){collated}"
    if declared.collation:
        return f"{'varchar' if name == 'char' else declared.data_type}({chars}){collated}"
    widest = _WIDEST.get(name)
    return widest(declared) if widest else declared.column_type


def can_widen(log: str, to: str) -> bool:
    """Return whether a log's column can be converted with its rows: to or from unsigned, or to DECIMAL(65,0)."""
    signed, into = log.removesuffix(" unsigned"), to.removesuffix(" unsigned")
    return signed == into or (signed, into) == ("bigint", "decimal(65,0)")


def narrow_log_type(declared: MysqlDeclaredType) -> str:
    """Return the log type that versions before 2026-11-22 used: only as wide as the key was."""
    name = declared.data_type
    if name in _INT_BYTES:
        return log_type(declared)
    collated = f" CHARACTER SET {declared.charset} COLLATE {declared.collation}"
    if name in ("enum", "set"):
        return f"varchar({max(declared.length, 1)}){collated}"
    if declared.collation:
        return f"{'varchar' if name == 'char' else declared.data_type}({declared.length}){collated}"
    return declared.column_type.replace(" zerofill", "")
