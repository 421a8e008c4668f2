"""What a target says of itself to whoever looks at it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from venus.adapter_figures import AdapterFigures, Comparison
from venus.conditions import AdapterCondition, TableCondition
from venus.model import counted


def age_s(moment_us: int, now_us: int) -> float | None:
    """Return how long ago that was; None if it never was. Clocks of two machines may differ: never negative."""
    return max(0.0, (now_us - moment_us) / 1e6) if moment_us else None


def rows_where(predicate: str) -> str:
    """Return which rows those are, for people."""
    return f"the rows where {predicate}" if predicate else "every row"


def rows_shown(predicate: str, before: str | None, brought: int, removed: int) -> str:
    """Say which rows a table gets, and how a change of that goes or went; empty = every row, and always has."""
    if before is not None:
        return f"{rows_where(predicate)}; until now {rows_where(before)}, what differs is being added and removed"
    if brought or removed:
        return (
            f"{rows_where(predicate)}; the last change of that added {counted(brought, 'row')} and removed {removed:,}"
        )
    return rows_where(predicate) if predicate else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """A table at a target."""

    table_id: int
    name: str
    state: str
    reason: str = ""
    held_from: int | None = None
    rows_applied: int = 0
    quarantined: int = 0
    skipped: int = 0
    held: int = 0
    #: Which rows it gets; empty = every row. `predicate_before` = what that was until the change under way.
    predicate: str = ""
    predicate_before: str | None = None
    #: What the configuration says, where no `venus sync` has taken that over yet.
    predicate_configured: str | None = None
    #: By the last change of the predicate.
    rows_brought: int = 0
    rows_removed: int = 0
    #: Which indexes, checks and foreign keys are not the source's by now, one line each with what to run there.
    differs: tuple[str, ...] = ()

    @property
    def rows_shown(self) -> str:
        """Say which rows it gets, in words; empty = every row, and always has."""
        text = rows_shown(self.predicate, self.predicate_before, self.rows_brought, self.rows_removed)
        if self.predicate_configured is not None and not text:
            text = rows_where("")
        if self.predicate_configured is not None:
            text += (
                f"; configured is {rows_where(self.predicate_configured)}, which `venus sync` takes over at its start"
            )
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetView:
    """A target; `error` says why nothing else is known."""

    name: str
    group: str
    error: str = ""
    #: Database and host, or the folder.
    place: str = ""
    loaded: bool = False
    paused: bool = False
    offset: int = 0
    applied_sequence: int = 0
    applied_age_s: float | None = None
    open_quarantine: int = 0
    #: Committed changes below the offset that are neither applied nor quarantined, skipped or held.
    unaccounted_rows: int = 0
    constraints: str = ""  # whether foreign keys and triggers are off while VENUS applies
    note: str = ""
    #: The last comparison by `venus verify`.
    compared: Comparison | None = None
    #: When it became the application's own; empty = it follows the source.
    cut_over: str = ""
    #: What the broker had committed of each table by then.
    committed_at_cut: dict[int, int] = field(default_factory=dict)
    heartbeat_age_s: float | None = None  # how old the newest heartbeat is that has arrived: the lag from end to end
    heartbeat_at_us: int = 0  # when that was, by the source's clock
    tables: tuple[TargetTable, ...] = ()
    #: What waits for a lock that somebody else holds.
    waiting: tuple[TableCondition, ...] = ()

    @property
    def condition(self) -> AdapterCondition:
        """Return how the tables stand, as the under adapter reports it."""
        tables = (
            TableCondition(
                table_id=t.table_id,
                name=t.name,
                state=t.state,
                reason=t.reason,
                quarantined=t.quarantined,
                rows=t.rows_shown,
            )
            for t in self.tables
        )
        return AdapterCondition.of(
            (*self.waiting, *tables),
            paused=self.paused,
            quarantined=self.open_quarantine,
            cut_over=self.cut_over,
            figures=AdapterFigures(place=self.place, compared=self.compared),
        )  # fmt: skip
