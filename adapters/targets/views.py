"""The state of a target as commands and status show it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from venus.model import count_phrase
from venus.rpc.conditions import AdapterCondition, AdapterFigures, LastComparison, TableCondition


def age_s(moment_us: int, now_us: int) -> float | None:
    """Return the age of a moment; None if there was none. The age is never negative, even if two clocks differ."""
    return max(0.0, (now_us - moment_us) / 1e6) if moment_us else None


def describe_rows(predicate: str) -> str:
    """Return a text that describes the rows that a predicate selects."""
    return f"the rows where {predicate}" if predicate else "every row"


def describe_selection(predicate: str, before: str | None, brought: int, removed: int) -> str:
    """Describe the rows that a table gets and how its predicate last changed; empty = every row since the start."""
    if before is not None:
        return (
            f"{describe_rows(predicate)}; previously {describe_rows(before)}, the difference is being added and removed"
        )
    if brought or removed:
        return (
            f"{describe_rows(predicate)}; the last change of that added {count_phrase(brought, 'row')} and "
            f"removed {removed:,}"
        )
    return describe_rows(predicate) if predicate else ""


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
    #: Changes in quarantine that wait for a decision.
    refused: int = 0
    skipped: int = 0
    held: int = 0
    #: Selects the rows that it gets; empty = every row. `predicate_before`: the old one while a change is in progress.
    predicate: str = ""
    predicate_before: str | None = None
    #: The configured predicate, until `venus sync` puts it in force.
    predicate_configured: str | None = None
    #: Rows added and removed by the last change of the predicate.
    rows_brought: int = 0
    rows_removed: int = 0
    #: Indexes, checks and foreign keys that differ from the source's, one line each with the statement to run.
    differs: tuple[str, ...] = ()
    #: Columns that are masked, renamed or dropped here, and the masking key's id, as text; empty = none.
    columns: str = ""

    @property
    def rows_shown(self) -> str:
        """Text that describes the rows that the table gets; empty = every row since the start."""
        text = describe_selection(self.predicate, self.predicate_before, self.rows_brought, self.rows_removed)
        if self.predicate_configured is not None and not text:
            text = describe_rows("")
        if self.predicate_configured is not None:
            text += (
                f"; configured is {describe_rows(self.predicate_configured)}, which `venus sync` applies at its start"
            )
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetView:
    """The state of a target; `error` is the reason why the rest is unknown."""

    name: str
    group: str
    error: str = ""
    #: Database and host, or the folder.
    place: str = ""
    loaded: bool = False
    #: Number of rows that an unfinished load has loaded so far; None if no load is unfinished.
    loading_rows: int | None = None
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
    compared: LastComparison | None = None
    #: When it was handed over to the application; empty = it follows the source.
    cut_over: str = ""
    #: How many changes of each table the broker had committed by then.
    committed_at_cut: dict[int, int] = field(default_factory=dict)
    heartbeat_age_s: float | None = None  # age of the newest heartbeat that has arrived: the lag from end to end
    heartbeat_at_us: int = 0  # its time, by the source's clock
    tables: tuple[TargetTable, ...] = ()
    #: Tables whose changes wait for a lock of another session.
    waiting: tuple[TableCondition, ...] = ()

    @property
    def condition(self) -> AdapterCondition:
        """The condition of the tables as the apply process reports it."""
        tables = (
            TableCondition(
                table_id=t.table_id,
                name=t.name,
                state=t.state,
                reason=t.reason,
                quarantined=t.refused,
                rows=t.rows_shown,
                columns=t.columns,
            )
            for t in self.tables
        )
        return AdapterCondition.of(
            (*self.waiting, *tables),
            paused=self.paused,
            quarantined=self.open_quarantine,
            cut_over=self.cut_over,
            figures=AdapterFigures(place=self.place, compared=self.compared),
        )
