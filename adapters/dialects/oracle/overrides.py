"""How a column can travel instead of its usual way, by table and column. A table; pure but for what reads it.

Three may ask: `[source.type_map]`, VENUS_TYPE_MAP at the source (what `install-triggers --type-map` has recorded), and
`--type-map` of the command itself; the later overrides the earlier. Exact or not at all here too: a value that does
not fit what was asked for halts its table by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Mapping as Map
from dataclasses import dataclass

from venus.adapters.dialects.oracle.connection import Session
from venus.adapters.dialects.oracle.ddl import Made
from venus.adapters.dialects.oracle.lobs import INLINE
from venus.adapters.dialects.oracle.names import literal
from venus.adapters.dialects.oracle.statements import statement
from venus.adapters.dialects.oracle.types import MOMENT, RAW_BYTES, Declared, Mapping, mapping_of
from venus.adapters.dialects.oracle.versions import Version
from venus.errors import ConfigError
from venus.model import Kind, LogicalType

#: The way back from what was asked for before.
USUAL = "usual"
TABLE = "VENUS_TYPE_MAP"
_NINE = f"{MOMENT}.FF9"
#: Instead of a column's name: all columns of a type. A single column's setting overrides it.
SWITCHES = {"RAW(16)": "uuid", "NUMBER(*,0)": "bigint"}
#: More digits than this need not fit a bigint.
BIGINT_DIGITS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One way that somebody can ask for."""

    to: str  # what stands in the configuration
    mapping: Mapping


def _as(
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
    mapping = Mapping(
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
    _as("boolean", "NUMBER", Kind.BOOL, "flag", note="0 and 1; anything else is refused"),
    _as(
        "bigint",
        "NUMBER",
        Kind.INT,
        "whole",
        length=8,
        log_type="NUMBER",
        note="whole numbers of 64 bits; anything else is refused; in a key too",
    ),
    _as("text", "NUMBER", Kind.TEXT, "number", note="its digits"),
    _as("date", "DATE", Kind.DATE, "day", select=f"TO_CHAR({{c}}, '{MOMENT}')", note="midnight only; else refused"),
    _as("text", r"TIMESTAMP(\(\d\))?", Kind.TEXT, "text", select=f"TO_CHAR({{c}}, '{_NINE}')", note="all nine digits"),
    _as(
        "text", _ZONED, Kind.TEXT, "text", select=f"TO_CHAR({{c}}, '{_NINE} TZR')", note="all nine digits and the zone"
    ),
    _as(
        "uuid",
        "RAW",
        Kind.UUID,
        "uuid",
        log_type=f"RAW({RAW_BYTES})",
        note="16 bytes; anything else is refused; in a key too",
    ),
    _as("json", "N?VARCHAR2", Kind.JSON, "text", note="the target refuses what is no JSON"),
    _as("json", "N?CLOB", Kind.JSON, "text", select=INLINE, located=True, note="the target refuses what is no JSON"),
)


def spelled(name: str) -> str:
    """Return a switch as it is listed, or a column's name as it was written."""
    bare = "".join(name.upper().split())
    return bare if bare in SWITCHES else name


def fits(switch: str, declared: Declared) -> bool:
    """Whether a column has the type that a switch is about."""
    if switch == "RAW(16)":
        return declared.data_type == "RAW" and declared.length == 16
    digits = declared.precision
    return declared.data_type == "NUMBER" and declared.scale == 0 and (digits is None or digits <= BIGINT_DIGITS)


def switched(type_map: Map[str, str], declared: Declared) -> str:
    """Return how a column travels by the switches alone. Raises ConfigError for another way than a switch's."""
    for name, to in type_map.items():
        switch = spelled(name)
        if switch in SWITCHES and to not in (SWITCHES[switch], USUAL):
            hint = f'the way there is: "{switch}" = "{SWITCHES[switch]}"'
            raise ConfigError(f"all columns of type {switch} cannot travel as {to!r}", hint=hint)
        if switch in SWITCHES and fits(switch, declared):
            return to
    return USUAL


def overridden(declared: Declared, to: str, column: str = "") -> Mapping:
    """Return how a type travels when asked for. Raises ConfigError with the ways there are."""
    if to == USUAL:
        return mapping_of(declared)
    ways = [o for o in OVERRIDES if re.fullmatch(o.mapping.pattern, declared.data_type)]
    for way in ways:
        if way.to == to:
            return way.mapping
    known = ", ".join([*(way.to for way in ways), USUAL])
    where = f"column {column}: " if column else ""
    raise ConfigError(f"{where}{declared.spelled} cannot travel as {to!r}", hint=f"ways there are: {known}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One row of VENUS_TYPE_MAP."""

    owner: str
    table: str
    column: str
    to: str

    @property
    def name(self) -> str:
        """OWNER.TABLE.COLUMN."""
        return f"{self.owner}.{self.table}.{self.column}"


def own_table(version: Version) -> Made:
    """Return the table that keeps what somebody asked for."""
    return Made(kind="TABLE", name=TABLE, sql=statement("overrides", "table", name_bytes=str(version.identifier_bytes)))


def rows_of(recorded: Recorded) -> Iterator[tuple[str, str]]:
    """Yield the statements that record one way, instead of what was recorded before."""
    parts = {
        "namespace": literal(recorded.owner), "name": literal(recorded.table), "column": literal(recorded.column)
    }  # fmt: skip
    yield f"column {recorded.column}: as recorded before", statement("overrides", "forget", **parts)
    way = f"column {recorded.column} travels as {recorded.to}"
    yield way, statement("overrides", "record", to=literal(recorded.to), **parts)


def read_recorded(session: Session) -> list[Recorded]:
    """Return what was asked for when the triggers were installed; the table must be there."""
    rows = session.rows(statement("overrides", "recorded"))
    return [Recorded(owner=r[0], table=r[1], column=r[2], to=r[3]) for r in rows]


def wanted(type_map: Map[str, str], owner: str, table: str) -> dict[str, str]:
    """Return what is asked for the columns of a table: OWNER.TABLE.COLUMN, or TABLE.COLUMN; case does not count."""
    found = {}
    for name, to in type_map.items():
        if spelled(name) in SWITCHES:
            continue
        place, _, column = name.upper().rpartition(".")
        if place in (table.upper(), f"{owner}.{table}".upper()):
            found[column] = to
    return found


def documentation() -> str:
    """Return the table of docs/oracle/TYPES.md."""
    lines = ["| Oracle | asked for | read as | remarks |", "|---|---|---|---|"]
    for o in OVERRIDES:
        name = o.mapping.pattern.replace("|", " or ").replace(r"(\(\d\))?", "(n)").replace("N?", "[N]")
        read = o.mapping.select(Declared(data_type="T")).replace("{c}", "c")
        lines.append(f"| `{name.replace('(LOCAL )?', '[LOCAL] ')}` | `{o.to}` | `{read}` | {o.mapping.note} |")
    return "\n".join(lines) + "\n"
