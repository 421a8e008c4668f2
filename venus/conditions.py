"""Where an adapter's tables stand, and what of it needs somebody. The one place for both.

`venus status` fills these from the databases that it asks; the broker keeps what the adapters report, and its page,
metrics, health and alarms show that. All of them say the same sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from venus.adapter_figures import AdapterFigures
from venus.model import counted
from venus.network.topology import PULLS_AS

ACTIVE = "ACTIVE"  # every change is taken over at once
RESYNCING = "RESYNCING"  # is being made equal to the full data
#: At the source: an operator takes it out of capture, its log is captured yet; and out of it.
RELEASING, RELEASED = "RELEASING", "RELEASED"
#: States in which a table moves by itself; every other needs somebody.
MOVING_STATES = (ACTIVE, "CATCHUP", "LOADING", RESYNCING)
NO_FIGURES = AdapterFigures()
#: How the reason of a table begins that is PAUSED at the source because of a row; it is retried automatically.
UNFIT = "cannot be carried: "
#: The same of a table that the source's user may not read any more.
UNREADABLE = "may not be read: "
#: The same of a table of VENUS's own at the source.
UNUSABLE = "may not be used: "
#: How the reason of a table begins that is not at the source any more.
GONE = "the table is gone"
#: How the reason of a table begins at a target that was asked to make it equal to the full data, in vain.
RESYNC_FAILED = "resync failed: "
#: At the source: the patterns choose it and it is not captured; the reason says why it cannot be, if it cannot.
NOT_CAPTURED = "NOT_CAPTURED"
#: What is said of such a table behind its name.
MATCHES = "matches the patterns and"
#: How the reason of a table begins that keeps its rows until a resync has made it equal to the full data.
STARTING_OVER = "it is being made equal to the full data: its changes"
#: Its changes wait for a lock that somebody else holds.
WAITING = "WAITING"
#: Always in the metrics, so that a graph of one starts at zero rather than nowhere.
HELD_STATES = ("HALTED", "PAUSED", "RESYNC")
#: A healthy idle source is captured once a heartbeat: so many that did not arrive are no accident.
HEARTBEATS_LATE = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCondition:
    """A table at the source or at a target."""

    table_id: int
    name: str
    state: str = ACTIVE
    reason: str = ""
    #: Changes of it that wait in quarantine.
    quarantined: int = 0
    #: Which of its rows a target gets, in words; empty = every row.
    rows: str = ""

    @property
    def follows(self) -> bool:
        """Whether every change is taken over at once."""
        return self.state == ACTIVE and not self.quarantined

    @property
    def ordinary(self) -> bool:
        """Whether there is nothing to say of it."""
        return self.follows and not self.rows and not self.resync_failed

    @property
    def resync_failed(self) -> bool:
        """Whether it follows, but is not what somebody has asked for."""
        return self.state == ACTIVE and self.reason.startswith(RESYNC_FAILED)


def at_source(table_id: int, name: str, state: str, reason: str) -> TableCondition:
    """Return a table of the registry; one that stopped by itself is told from one that somebody paused."""
    halted = state == "PAUSED" and reason.startswith((UNFIT, UNREADABLE))
    return TableCondition(table_id=table_id, name=name, state="HALTED" if halted else state, reason=reason)


def own_at_source(name: str, grant: str) -> TableCondition:
    """Return a table of VENUS's own at the source that its user may not use: nothing is captured until he may."""
    reason = f"{UNUSABLE}nothing is captured until `{grant}`; then it goes on by itself"
    return TableCondition(table_id=0, name=name, state="HALTED", reason=reason)


def uncaptured_at_source(name: str, obstacle: str) -> TableCondition:
    """Return a table at the source that the patterns choose and that is not captured; `obstacle`: it cannot be."""
    return TableCondition(table_id=0, name=name, state=NOT_CAPTURED, reason=obstacle)


def uncaptured_problem(name: str, obstacle: str) -> str:
    """Say that the patterns choose a table that is not captured, and what to do about it."""
    leaves_out = "`source.exclude` of the configuration leaves it out"
    if obstacle:
        return (
            f"{name} {MATCHES} cannot be captured: {obstacle}; `venus check` says what to do, then `venus "
            f"install-triggers` captures it; or {leaves_out}"
        )
    return f"{name} {MATCHES} is not captured: `venus install-triggers` captures it, or {leaves_out}"


