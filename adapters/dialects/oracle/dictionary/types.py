"""The default mapping of Oracle types: the logical type that carries each, and how it is read. Pure.

The table of types in the documentation is generated from this mapping. `select` is the selected expression, with `{c}`
for the column. `text` names the rule of rows.py that converts the driver's value. `bind` is the expression with which
a condition binds a key of the type.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from venus.adapters.dialects.oracle.session.lobs import INLINE
from venus.errors import UnsupportedType
from venus.model import Kind, LogicalType

MOMENT = "SYYYY-MM-DD HH24:MI:SS"
#: The greatest lengths of texts and RAW, with standard and with extended types (MAX_STRING_SIZE).
TEXT_CHARS, NATIONAL_CHARS, RAW_BYTES = 4000, 2000, 2000
EXTENDED_CHARS, EXTENDED_NATIONAL_CHARS = 32767, 16383
#: The number of fraction digits that targets can store; further ones are cut off, and `check` reports it.
FRACTION_MAX = 6

#: Types that no subquery and few expressions may contain.
LONGS = ("LONG", "LONG RAW")


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleDeclaredType:
    """A column's type as the dictionary describes it."""

    data_type: str
    owner: str = ""
    length: int = 0  # characters for text, bytes for RAW
    precision: int | None = None
    scale: int | None = None
    #: CHAR(n BYTE): blanks fill the value up to n bytes.
    in_bytes: bool = False

    @property
    def is_national(self) -> bool:
        """Whether the type uses the national character set; values bound as ordinary text may lose characters."""
        return self.data_type in ("NCHAR", "NVARCHAR2", "NCLOB")

    @property
    def padding_type(self) -> str:
        """The type to cast a value to so that it gets this column's trailing blanks; empty if it has none."""
        if self.data_type == "NCHAR":
            return f"NCHAR({self.length})"
        return f"CHAR({self.length} {'BYTE' if self.in_bytes else 'CHAR'})" if self.data_type == "CHAR" else ""

    @property
    def sql_type(self) -> str:
        """The type as it is declared in SQL."""
        if self.data_type == "NUMBER" and (self.precision is not None or self.scale is not None):
            shown = "*" if self.precision is None else str(self.precision)
            return f"NUMBER({shown},{self.scale})" if self.scale else f"NUMBER({shown})"
        return f"{self.data_type}({self.length})" if self.length else self.data_type


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleTypeMapping:
    """The mapping of one Oracle type: the logical type that carries it, and how its values are read."""

    pattern: str  # of ALL_TAB_COLS.DATA_TYPE
    becomes: str  # for the documentation
    logical: Callable[[OracleDeclaredType], LogicalType]
    select: Callable[[OracleDeclaredType], str]
    text: str
    bind: str = ":{n}"
    #: The type of a key column in the log table: the widest form, so that a wider key never fails the application's
    #: statements. {text} = see `log_type_of`. Empty = not in a key.
    log_type: str = ""
    wide: bool = False
    #: A LOB: a large value is read through its locator (lobs.py).
    located: bool = False
    #: The encoding of a text that is read as bytes, because the server would convert it from another character set.
    encoding: str = ""
    note: str = ""

    @property
    def is_text(self) -> bool:
        """Whether values of this type are stored as text at the source."""
        return self.text == "text" or bool(self.encoding)


def _number_type(declared: OracleDeclaredType) -> LogicalType:
    precision, scale = declared.precision, declared.scale
    if precision is None:
        # DECIMAL(38,0) would make the target round the values of a NUMBER(*,2)
        return LogicalType(kind=Kind.DECIMAL, precision=38) if scale == 0 else LogicalType(kind=Kind.DECIMAL)
    if not scale:
        for digits, octets in ((4, 2), (9, 4), (18, 8)):
            if precision <= digits:
                return LogicalType(kind=Kind.INT, length=octets)
    return LogicalType(kind=Kind.DECIMAL, precision=precision, scale=scale or 0)


def _plain_column(_: OracleDeclaredType) -> str:
    """Return the expression that selects a column as it is."""
    return "{c}"


def _constant_expression(expression: str) -> Callable[[OracleDeclaredType], str]:
    """Return a function that returns this expression for every declared type."""
    return lambda _: expression


def _kind_type(kind: Kind, *, length: int | None = None) -> Callable[[OracleDeclaredType], LogicalType]:
    """Return a function that makes a logical type of this kind, by default with the declared length."""
    return lambda d: LogicalType(kind=kind, length=d.length if length is None else length)


def _fraction_digits(declared: OracleDeclaredType) -> int:
    return min(declared.scale or 0, FRACTION_MAX)


def _moment_format(declared: OracleDeclaredType) -> str:
    """Return the TO_CHAR format of a timestamp with its declared digits of a second."""
    digits = _fraction_digits(declared)
    return f"{MOMENT}.FF{digits}" if digits else MOMENT


