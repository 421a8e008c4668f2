"""What a target says of itself to whoever looks at it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from venus.conditions import AdapterCondition, TableCondition


def age_s(moment_us: int, now_us: int) -> float | None:
    """Return how long ago that was; None if it never was. Clocks of two machines may differ: never negative."""
    return max(0.0, (now_us - moment_us) / 1e6) if moment_us else None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetView:
    """A target; `error` says why nothing else is known."""

    name: str
    group: str
    error: str = ""
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
    #: When it became the application's own; empty = it follows the source.
    cut_over: str = ""
    #: What the broker had committed of each table by then.
    committed_at_cut: dict[int, int] = field(default_factory=dict)
    heartbeat_age_s: float | None = None  # how old the newest heartbeat is that has arrived: the lag from end to end
    tables: tuple[TargetTable, ...] = ()

    @property
    def condition(self) -> AdapterCondition:
        """Return how the tables stand, as the under adapter reports it."""
        return AdapterCondition.of(
            (TableCondition(table_id=t.table_id, name=t.name, state=t.state, reason=t.reason) for t in self.tables),
            paused=self.paused,
            quarantined=self.open_quarantine,
        )