def locked_at_source(name: str, holder: str) -> TableCondition:
    """Return a table at the source for which cuts wait, because somebody has it to himself."""
    return TableCondition(table_id=0, name=name, state=WAITING, reason=f"for a lock of {holder}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCondition:
    """What one adapter knows: its tables that are not ordinary."""

    paused: bool = False
    #: When the target became the application's own, which nothing of VENUS's concerns since; empty = it follows.
    cut_over: str = ""
    tables: tuple[TableCondition, ...] = ()
    #: Tables that do not follow either, and were too many to tell.
    left_out: int = 0
    #: Changes that wait in quarantine, of all tables.
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
        """Leave out what is ordinary; what needs somebody comes first, and what was never captured behind that."""
        told = sorted(
            (t for t in tables if not t.ordinary),
            key=lambda t: (t.state in MOVING_STATES, t.state == NOT_CAPTURED, t.name),
        )
        return cls(paused=paused, tables=tuple(told), quarantined=quarantined, cut_over=cut_over, figures=figures)


def problems(condition: AdapterCondition, target: str = "") -> list[str]:
    """Return a sentence for each thing that needs somebody, with the way out; `target` empty = at the source."""
    if condition.cut_over:
        return []
    where, at = (f"target {target}", f" --target {target}") if target else ("source", "")
    found = [f"{where}: paused; `venus resume{at}` resumes it"] if condition.paused else []
    for table in condition.tables:
        if table.state == RELEASED:
            continue  # somebody wanted it so; `released` says it
        if table.state == NOT_CAPTURED:
            found.append(f"{where}: {uncaptured_problem(table.name, table.reason)}")
        elif table.state not in MOVING_STATES:
            why = f" ({table.reason})" if table.reason else ""
            found.append(f"{where}: {table.name} is {table.state}{why}; {_way_out(table, at)}".rstrip("; "))
        elif table.resync_failed:
            found.append(f"{where}: {table.name}: {table.reason}; {_way_out(table, at)}".rstrip("; "))
    if condition.left_out:
        verb = "does" if condition.left_out == 1 else "do"
        tables = counted(condition.left_out, "more table")
        found.append(f"{where}: {tables} {verb} not follow; `venus status` lists them")
    # the refused change of a table that has halted is said with the table
    waiting = condition.quarantined - sum(t.quarantined for t in condition.tables if t.state == "HALTED")
    if waiting > 0:
        verb = "waits" if waiting == 1 else "wait"
        found.append(f"{where}: {counted(waiting, 'refused change')} {verb}; see `venus quarantine list{at}`")
    if target and (compared := condition.figures.compared) is not None and compared.verdict == "different":
        rows = counted(compared.different, "row")
        way_out = f"`venus verify{at} --repair` ships what differs again"
        found.append(f"{where}: the last comparison found {rows} different; {way_out}")
    return found


def apply_problems(
    target: str, *, connected: bool, backlog_rows: int, late_s: float, late_max_s: float
) -> Iterator[str]:
    """Yield what is wrong on the way to a target: that apply is away, or else that it is behind."""
    where = f"broker -> target {target}"
    late = backlog_rows and late_s > late_max_s
    behind = f"{counted(backlog_rows, 'change')} behind, the oldest {late_s:,.0f} s"
    if not connected:
        yield f"{where}: apply is not connected{f', {behind}' if late else ''}; is `venus sync` running?"
    elif late:
        yield f"{where}: {behind}"


def released(condition: AdapterCondition) -> list[str]:
    """Return a sentence for each table that was taken out of capture: no problem, and not to be forgotten."""
    return [
        f"{table.name} is not captured any more{f' ({table.reason})' if table.reason else ''}: broker and targets keep "
        "its rows as they were captured last; `venus install-triggers` takes it up again"
        for table in condition.tables
        if table.state == RELEASED
    ]


def unaccounted_problem(rows: int, target: str) -> str:
    """Say that changes are not at the target although its offset has passed them."""
    verb = "is" if rows == 1 else "are"
    return (
        f"target {target}: {counted(rows, 'change')} below its offset {verb} unaccounted for; "
        f"`venus resync --all --target {target}` makes it equal to the full data"
    )


def _way_out(table: TableCondition, at: str) -> str:
    """Say what somebody can do, unless the reason does; `at` names the target as an option, empty at the source."""
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
        return gone_way_out(table.name)
    return f"`venus resync {table.name}{at}` reads it again" if table.state == "RESYNC" else ""


def gone_way_out(name: str) -> str:
    """Say what to do about a table that is captured and not there any more."""
    return (
        f"`venus uninstall-triggers {name}` takes it out of capture; if it was renamed, `venus install-triggers` "
        "captures it under its new name"
    )


def set_problems(group: str, *, connected: bool, backlog_rows: int, late_s: float, late_max_s: float) -> Iterator[str]:
    """Yield what is wrong with a broker set below, as the set that it pulls from sees it."""
    where = f"broker -> set {group.removeprefix(PULLS_AS)}"
    late = backlog_rows and late_s > late_max_s
    behind = f"{counted(backlog_rows, 'change')} behind, the oldest {late_s:,.0f} s"
    if not connected:
        said = f"it does not pull{f', {behind}' if late else ''}"
        yield f"{where}: {said}; the queue is kept for it: is its broker running, and the line up?"
    elif late:
        yield f"{where}: {behind}"


def silence(seconds: float, halves: int) -> str:
    """Say that no change has come for so long; `halves` = half messages that have, and wait for their decision."""
    said = f"source -> broker: nothing has been captured for {seconds:,.0f} s"
    return f"{said}; a large transaction is being read: {counted(halves, 'half message')} so far" if halves else said


def clock_problem(ship_s: float, limit_s: float) -> str:
    """Say that the source's clock and the broker's differ, by how long a change took on its way; empty = they do not.

    A change that came before it was captured leaves no doubt. One that took long may have been part of a large cut.
    """
    if ship_s < -limit_s:
        return (
            f"source -> broker: the source's clock is {-ship_s:,.0f} s ahead of the broker's, and all ages of changes "
            "are wrong by that; set both clocks"
        )
    if ship_s > limit_s:
        return (
            f"source -> broker: the newest change came {ship_s:,.0f} s after it was captured, by the source's clock: "
            "a large transaction was read for so long, or that clock is behind the broker's"
        )
    return ""