def _timestamp_type(kind: Kind) -> Callable[[OracleDeclaredType], LogicalType]:
    """Return a function that makes a logical type of this kind with the declared digits of a second."""
    return lambda d: LogicalType(kind=kind, precision=_fraction_digits(d))


_TO_MOMENT = f"TO_TIMESTAMP(:{{n}}, '{MOMENT}.FF')"
_TEXT_NOTE = "'' is NULL"
_LOB_NOTE = "a larger one by its locator, in pieces; an empty one is not NULL; in all a row has at most 15 MiB"

MAPPINGS = (
    OracleTypeMapping(
        pattern=r"NUMBER",
        becomes="INT for scale 0 up to 18 digits, else DECIMAL",
        logical=_number_type,
        select=_plain_column,
        text="number",
        log_type="NUMBER",
        note="fetched as Decimal, never as float; negative scales stay",
    ),
    OracleTypeMapping(
        pattern=r"FLOAT",
        becomes="DECIMAL",
        logical=_kind_type(Kind.DECIMAL, length=0),
        select=_plain_column,
        text="number",
        log_type="NUMBER",
        note="a NUMBER with binary precision",
    ),
    OracleTypeMapping(
        pattern=r"BINARY_FLOAT",
        becomes="FLOAT of 4 bytes",
        logical=_kind_type(Kind.FLOAT, length=4),
        select=_plain_column,
        text="single",
        note="NaN and infinities travel; not in a key",
    ),
    OracleTypeMapping(
        pattern=r"BINARY_DOUBLE",
        becomes="FLOAT of 8 bytes",
        logical=_kind_type(Kind.FLOAT, length=8),
        select=_plain_column,
        text="double",
        note="NaN and infinities travel; not in a key",
    ),
    OracleTypeMapping(
        pattern=r"N?CHAR",
        becomes="CHAR",
        logical=_kind_type(Kind.CHAR),
        select=_plain_column,
        text="text",
        log_type="{text}",
        note=_TEXT_NOTE,
    ),
    OracleTypeMapping(
        pattern=r"N?VARCHAR2",
        becomes="TEXT",
        logical=_kind_type(Kind.TEXT),
        select=_plain_column,
        text="text",
        log_type="{text}",
        note=_TEXT_NOTE,
    ),
    OracleTypeMapping(
        pattern=r"DATE",
        becomes="TIMESTAMP(0)",
        logical=_timestamp_type(Kind.TIMESTAMP),
        select=_constant_expression(f"TO_CHAR({{c}}, '{MOMENT}')"),
        text="moment",
        bind=f"TO_DATE(:{{n}}, '{MOMENT}')",
        log_type="DATE",
        note="has a time of day; years BC too",
    ),
    OracleTypeMapping(
        pattern=r"TIMESTAMP(\(\d\))?",
        becomes="TIMESTAMP",
        logical=_timestamp_type(Kind.TIMESTAMP),
        select=lambda d: f"TO_CHAR({{c}}, '{_moment_format(d)}')",
        text="moment",
        bind=_TO_MOMENT,
        note="digits after the sixth are cut off; not in a key with more than six",
        log_type="TIMESTAMP(9)",
    ),
    OracleTypeMapping(
        pattern=r"TIMESTAMP(\(\d\))? WITH (LOCAL )?TIME ZONE",
        becomes="TIMESTAMPTZ",
        logical=_timestamp_type(Kind.TIMESTAMPTZ),
        select=lambda d: f"TO_CHAR(SYS_EXTRACT_UTC(CAST({{c}} AS TIMESTAMP(9) WITH TIME ZONE)), '{_moment_format(d)}')",
        text="instant",
        note="the instant in UTC: the zone's name does not travel; digits after the sixth are cut off; not in a key",
    ),
    OracleTypeMapping(
        pattern=r"INTERVAL YEAR.* TO MONTH",
        becomes="INTERVAL",
        logical=_kind_type(Kind.INTERVAL, length=0),
        select=_constant_expression("TO_CHAR({c})"),
        text="months",
    ),
    OracleTypeMapping(
        pattern=r"INTERVAL DAY.* TO SECOND.*",
        becomes="INTERVAL",
        logical=_kind_type(Kind.INTERVAL, length=0),
        select=_constant_expression("TO_CHAR({c})"),
        text="days",
        note="digits after the sixth are cut off",
    ),
    OracleTypeMapping(
        pattern=r"RAW",
        becomes="BYTES",
        logical=_kind_type(Kind.BYTES),
        select=_plain_column,
        text="octets",
        log_type=f"RAW({RAW_BYTES})",
    ),
    OracleTypeMapping(
        pattern=r"BLOB",
        becomes="BYTES",
        logical=_kind_type(Kind.BYTES, length=0),
        select=_constant_expression(INLINE),
        text="octets",
        wide=True,
        located=True,
        note=_LOB_NOTE,
    ),
    OracleTypeMapping(
        pattern=r"N?CLOB",
        becomes="TEXT",
        logical=_kind_type(Kind.TEXT, length=0),
        select=_constant_expression(INLINE),
        text="text",
        wide=True,
        located=True,
        note=_LOB_NOTE,
    ),
    OracleTypeMapping(
        pattern=r"LONG RAW",
        becomes="BYTES",
        logical=_kind_type(Kind.BYTES, length=0),
        select=_plain_column,
        text="octets",
        wide=True,
        note="has no locator: fetched in one piece",
    ),
    OracleTypeMapping(
        pattern=r"LONG",
        becomes="TEXT",
        logical=_kind_type(Kind.TEXT, length=0),
        select=_plain_column,
        text="text",
        wide=True,
        note="has no locator: fetched in one piece",
    ),
    OracleTypeMapping(
        pattern=r"XMLTYPE",
        becomes="TEXT",
        logical=_kind_type(Kind.TEXT, length=0),
        select=_constant_expression("XMLSERIALIZE(CONTENT {c} AS CLOB)"),
        text="text",
        wide=True,
        note="fetched in one piece",
    ),
    OracleTypeMapping(
        pattern=r"JSON",
        becomes="JSON",
        logical=_kind_type(Kind.JSON, length=0),
        select=_constant_expression("JSON_SERIALIZE({c} RETURNING CLOB)"),
        text="text",
        wide=True,
        note="21c and later; fetched in one piece",
    ),
    OracleTypeMapping(
        pattern=r"BOOLEAN",
        becomes="BOOL",
        logical=_kind_type(Kind.BOOL, length=0),
        select=_plain_column,
        text="truth",
        note="23ai and later",
    ),
    OracleTypeMapping(
        pattern=r"U?ROWID",
        becomes="TEXT",
        logical=_kind_type(Kind.TEXT, length=0),
        select=_plain_column,
        text="text",
        note="as text: it means nothing at the target",
    ),
)

