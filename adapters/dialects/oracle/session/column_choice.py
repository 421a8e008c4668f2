"""The choice of the columns that are carried: `[source.columns]`, invisible columns, archived rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from venus.adapters.dialects.column_choice import EXCLUDED
from venus.adapters.dialects.name_patterns import Patterns
from venus.adapters.dialects.oracle.names import ARCHIVE_STATE
from venus.model import LeftOut

Row = tuple[Any, ...]


def column_pattern_names(owner: str, table: str, column: str) -> tuple[str, str]:
    """Return the names of a column that patterns are compared with, in upper case."""
    return f"{owner}.{table}.{column}".upper(), f"{table}.{column}".upper()


@dataclass(frozen=True, slots=True)
class OracleColumnChoice:
    """The option `[source.columns]`: `include` overrides `exclude`, and adds columns not carried by default."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def choose(self, owner: str, table: str, rows: Seq[Row]) -> tuple[list[Row], list[LeftOut]]:
        """Divide a table's columns into those that are carried and those that are left out."""
        included = Patterns(p.upper() for p in self.include)
        excluded = Patterns(p.upper() for p in self.exclude)
        kept, left = [], []
        for row in rows:
            names = column_pattern_names(owner, table, row[0])
            if included.match(*names):
                kept.append(row)
            elif excluded.match(*names):
                left.append(LeftOut(what="column", name=row[0], definition=str(row[1]), reason=EXCLUDED))
            elif row[0] != ARCHIVE_STATE:
                kept.append(row)
        return kept, left

    def find_unmatched_patterns(self, names: Iterable[tuple[str, str]]) -> list[str]:
        """Return the patterns that match none of the columns; a column has two names."""
        known = list(names)
        return [p for p in (*self.include, *self.exclude) if not any(Patterns([p.upper()]).match(*n) for n in known)]
