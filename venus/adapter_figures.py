"""Figures that an adapter reports about its database: its place, row counts, fills and the last comparison.

Row counts come at a low rate from the database's own statistics, so they are shown as "about".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

#: How often the row counts are read, which takes one statement.
ROWS_EVERY_S = 60.0
VERDICTS = ("same", "different", "undecided")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFillFigures:
    """The rows of a table that a fill has read, and about how many there are."""

    table_id: int
    name: str
    rows: int
    rows_expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastComparison:
    """The last comparison of a target by `venus verify`."""

    ended_at_us: int
    verdict: str
    leg: str = ""
    tables: int = 0
    rows: int = 0
    different: int = 0
    undecided: int = 0
    #: Not every table, or not every row, was compared.
    partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFigures:
    """The figures of one database."""

    #: Database and host, never a user or a password.
    place: str = ""
    #: About how many rows each table has, by its number.
    rows: Mapping[int, int] = field(default_factory=dict)
    counted_at_us: int = 0
    fills: tuple[TableFillFigures, ...] = ()
    compared: LastComparison | None = None


def encode_comparison(compared: LastComparison) -> str:
    """Encode a comparison as the JSON text that a target stores."""
    return json.dumps(asdict(compared))


def decode_comparison(text: str | None) -> LastComparison | None:
    """Decode the text of `encode_comparison`; fields of a newer version are ignored."""
    if not text:
        return None
    found = json.loads(text)
    return LastComparison(**{name: found[name] for name in LastComparison.__slots__ if name in found})
