"""Requested types of columns, which replace the default mapping of Oracle's types. Pure but for the queries.

Requested types come from three sources: `[source.type_map]`, VENUS_TYPE_MAP at the source (recorded by
`install-triggers --type-map`), and `--type-map` of the command itself. A later request overrides an earlier one.
Values of a requested type stay exact: a value that does not fit the requested type halts its table, and the reason
names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Mapping as Map
from dataclasses import dataclass, replace

from venus.adapters.dialects.oracle.dictionary.types import (
    EXTENDED_CHARS,
    MOMENT,
    RAW_BYTES,
    TEXT_CHARS,
    OracleDeclaredType,
    OracleTypeMapping,
    default_mapping,
)
from venus.adapters.dialects.oracle.language.ddl import OracleOwnObject
from venus.adapters.dialects.oracle.session.connection import OracleSession
from venus.adapters.dialects.oracle.session.lobs import INLINE
from venus.adapters.dialects.oracle.session.options import Version
from venus.adapters.dialects.oracle.sql import literal, statement
from venus.errors import ConfigError
from venus.model import Kind, LogicalType

#: The value that restores the default mapping.
USUAL = "usual"
TABLE = "VENUS_TYPE_MAP"
_NINE = f"{MOMENT}.FF9"
#: Settings for all columns of a type, instead of a column's name. The setting of a single column overrides them.
SWITCHES = {"RAW(16)": "uuid", "NUMBER(*,0)": "bigint"}
#: Types of text whose columns can all be read as bytes; the value is `text:` and the encoding that they have.
TEXT_SWITCHES = ("CHAR", "VARCHAR2")
ENCODED = "text:"
#: Numbers with more digits than this may not fit into a bigint.
BIGINT_DIGITS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A mapping of an Oracle type that the operator can request in place of the default one."""

    to: str  # the name of this mapping in the configuration
    mapping: OracleTypeMapping


def _make_override(
    to: str,
    pattern: str,
    kind: Kind,
    text: str,
    *,
    select: str = "{c}",
    length: int = 0,
    located: bool = False,
    log_type: str = "",
    note: str,
) -> Override:
    mapping = OracleTypeMapping(
        pattern=pattern,
        becomes=kind.name,
        logical=lambda _: LogicalType(kind=kind, length=length),
        select=lambda _: select,
        text=text,
        wide=located,
        located=located,
        log_type=log_type,
        note=note,
    )
    return Override(to=to, mapping=mapping)


_ZONED = r"TIMESTAMP(\(\d\))? WITH (LOCAL )?TIME ZONE"

OVERRIDES = (
    _make_override("boolean", "NUMBER", Kind.BOOL, "flag", note="0 and 1; anything else is refused"),
    _make_override(
        "bigint",
        "NUMBER",
        Kind.INT,
        "whole",
        length=8,
        log_type="NUMBER",
        note="whole numbers of 64 bits; anything else is refused; in a key too",
    ),
    _make_override("text", "NUMBER", Kind.TEXT, "number", note="its digits"),
    _make_override(
        "date", "DATE", Kind.DATE, "day", select=f"TO_CHAR({{c}}, '{MOMENT}')", note="midnight only; else refused"
    ),
    _make_override(
        "text", r"TIMESTAMP(\(\d\))?", Kind.TEXT, "text", select=f"TO_CHAR({{c}}, '{_NINE}')", note="all nine digits"
    ),
    _make_override(
        "text", _ZONED, Kind.TEXT, "text", select=f"TO_CHAR({{c}}, '{_NINE} TZR')", note="all nine digits and the zone"
    ),
    _make_override(
        "uuid",
        "RAW",
        Kind.UUID,
        "uuid",
        log_type=f"RAW({RAW_BYTES})",
        note="16 bytes; anything else is refused; in a key too",
    ),
    _make_override("json", "N?VARCHAR2", Kind.JSON, "text", note="the target refuses invalid JSON"),
    _make_override(
        "json", "N?CLOB", Kind.JSON, "text", select=INLINE, located=True, note="the target refuses invalid JSON"
    ),
)


def normalise_switch(name: str) -> str:
    """Return the name of a type in [source.type_map] as SWITCHES spells it; a column's name stays unchanged."""
    bare = "".join(name.upper().split())
    return bare if is_switch(bare) else name


def is_switch(name: str) -> bool:
    """Whether a normalised name in [source.type_map] is a type, which stands for all of its columns."""
    return name in SWITCHES or name in TEXT_SWITCHES


def switch_applies(switch: str, declared: OracleDeclaredType) -> bool:
    """Whether a switch (a type in [source.type_map]) covers a column of this declared type."""
    if switch in TEXT_SWITCHES:
        return declared.data_type == switch
    if switch == "RAW(16)":
        return declared.data_type == "RAW" and declared.length == 16
    digits = declared.precision
    return declared.data_type == "NUMBER" and declared.scale == 0 and (digits is None or digits <= BIGINT_DIGITS)


def type_by_switch(type_map: Map[str, str], declared: OracleDeclaredType) -> str:
    """Return the type that [source.type_map] requests for all columns of a type, else USUAL. Raises ConfigError."""
    for name, to in type_map.items():
        switch = normalise_switch(name)
        if switch in SWITCHES and to not in (SWITCHES[switch], USUAL):
            hint = f'allowed: "{switch}" = "{SWITCHES[switch]}"'
            raise ConfigError(f"columns of type {switch} cannot be carried as {to!r}", hint=hint)
        if is_switch(switch) and switch_applies(switch, declared):
            return to
    return USUAL