#: The refused types, each with the reason for the operator.
REFUSED = {
    "BFILE": "its content lies in a file outside the database and changes without a trigger",
    "ANYDATA": "it can hold a value of any type",
    "ANYTYPE": "it describes a type",
    "VECTOR": "no exact text of it is read yet",
}


def default_mapping(declared: OracleDeclaredType) -> OracleTypeMapping:
    """Return the default mapping of a declared type. Raises UnsupportedType with the reason."""
    reason = REFUSED.get(declared.data_type)
    if reason is None and declared.data_type != "XMLTYPE" and declared.owner:
        reason = "object types and nested tables have no row of their own"
    if reason is None:
        for mapping in MAPPINGS:
            if re.fullmatch(mapping.pattern, declared.data_type):
                return mapping
        reason = "this type is not known"
    raise UnsupportedType(f"{declared.data_type}: {reason}", hint="exclude the column's table, or move the value")


def log_type_of(declared: OracleDeclaredType, mapping: OracleTypeMapping) -> str:
    """Return the type of a key column in a log table; empty if this type cannot be in a key."""
    if declared.data_type.startswith("TIMESTAMP") and (declared.scale or 0) > FRACTION_MAX:
        return ""
    if declared.is_national:
        chars = NATIONAL_CHARS if declared.length <= NATIONAL_CHARS else EXTENDED_NATIONAL_CHARS
        text = f"NVARCHAR2({chars})"
    else:
        text = f"VARCHAR2({TEXT_CHARS if declared.length <= TEXT_CHARS else EXTENDED_CHARS} CHAR)"
    return mapping.log_type.replace("{text}", text)


def types_documentation() -> str:
    """Return the Markdown table of the default mapping, for docs/reference/oracle-types.md."""
    lines = ["| Oracle | travels as | read as | in a key | remarks |", "|---|---|---|---|---|"]
    for m in MAPPINGS:
        name = m.pattern.replace("|", " or ").replace(r"(\(\d\))?", "(n)").replace("N?", "[N]").replace("U?", "[U]")
        name = name.replace("(LOCAL )?", "[LOCAL] ").replace(".*", "(n)")
        read = m.select(OracleDeclaredType(data_type="T", scale=FRACTION_MAX)).replace("{c}", "c")
        lines.append(f"| `{name}` | {m.becomes} | `{read}` | {'yes' if m.log_type else 'no'} | {m.note} |")
    lines += [f"| `{name}` | refused | | | {reason} |" for name, reason in REFUSED.items()]
    lines.append("| object types, nested tables | refused | | | they have no row of their own |")
    return "\n".join(lines) + "\n"
