"""The limits of one cut of an Oracle source in rows, bytes and time, so that its undo outlives its snapshot. Pure.

A larger backlog becomes several cuts, each with one snapshot and without duplicate keys. If the undo is lost all the
same (ORA-01555), the next cuts are smaller and grow again as they succeed. Time is an argument.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

#: The smallest size of a cut.
ROWS_MIN = 100
#: The number of log rows whose keys one statement reads; a cut may end between two statements.
SLICE_ROWS = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CutLimits:
    """The limits of the settings: [capture] cut_rows_max, cut_bytes_max, cut_read_s."""

    rows_max: int = 1_000_000
    bytes_max: int = 1 << 30
    read_s: float = 300.0


@dataclass(slots=True)
class CutBounds:
    """The size of the next cut, and the table with which it begins."""

    limits: CutLimits = field(default_factory=CutLimits)
    #: Log rows of a cut, and rows of a fill's chunk; 0 = as many as the settings allow.
    rows: int = 0
    #: Tables whose log rows the last cut read only in part: some of their keys may have been sent already.
    incomplete: set[int] = field(default_factory=set)
    #: The truncated ones among them: log rows remain of rows that are gone.
    emptied: set[int] = field(default_factory=set)
    #: The table with which the next cut begins, so that no table waits for ever behind a busy one.
    first_table: int = 0

    def __post_init__(self) -> None:
        self.rows = self.rows or self.limits.rows_max

    def record_lost_snapshot(self, rows: int) -> None:
        """Reduce the next cut to a quarter of what this cut had read when its snapshot was lost."""
        self.rows = max(ROWS_MIN, min(self.rows, max(rows, 1)) // 4)

    def record_success(self) -> None:
        """Double the size of the next cut, up to the limit of the settings."""
        self.rows = min(self.limits.rows_max, self.rows * 2)

    def is_full(self, nbytes: int, elapsed_s: float) -> bool:
        """Whether a cut of this size and age ends."""
        return nbytes >= self.limits.bytes_max or elapsed_s >= self.limits.read_s

    def order_tables(self, table_ids: Iterable[int]) -> list[int]:
        """Return the tables in the order in which this cut reads them."""
        return sorted(table_ids, key=lambda table_id: (table_id < self.first_table, table_id))


def slice_numbers(numbers: array[int]) -> Iterator[array[int]]:
    """Yield the numbers of a table's log rows in ranges."""
    ordered = numbers if len(numbers) <= SLICE_ROWS else array("q", sorted(numbers))
    for start in range(0, len(ordered), SLICE_ROWS):
        yield ordered[start : start + SLICE_ROWS]
