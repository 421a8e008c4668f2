"""How much one cut of an Oracle source takes: rows, bytes and time, so that its snapshot outlives its undo. Pure.

A backlog that is larger becomes several cuts, each of one snapshot and none with a key twice. When the undo was gone
all the same (ORA-01555), the next cuts are smaller, and grow again as they succeed. Time is an argument.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

#: No cut is made smaller than this.
ROWS_MIN = 100
#: Log rows whose keys are read with one statement; between two statements a cut may end.
SLICE_ROWS = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the settings allow: [capture] cut_rows_max, cut_bytes_max, cut_read_s."""

    rows_max: int = 1_000_000
    bytes_max: int = 1 << 30
    read_s: float = 300.0


@dataclass(slots=True)
class Bounds:
    """What the next cut may take, and where it begins."""

    limits: Limits = field(default_factory=Limits)
    #: Log rows of a cut, and rows of a fill's chunk; 0 = as many as the settings allow.
    rows: int = 0
    #: Tables of which the last cut has left log rows behind: keys of theirs may have been sent already.
    behind: set[int] = field(default_factory=set)
    #: Those of them that were truncated: rows are gone of which only log rows are left.
    emptied: set[int] = field(default_factory=set)
    #: The table that the next cut begins with, so that none waits for ever behind a busy one.
    turn: int = 0

    def __post_init__(self) -> None:
        self.rows = self.rows or self.limits.rows_max

    def lost(self, rows: int) -> None:
        """Take a quarter of what this cut had taken when its snapshot was gone."""
        self.rows = max(ROWS_MIN, min(self.rows, max(rows, 1)) // 4)

    def succeeded(self) -> None:
        """Let the next cut be twice as large, up to what the settings allow."""
        self.rows = min(self.limits.rows_max, self.rows * 2)

    def is_full(self, nbytes: int, elapsed_s: float) -> bool:
        """Whether a cut ends after so much."""
        return nbytes >= self.limits.bytes_max or elapsed_s >= self.limits.read_s

    def in_turn(self, table_ids: Iterable[int]) -> list[int]:
        """Return the tables in the order in which this cut takes them."""
        return sorted(table_ids, key=lambda table_id: (table_id < self.turn, table_id))


def slices(numbers: array[int]) -> Iterator[array[int]]:
    """Yield a table's log rows in ranges of their numbers."""
    ordered = numbers if len(numbers) <= SLICE_ROWS else array("q", sorted(numbers))
    for start in range(0, len(ordered), SLICE_ROWS):
        yield ordered[start : start + SLICE_ROWS]
