"""What a comparison has to say: differences with their fault, what could not be decided, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from venus.codec.columns import Value


class Fault(Enum):
    """Which half of the way is to blame."""

    CAPTURE = "capture"  # the source has it, the full data has not: a trigger was off, a write went around it
    APPLY = "apply"  # the full data has it, the target has not: somebody wrote to the target
    BOTH = "both"


class Kind(Enum):
    """How a row differs, as seen from where it should come from."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERENT = "different"
    REPEATED = "repeated"  # several rows have its key: no unique index keeps them out


class Verdict(Enum):
    """The outcome, with its exit code."""

    SAME = 0
    DIFFERENT = 1
    UNDECIDED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDifference:
    """One column's values where they are known; bytes are hexadecimal in everything that is written."""

    column: str
    values: dict[str, Value]  # by place


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A row that is wrong."""

    table: str
    key: dict[str, str]
    kind: Kind
    fault: Fault
    columns: tuple[ColumnDifference, ...]
    #: The places that have the row.
    present: tuple[str, ...] = ()
    note: str = ""
    forms: tuple[str, ...] = ()  # the key as the comparison names it


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """A row that differs and may be on its way, or a table that could not be compared (key empty)."""

    table: str
    key: dict[str, str]
    reason: str


@dataclass(slots=True, kw_only=True)
class TableResult:
    """One table."""

    table: str
    leg: str = ""
    rows: int = 0
    moved: int = 0
    seconds: float = 0.0
    method: str = ""
    differences: list[Difference] = field(default_factory=list)
    undecided: list[Undecided] = field(default_factory=list)
    in_flight: int = 0  # differed between two snapshots, and were right for where each stood
    notes: list[str] = field(default_factory=list)
    #: The comparison stopped at the limit of differences; there may be more.
    cut_short: bool = False

    @property
    def verdict(self) -> Verdict:
        """Differences outweigh what is undecided; of rows that were not looked at nothing is known."""
        if self.differences:
            return Verdict.DIFFERENT
        return Verdict.UNDECIDED if self.undecided or self.cut_short else Verdict.SAME


@dataclass(slots=True, kw_only=True)
class Result:
    """All of it."""

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
    def verdict(self) -> Verdict:
        """The worst table's."""
        verdicts = {t.verdict for t in self.tables}
        return next((v for v in (Verdict.DIFFERENT, Verdict.UNDECIDED) if v in verdicts), Verdict.SAME)

    @property
    def differences(self) -> list[Difference]:
        """Of all tables."""
        return [d for t in self.tables for d in t.differences]

    @property
    def shippable(self) -> list[Difference]:
        """Those that can be mended by shipping the row again: of a repeated one there would be another copy."""
        return [d for d in self.differences if d.kind is not Kind.REPEATED]

    @property
    def undecided(self) -> list[Undecided]:
        """Of all tables."""
        return [u for t in self.tables for u in t.undecided]

    @property
    def cut_short(self) -> bool:
        """Whether a table was not compared to its end."""
        return any(t.cut_short for t in self.tables)

    @property
    def rows(self) -> int:
        """Rows compared."""
        return sum(t.rows for t in self.tables)

    @property
    def moved(self) -> int:
        """Rows, or keys with checksums, that left their database."""
        return sum(t.moved for t in self.tables)


def shown(value: Value) -> str | None:
    """Return a value as it is written."""
    return value.hex() if isinstance(value, bytes) else value
