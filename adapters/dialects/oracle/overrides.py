"""How a column can travel instead of its usual way: `[source.type_map]`, by table and column. A table; pure.

Exact or not at all here too: a value that does not fit what was asked for stops the capture of it by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping as Map
from dataclasses import dataclass

from venus.adapters.dialects.oracle.types import MOMENT, Declared, Mapping
from venus.errors import ConfigError
from venus.model import Kind, LogicalType

_NINE = f"{MOMENT}.FF9"


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One way that somebody can ask for."""

    to: str  # what stands in the configuration
    mapping: Mapping


def _as(to: str, pattern: str, kind: Kind, text: str, *, select: str = "{c}", length: int = 0, note: str) -> Override:
    mapping = Mapping(
        pattern=pattern,
        becomes=kind.name,
        logical=lambda _: LogicalType(kind=kind, length=length),
        select=lambda _: select,
        text=text,
        note=note,
    )
    return Override(to=to, mapping=mapping)


_ZONED = r"TIMESTAMP(\(\d\))? WITH (LOCAL )?TIME ZONE"

OVERRIDES = (
    _as("boolean", "NUMBER", Kind.BOOL, "flag", note="0 and 1; anything else is refused"),
    _as("bigint", "NUMBER", Kind.INT, "whole", length=8, note="whole numbers of 64 bits; anything else is refused"),
    _as("text", "NUMBER", Kind.TEXT, "number", note="its digits"),
    _as("date", "DATE", Kind.DATE, "day", select=f"TO_CHAR({{c}}, '{MOMENT}')", note="midnight only; else refused"),
    _as("text", r"TIMESTAMP(\(\d\))?", Kind.TEXT, "text", select=f"TO_CHAR({{c}}, '{_NINE}')", note="all nine digits"),
    _as(
        "text", _ZONED, Kind.TEXT, "text", select=f"TO_CHAR({{c}}, '{_NINE} TZR')", note="all nine digits and the zone"
    ),
    _as("uuid", "RAW", Kind.UUID, "uuid", note="16 bytes; anything else is refused"),
    _as("json", "N?VARCHAR2|N?CLOB", Kind.JSON, "text", note="the target refuses what is no JSON"),
)


def overridden(declared: Declared, to: str) -> Mapping:
    """Return how a type travels when asked for. Raises ConfigError with the ways there are."""
    ways = [o for o in OVERRIDES if re.fullmatch(o.mapping.pattern, declared.data_type)]
    for way in ways:
        if way.to == to:
            return way.mapping
    known = ", ".join(way.to for way in ways) or "none"
    raise ConfigError(f"[source.type_map]: {declared.spelled} cannot travel as {to!r}", hint=f"ways there are: {known}")


def wanted(type_map: Map[str, str], owner: str, table: str) -> dict[str, str]:
    """Return what is asked for the columns of a table: OWNER.TABLE.COLUMN, or TABLE.COLUMN; case does not count."""
    found = {}
    for name, to in type_map.items():
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
