"""Report of an adapter to the broker: the state of its tables, its figures, and sentences about problems.

`venus status` builds these from the databases that it asks. The broker keeps what the adapters report, for its page,
metrics, health and alarms. All of them use the same sentences. Row counts come at a low rate from the database's own
statistics, so they are shown as "about".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field

from venus.model import count_phrase
from venus.network.topology import PULLS_AS

#: How often the row counts are read, which takes one statement.
ROWS_EVERY_S = 60.0
VERDICTS = ("same", "different", "undecided")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFillFigures:
    """The rows of a table that a fill has read, and the approximate number of all its rows."""

    table_id: int
    name: str
    rows: int
    rows_expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastComparison:
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
    """Row counts, the progress of fills and the last comparison of one database."""

    #: Database and host, never a user or a password.
    place: str = ""
    #: About how many rows each table has, by its number.
    rows: Mapping[int, int] = field(default_factory=dict)
    counted_at_us: int = 0
    fills: tuple[TableFillFigures, ...] = ()
    compared: LastComparison | None = None
    #: About how often capture compares the source's dictionary with the registry; 0 = not known.
    compares_every_s: int = 0


def encode_comparison(compared: LastComparison) -> str:
    """Encode a comparison as the JSON text that a target stores."""
    return json.dumps(asdict(compared))


def decode_comparison(text: str | None) -> LastComparison | None:
    """Decode the text of `encode_comparison`; fields of a newer version are ignored."""
    if not text:
        return None
    found = json.loads(text)
    return LastComparison(**{name: found[name] for name in LastComparison.__slots__ if name in found})


ACTIVE = "ACTIVE"  # every change is applied at once
RESYNCING = "RESYNCING"  # it is being made equal to the full data
#: At the source: the removal of a table from capture waits for the rest of its log (RELEASING), or is complete.
RELEASING, RELEASED = "RELEASING", "RELEASED"
#: States in which a table makes progress by itself; every other needs an operator.
MOVING_STATES = (ACTIVE, "CATCHUP", "LOADING", RESYNCING)
NO_FIGURES = AdapterFigures()
#: The beginning of the reason of a table that is PAUSED at the source because of a row; capture retries the row.
UNFIT = "cannot be carried: "
#: The beginning of the reason of a table that the source's user may no longer read.
UNREADABLE = "may not be read: "
#: The beginning of the reason of a table of VENUS that the source's user may not use.
UNUSABLE = "may not be used: "
#: The beginning of the reason of a table that no longer exists at the source.
GONE = "the table is gone"
#: The beginning of the reason of a table at a target whose requested resync has failed.
RESYNC_FAILED = "resync failed: "
#: The beginning of the reason of a table at the source whose fill ships only what differs from the full data.
COMPARED = "compared with the broker's full data"
#: At the source: the patterns match the table, but it is not captured. If it cannot be captured, the reason says why.
NOT_CAPTURED = "NOT_CAPTURED"
#: The words after the name of a table that is not captured.
MATCHES = "matches the patterns and"
#: The beginning of the reason of a table that keeps its rows until a resync has made it equal to the full data.
STARTING_OVER = "it is being made equal to the full data: its changes"
#: The reason of a table whose rules for columns have changed.
COLUMNS_CHANGED = "it is being made equal to the full data: the rules for its columns have changed"
#: Its changes wait for a lock of another session.
WAITING = "WAITING"
#: The switch of the application between two databases is not finished; the reason says so, with the remedy.
SWITCHING = "SWITCHING"
#: Always in the metrics, so that the graph of each state starts at zero.
HELD_STATES = ("HALTED", "PAUSED", "RESYNC")
#: A healthy idle source is captured once per heartbeat. This many missing heartbeats are a fault.
HEARTBEATS_LATE = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCondition:
    """Condition of a table at the source or at a target."""

    table_id: int
    name: str
    state: str = ACTIVE
    reason: str = ""
    #: The number of its changes in quarantine.
    quarantined: int = 0
    #: The rows that a target gets, in words; empty = every row.
    rows: str = ""
    #: The columns that a target gets masked, renamed or not at all, in words; empty = none.
    columns: str = ""

    @property
    def is_following(self) -> bool:
        """Whether changes of the table are applied as they come: it is active and has no quarantined rows."""
        return self.state == ACTIVE and not self.quarantined

    @property
    def is_ordinary(self) -> bool:
        """Whether there is nothing to report about the table."""
        return self.is_following and not self.rows and not self.columns and not self.has_failed_resync

    @property
    def has_failed_resync(self) -> bool:
        """Whether its changes are applied, but a requested resync has failed."""
        return self.state == ACTIVE and self.reason.startswith(RESYNC_FAILED)


def source_condition(table_id: int, name: str, state: str, reason: str) -> TableCondition:
    """Return the condition of a registered table; one that VENUS halted differs from one that an operator paused."""
    halted = state == "PAUSED" and reason.startswith((UNFIT, UNREADABLE))
    return TableCondition(table_id=table_id, name=name, state="HALTED" if halted else state, reason=reason)


def own_table_condition(name: str, grant: str) -> TableCondition:
    """Return the condition of a table of VENUS that the source's user may not use: capture waits for `grant`."""
    reason = f"{UNUSABLE}nothing is captured until `{grant}`; then capture continues by itself"
    return TableCondition(table_id=0, name=name, state="HALTED", reason=reason)


