"""The options of an Oracle session: the limits of a cut, the choice of columns, the version. Pure.

A backlog above the limits becomes several cuts, each with one snapshot and without duplicate keys. If Oracle discards
the undo of a snapshot nevertheless (ORA-01555), the next cuts are smaller, and grow again as they succeed.

Differences between versions of Oracle have names: code tests a named difference, never a version number. Tests
generate and parse the statements for all versions in `VERSIONS`, and docs/oracle contains some of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from venus.adapters.dialects.column_choice import EXCLUDED, Patterns
from venus.adapters.dialects.oracle.sql import ARCHIVE_STATE
from venus.model import LeftOut

#: The smallest size of a cut.
ROWS_MIN = 100
#: The number of log rows whose keys one statement reads; a cut may end between two statements.
SLICE_ROWS = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CutLimits:
    """The configured limits of a cut: [capture] cut_rows_max, cut_bytes_max, cut_read_s."""

    rows_max: int = 1_000_000
    bytes_max: int = 1 << 30
    read_s: float = 300.0


@dataclass(slots=True)
class CutBounds:
    """The bounds of the next cut: its size, and the table with which it begins."""

    limits: CutLimits = field(default_factory=CutLimits)
    #: Log rows of a cut, and rows of a fill's chunk; 0 = as many as the settings allow.
    rows: int = 0
    #: Tables whose log rows the last cut read only in part: some of their keys may have been sent already.
    incomplete: set[int] = field(default_factory=set)
    #: Those of `incomplete` that were truncated: their logs still have entries for rows that no longer exist.
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
        """Whether a cut of this size and age has to end."""
        return nbytes >= self.limits.bytes_max or elapsed_s >= self.limits.read_s

    def order_tables(self, table_ids: Iterable[int]) -> list[int]:
        """Return the tables in the order in which this cut reads them."""
        return sorted(table_ids, key=lambda table_id: (table_id < self.first_table, table_id))


def slice_numbers(numbers: array[int]) -> Iterator[array[int]]:
    """Yield the numbers of a table's log rows in slices of SLICE_ROWS; each slice covers a range of its own."""
    ordered = numbers if len(numbers) <= SLICE_ROWS else array("q", sorted(numbers))
    for start in range(0, len(ordered), SLICE_ROWS):
        yield ordered[start : start + SLICE_ROWS]


Row = tuple[Any, ...]


def column_pattern_names(owner: str, table: str, column: str) -> tuple[str, str]:
    """Return the two upper-case names by which a pattern can match a column: with and without the owner."""
    return f"{owner}.{table}.{column}".upper(), f"{table}.{column}".upper()


@dataclass(frozen=True, slots=True)
class OracleColumnChoice:
    """The columns that `[source.columns]` chooses; `include` overrides `exclude`, and can add ORA_ARCHIVE_STATE."""

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
        """Return the patterns that match none of the columns, each of which is given by its two names."""
        known = list(names)
        return [p for p in (*self.include, *self.exclude) if not any(Patterns([p.upper()]).match(*n) for n in known)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A range of versions of Oracle that behave alike for VENUS."""

    name: str
    since: tuple[int, int]
    #: The greatest length of the names of the application's tables and columns.
    identifier_bytes: int
    #: Invisible columns and identities exist: a table without a key can get a RECORDID.
    invisible_identity: bool
    #: Columns have their own collation (ALL_TAB_COLS.COLLATION).
    column_collation: bool
    #: Blockchain tables exist, since an update of 19c.
    ledgers: bool = False
    #: A database may be a container, or one of its pluggable databases.
    containers: bool = True
    #: Triggers can be created outside of editions.
    noneditionable: bool = True
    #: A release update changes PRODUCT_COMPONENT_VERSION.VERSION_FULL.
    full_version: bool = False
    #: DBA_REGISTRY_SQLPATCH lists the patches.
    patch_registry: bool = True
    #: Privileges can be granted on a schema.
    schema_privileges: bool = False
    #: ALTER SEQUENCE continues a sequence at any number.
    restarts_sequences: bool = False


VERSIONS = (
    Version(
        name="11.2",
        since=(11, 2),
        identifier_bytes=30,
        invisible_identity=False,
        column_collation=False,
        containers=False,
        noneditionable=False,
        patch_registry=False,
    ),
    Version(name="12.1", since=(12, 1), identifier_bytes=30, invisible_identity=True, column_collation=False),
    Version(name="12.2", since=(12, 2), identifier_bytes=128, invisible_identity=True, column_collation=True),
    Version(
        name="19c",
        since=(18, 0),
        identifier_bytes=128,
        invisible_identity=True,
        column_collation=True,
        ledgers=True,
        full_version=True,
        restarts_sequences=True,
    ),
    Version(
        name="23ai",
        since=(23, 0),
        identifier_bytes=128,
        invisible_identity=True,
        column_collation=True,
        ledgers=True,
        full_version=True,
        restarts_sequences=True,
        schema_privileges=True,
    ),
)


def version_of(text: str) -> Version | None:
    """Return the range that a server's version ("19.3.0.0.0") belongs to; None if it is older than all."""
    number = tuple(int(part) for part in text.split(".")[:2])
    fitting = [v for v in VERSIONS if v.since <= number]
    return fitting[-1] if fitting else None


def find_version(name: str) -> Version:
    """Return the version of that name."""
    return next(v for v in VERSIONS if v.name == name)
