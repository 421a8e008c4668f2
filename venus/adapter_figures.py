"""What an adapter knows of its database beside the condition of its tables: where it is, and about how much is in it.

Figures are read at a low rate from the database's own statistics, so they are shown as "about".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

#: How often the rows are read: one statement.
ROWS_EVERY_S = 60.0
VERDICTS = ("same", "different", "undecided")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFillFigures:
    """How many rows of a table have been read, of about how many."""

    table_id: int
    name: str
    rows: int
    rows_expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
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
    """What is known of one database."""

    #: Database and host, never a user or a password.
    place: str = ""
    #: About how many rows each table has, by its number.
    rows: Mapping[int, int] = field(default_factory=dict)
    counted_at_us: int = 0
    fills: tuple[TableFillFigures, ...] = ()
    compared: Comparison | None = None


def comparison_to_text(compared: Comparison) -> str:
    """Return what a target keeps of its last comparison."""
    return json.dumps(asdict(compared))


def comparison_from_text(text: str | None) -> Comparison | None:
    """Read what `comparison_to_text` returned; fields of a newer version are passed over."""
    if not text:
        return None
    found = json.loads(text)
    return Comparison(**{name: found[name] for name in Comparison.__slots__ if name in found})
