"""Findings of a comparison: differences with their fault, undecided rows, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from venus.codec.columns import Value


class Fault(Enum):
    """The part of the way that caused a difference."""

    CAPTURE = "capture"  # the source has it, the full data has not: a trigger was off, a write went around it
    APPLY = "apply"  # full data and target differ: the target was written to
    BOTH = "both"


class DifferenceKind(Enum):
    """How a row differs, as seen from the side that it should come from."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERENT = "different"
    REPEATED = "repeated"  # several rows have its key: no unique index keeps them out


class ComparisonVerdict(Enum):
    """Outcome of a comparison; the value is the exit code."""

    SAME = 0
    DIFFERENT = 1
    UNDECIDED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDifference:
    """Values of one column on the sides where they are known; output shows bytes in hexadecimal."""

    column: str
    values: dict[str, Value]  # by place


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """A wrong row."""

    table: str
    key: dict[str, str]
    kind: DifferenceKind
    fault: Fault
    columns: tuple[ColumnDifference, ...]
    #: The sides that have the row.
    present: tuple[str, ...] = ()
    note: str = ""
    forms: tuple[str, ...] = ()  # the key as the comparison names it


@dataclass(frozen=True, slots=True, kw_only=True)
class UndecidedRow:
    """A row that differs and may be on its way, or a table that could not be compared (key empty)."""

    table: str
    key: dict[str, str]
    reason: str


@dataclass(slots=True, kw_only=True)
class TableResult:
    """Result of one table."""

    table: str
    leg: str = ""
    rows: int = 0
    moved: int = 0
    seconds: float = 0.0
    method: str = ""
    differences: list[RowDifference] = field(default_factory=list)
    undecided: list[UndecidedRow] = field(default_factory=list)
    in_flight: int = 0  # differed between two snapshots, and were right for the position of each
    notes: list[str] = field(default_factory=list)
    #: The comparison stopped at the limit of differences; there may be more.
    cut_short: bool = False

    @property
    def verdict(self) -> ComparisonVerdict:
        """The verdict: differences outweigh undecided rows, and rows not compared are undecided."""
        if self.differences:
            return ComparisonVerdict.DIFFERENT
        return ComparisonVerdict.UNDECIDED if self.undecided or self.cut_short else ComparisonVerdict.SAME


@dataclass(slots=True, kw_only=True)
class VerifyResult:
    """Result of a comparison."""

    business: str
    target: str
    leg: str
    tables: list[TableResult] = field(default_factory=list)
    seconds: float = 0.0
    started_at: str = ""
    version: str = ""
    sample: float = 1.0
    where: str = ""
    notes: list[str] = field(default_factory=list)
    #: Tables that the patterns choose and that are not captured, each with the reason.
    not_compared: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> ComparisonVerdict:
        """The worst verdict of a table."""
        verdicts = {t.verdict for t in self.tables}
        return next(
            (v for v in (ComparisonVerdict.DIFFERENT, ComparisonVerdict.UNDECIDED) if v in verdicts),
            ComparisonVerdict.SAME,
        )

    @property
    def differences(self) -> list[RowDifference]:
        """Of all tables."""
        return [d for t in self.tables for d in t.differences]

    @property
    def shippable(self) -> list[RowDifference]:
        """Differences that shipping the row again repairs; a repeated row would get another copy."""
        return [d for d in self.differences if d.kind is not DifferenceKind.REPEATED]

    @property
    def undecided(self) -> list[UndecidedRow]:
        """Of all tables."""
        return [u for t in self.tables for u in t.undecided]

    @property
    def cut_short(self) -> bool:
        """Whether a table was not compared to its end."""
        return any(t.cut_short for t in self.tables)

    @property
    def rows(self) -> int:
        """The number of rows compared."""
        return sum(t.rows for t in self.tables)

    @property
    def moved(self) -> int:
        """The number of rows, or keys with checksums, that left their database."""
        return sum(t.moved for t in self.tables)


def value_text(value: Value) -> str | None:
    """Format a value for output."""
    return value.hex() if isinstance(value, bytes) else value