def uncaptured_condition(name: str, obstacle: str) -> TableCondition:
    """Return the condition of a table that the patterns match and that is not captured; `obstacle` says why."""
    return TableCondition(table_id=0, name=name, state=NOT_CAPTURED, reason=obstacle)


def uncaptured_problem(name: str, obstacle: str) -> str:
    """Return the sentence that a matching table is not captured, with the remedy."""
    leaves_out = "`source.exclude` of the configuration leaves it out"
    if obstacle:
        return (
            f"{name} {MATCHES} cannot be captured: {obstacle}; `venus check` says what to do, then `venus "
            f"install-triggers` captures it; or {leaves_out}"
        )
    return f"{name} {MATCHES} is not captured: `venus install-triggers` captures it, or {leaves_out}"


def locked_condition(name: str, holder: str) -> TableCondition:
    """Return the condition of a table at the source for which cuts wait, because another session has it locked."""
    return TableCondition(table_id=0, name=name, state=WAITING, reason=f"for a lock of {holder}")


def switch_conditions(advice: str) -> tuple[TableCondition, ...]:
    """Return the condition that reports an unfinished cut-over with its `advice`; none without advice."""
    return (TableCondition(table_id=0, name="switch", state=SWITCHING, reason=advice),) if advice else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCondition:
    """The condition of one adapter: its tables that are not ordinary."""

    paused: bool = False
    #: When the application took over the target, after which VENUS no longer writes to it; empty = VENUS writes to it.
    cut_over: str = ""
    tables: tuple[TableCondition, ...] = ()
    #: The number of further tables with changes that are not applied, beyond the limit of a report.
    left_out: int = 0
    #: The number of changes in quarantine, of all tables.
    quarantined: int = 0
    figures: AdapterFigures = NO_FIGURES

    @classmethod
    def of(
        cls,
        tables: Iterable[TableCondition],
        *,
        paused: bool = False,
        quarantined: int = 0,
        cut_over: str = "",
        figures: AdapterFigures = NO_FIGURES,
    ) -> AdapterCondition:
        """Build a condition from the tables that are not ordinary.

        Those that need an operator come first, and among these the uncaptured ones last.
        """
        reported = sorted(
            (t for t in tables if not t.is_ordinary),
            key=lambda t: (t.state in MOVING_STATES, t.state == NOT_CAPTURED, t.name),
        )
        return cls(paused=paused, tables=tuple(reported), quarantined=quarantined, cut_over=cut_over, figures=figures)


def problems(condition: AdapterCondition, target: str = "") -> list[str]:
    """Return a sentence for each problem that needs an operator, with the remedy; no `target` = at the source."""
    if condition.cut_over:
        return []
    where, at = (f"target {target}", f" --target {target}") if target else ("source", "")
    found = [f"{where}: paused; `venus resume{at}` resumes it"] if condition.paused else []
    found += [f"{where}: {text}" for table in condition.tables if (text := _describe_problem(table, at))]
    if condition.left_out:
        verb = "does" if condition.left_out == 1 else "do"
        tables = count_phrase(condition.left_out, "more table")
        found.append(f"{where}: {tables} {verb} not follow; `venus status` lists them")
    # the refused change of a halted table is reported with the table
    waiting = condition.quarantined - sum(t.quarantined for t in condition.tables if t.state == "HALTED")
    if waiting > 0:
        verb = "waits" if waiting == 1 else "wait"
        found.append(f"{where}: {count_phrase(waiting, 'refused change')} {verb}; see `venus quarantine list{at}`")
    if target and (compared := condition.figures.compared) is not None and compared.verdict == "different":
        rows = count_phrase(compared.different, "row")
        way_out = f"`venus verify{at} --repair` ships differing rows again"
        found.append(f"{where}: the last comparison found {rows} different; {way_out}")
    return found


def _describe_problem(table: TableCondition, at: str) -> str:
    """Return the problem of a table that needs an operator, with its solution; empty = there is none.

    A RELEASED table is no problem: an operator released the table, and `released_tables` reports it.
    """
    way_out = _find_remedy(table, at)
    if table.state == NOT_CAPTURED:
        return uncaptured_problem(table.name, table.reason)
    if table.state == SWITCHING:
        return table.reason
    if table.has_failed_resync:
        return f"{table.name}: {table.reason}; {way_out}".rstrip("; ")
    if table.state in MOVING_STATES or table.state == RELEASED:
        return ""
    why = f" ({table.reason})" if table.reason else ""
    return f"{table.name} is {table.state}{why}; {way_out}".rstrip("; ")