def find_mapping(declared: OracleDeclaredType, to: str, column: str = "") -> OracleTypeMapping:
    """Return the mapping of a declared type to the requested type `to`. Raises ConfigError, which lists the choices."""
    if to == USUAL:
        return default_mapping(declared)
    if to.startswith(ENCODED) and declared.data_type in TEXT_SWITCHES:
        return encoded_mapping(declared, to.removeprefix(ENCODED))
    ways = [o for o in OVERRIDES if re.fullmatch(o.mapping.pattern, declared.data_type)]
    for way in ways:
        if way.to == to:
            return way.mapping
    encoded = [f"{ENCODED}ENCODING"] if declared.data_type in TEXT_SWITCHES else []
    known = ", ".join([*(way.to for way in ways), *encoded, USUAL])
    where = f"column {column}: " if column else ""
    raise ConfigError(f"{where}{declared.sql_type} cannot be carried as {to!r}", hint=f"allowed: {known}")


#: A text of at most this many characters has at most RAW_BYTES in any character set.
_SHORT_CHARS = RAW_BYTES // 4


def encoded_mapping(declared: OracleDeclaredType, encoding: str) -> OracleTypeMapping:
    """Return the mapping of a text that is read as bytes. Raises ConfigError for an encoding that Python does not have.

    A RAW has at most RAW_BYTES, so a longer text is read in pieces, as hexadecimal digits. Log tables store the text
    itself, not its bytes.
    """
    try:
        b"x".decode(encoding, "replace")
    except LookupError:
        hint = "write it as Python does, for example text:cp1252, text:latin-1 or text:cp850"
        raise ConfigError(f"{ENCODED}{encoding}: this encoding is not known", hint=hint) from None
    usual = default_mapping(declared)
    is_short = declared.length <= _SHORT_CHARS
    return replace(
        usual,
        select=_whole_bytes if is_short else _bytes_in_pieces,
        text=f"{ENCODED}{encoding}",
        bind="UTL_RAW.CAST_TO_VARCHAR2(:{n})",
        log_type=usual.log_type if is_short else "",
        encoding=encoding,
    )


def _whole_bytes(_: OracleDeclaredType) -> str:
    """Return the expression that reads a short text as bytes."""
    return "UTL_RAW.CAST_TO_RAW({c})"


def _bytes_in_pieces(declared: OracleDeclaredType) -> str:
    """Return the expression that reads a long text as hexadecimal digits, piece by piece."""
    most = TEXT_CHARS if declared.length <= TEXT_CHARS else EXTENDED_CHARS
    pieces = (f"SUBSTRB({{c}}, {n}, {RAW_BYTES})" for n in range(1, min(4 * declared.length, most) + 1, RAW_BYTES))
    return " || ".join(f"TO_CLOB(RAWTOHEX(UTL_RAW.CAST_TO_RAW({piece})))" for piece in pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedType:
    """One row of VENUS_TYPE_MAP: a column, and the type as which it is carried."""

    owner: str
    table: str
    column: str
    to: str

    @property
    def name(self) -> str:
        """The column as OWNER.TABLE.COLUMN."""
        return f"{self.owner}.{self.table}.{self.column}"


def type_map_table(version: Version) -> OracleOwnObject:
    """Return the definition of VENUS_TYPE_MAP, the table that stores the requested types."""
    return OracleOwnObject(
        kind="TABLE", name=TABLE, sql=statement("overrides", "table", name_bytes=str(version.identifier_bytes))
    )


def record_statements(recorded: RecordedType) -> Iterator[tuple[str, str]]:
    """Yield the statements that record the type of one column, in place of an earlier record."""
    parts = {"namespace": literal(recorded.owner), "name": literal(recorded.table), "column": literal(recorded.column)}
    yield f"column {recorded.column}: earlier record", statement("overrides", "forget", **parts)
    way = f"column {recorded.column} travels as {recorded.to}"
    yield way, statement("overrides", "record", to=literal(recorded.to), **parts)


def read_recorded_types(session: OracleSession) -> list[RecordedType]:
    """Return the types recorded by earlier installations; the table must exist."""
    rows = session.fetch_rows(statement("overrides", "recorded"))
    return [RecordedType(owner=r[0], table=r[1], column=r[2], to=r[3]) for r in rows]


def requested_types(type_map: Map[str, str], owner: str, table: str) -> dict[str, str]:
    """Return the types requested for the columns of a table by OWNER.TABLE.COLUMN or TABLE.COLUMN, in any case."""
    found = {}
    for name, to in type_map.items():
        if is_switch(normalise_switch(name)):
            continue
        place, _, column = name.upper().rpartition(".")
        if place in (table.upper(), f"{owner}.{table}".upper()):
            found[column] = to
    return found


def overrides_documentation() -> str:
    """Return the Markdown table of the types that can be requested, for docs/reference/oracle-types.md."""
    lines = ["| Oracle | requested as | read as | remarks |", "|---|---|---|---|"]
    for o in OVERRIDES:
        name = o.mapping.pattern.replace("|", " or ").replace(r"(\(\d\))?", "(n)").replace("N?", "[N]")
        read = o.mapping.select(OracleDeclaredType(data_type="T")).replace("{c}", "c")
        lines.append(f"| `{name.replace('(LOCAL )?', '[LOCAL] ')}` | `{o.to}` | `{read}` | {o.mapping.note} |")
    read = encoded_mapping(OracleDeclaredType(data_type="CHAR"), "latin-1").select(OracleDeclaredType(data_type="CHAR"))
    note = f"bytes in this encoding; others are refused; in a key up to {_SHORT_CHARS} characters"
    lines.append(f"| `CHAR or VARCHAR2` | `{ENCODED}ENCODING` | `{read.replace('{c}', 'c')}` | {note} |")
    return "\n".join(lines) + "\n"