def apply_problems(
    target: str, *, connected: bool, backlog_rows: int, late_s: float, late_max_s: float
) -> Iterator[str]:
    """Yield the problem on the way to a target: apply is not connected, or it lags."""
    where = f"broker -> target {target}"
    late = backlog_rows and late_s > late_max_s
    behind = f"{count_phrase(backlog_rows, 'change')} behind, the oldest {late_s:,.0f} s"
    if not connected:
        yield f"{where}: apply is not connected{f', {behind}' if late else ''}; is `venus sync` running?"
    elif late:
        yield f"{where}: {behind}"


def released_tables(condition: AdapterCondition) -> list[str]:
    """Return a sentence for each table that was removed from capture: a reminder, not a problem."""
    return [
        f"{table.name} is not captured any more{f' ({table.reason})' if table.reason else ''}: broker and targets keep "
        "its rows as they were captured last; `venus install-triggers` takes it up again"
        for table in condition.tables
        if table.state == RELEASED
    ]


def unaccounted_problem(rows: int, target: str) -> str:
    """Return the sentence that changes are not at the target although its offset has passed them."""
    verb = "is" if rows == 1 else "are"
    return (
        f"target {target}: {count_phrase(rows, 'change')} below its offset {verb} unaccounted for; "
        f"`venus resync --all --target {target}` makes it equal to the full data"
    )


def _find_remedy(table: TableCondition, at: str) -> str:
    """Return what the operator can do, unless the reason names it; `at` is the option for the target, if any."""
    if "`venus " in table.reason or table.reason.startswith((UNREADABLE, UNUSABLE)):
        return ""
    if table.state == "HALTED" and not table.reason.startswith(RESYNC_FAILED):
        at_source = "correct the row; it is retried automatically; or exclude its column in [source.columns]"
        return f"`venus quarantine list{at}` shows the row" if at else at_source
    if table.state == WAITING:
        return "let that transaction end, or have a DBA end its session"
    if table.state == "PAUSED":
        return f"`venus resume {table.name}{at}` resumes it"
    if table.state == RELEASING:
        return f"`venus uninstall-triggers {table.name}` finishes that"
    if table.reason.startswith(RESYNC_FAILED):
        return f"`venus resync {table.name}{at}` tries again"
    if table.reason.startswith(GONE):
        return missing_table_advice(table.name)
    return f"`venus resync {table.name}{at}` reads it again" if table.state == "RESYNC" else ""


def missing_table_advice(name: str) -> str:
    """Return what to do about a captured table that no longer exists."""
    return (
        f"`venus uninstall-triggers {name}` takes it out of capture; if it was renamed, `venus install-triggers` "
        "captures it under its new name"
    )


def set_problems(group: str, *, connected: bool, backlog_rows: int, late_s: float, late_max_s: float) -> Iterator[str]:
    """Yield the problem of a broker set below, as seen by the set that it replicates from."""
    where = f"broker -> set {group.removeprefix(PULLS_AS)}"
    late = backlog_rows and late_s > late_max_s
    behind = f"{count_phrase(backlog_rows, 'change')} behind, the oldest {late_s:,.0f} s"
    if not connected:
        state = f"it does not pull{f', {behind}' if late else ''}"
        yield f"{where}: {state}; the queue is kept for it: is its broker running, and the line up?"
    elif late:
        yield f"{where}: {behind}"


def silence_sentence(seconds: float, halves: int) -> str:
    """Return the sentence that no change was captured for `seconds`; `halves`: undecided half messages so far."""
    sentence = f"source -> broker: nothing has been captured for {seconds:,.0f} s"
    return (
        f"{sentence}; a large transaction is being read: {count_phrase(halves, 'half message')} so far"
        if halves
        else sentence
    )


def clock_problem(ship_s: float, limit_s: float) -> str:
    """Return the sentence that the clocks of source and broker differ; empty = they do not.

    `ship_s` is the time from the capture of a change to its arrival. If it is negative, the clocks differ. If it is
    large, the clocks may differ, or the change was part of a large cut.
    """
    if ship_s < -limit_s:
        return (
            f"source -> broker: the source's clock is {-ship_s:,.0f} s ahead of the broker's, and all ages of changes "
            "are wrong by that; set both clocks"
        )
    if ship_s > limit_s:
        return (
            f"source -> broker: the newest change came {ship_s:,.0f} s after it was captured, by the source's clock: "
            "reading a large transaction took that long, or that clock is behind the broker's"
        )
    return ""
