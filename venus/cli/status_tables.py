"""Tables, loads and comparisons as `venus status` shows them, and the reasons for which a long command waits.

Status has a line for each table; if there are many, it only counts tables without problems. A fill waits for space on
the broker's disk and for capture; a load waits for the broker's full data. The waiting command itself does not see
these reasons, because it gets no answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from venus.cli.output import build_table
from venus.cli.overview import broker_problems, no_capture_problem
from venus.flow.degradation import Lane
from venus.model import count_phrase
from venus.rpc.conditions import ACTIVE, COMPARED, RELEASED
from venus.text.alarm_rules import classify_sentence
from venus.text.formatting import format_duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from venus.adapters.targets.views import TargetTable
    from venus.cli.overview import BrokerView, Overview, SourceTableView
    from venus.config import Settings
    from venus.rpc.conditions import LastComparison

    TargetTables = Mapping[str, Mapping[int, TargetTable]]


def format_comparisons(found: Overview) -> list[str]:
    """Format the last comparison of each target."""
    now_us = time.time_ns() / 1000
    return [
        f"target {target.name}: {format_comparison(target.compared, now_us)}"
        for target in found.targets
        if target.compared is not None and not target.cut_over
    ]


def format_comparison(compared: LastComparison, now_us: float) -> str:
    """Format the outcome of a comparison."""
    ago = format_duration(max(0.0, (now_us - compared.ended_at_us) / 1e6))
    counts = {"different": compared.different, "undecided": compared.undecided}
    differing = "".join(f", {count_phrase(n, f'{what} row')}" for what, n in counts.items() if n)
    part = ", not everything was compared" if compared.partial else ""
    what = f"{count_phrase(compared.rows, 'row')} of {count_phrase(compared.tables, 'table')}"
    return f"last verified {ago} ago: {compared.verdict} ({what}{differing}{part})"


def format_loads(broker: BrokerView) -> list[str]:
    """Format the progress of running loads, from the source into the broker and from the broker into targets."""
    shown = [f"{fill.name} is read: {format_progress(fill.rows, fill.rows_expected)}" for fill in broker.fills]
    for lease in broker.leases:
        if lease.rows_read:
            left = f", about {format_duration(lease.load_left_s)} left" if lease.load_left_s is not None else ""
            shown.append(
                f"{lease.holder or 'a load'} loads: {format_progress(lease.rows_read, lease.rows_expected)}{left}"
            )
    return shown


def format_progress(rows: int, expected: int) -> str:
    """Format a number of rows and their estimated total."""
    return f"{rows:,} of about {max(rows, expected):,} rows"


#: With more tables than this, tables without problems are only counted.
ALL_SHOWN_MAX = 200
#: Maximum number of lines for the other tables; each halted table has a sentence as well.
LISTED_MAX = 1_000


def format_tables(found: Overview) -> list[RenderableType]:
    """Format state and counts of each table. If there are many, tables without problems are only counted."""
    at_target = {t.name: {row.table_id: row for row in t.tables} for t in found.targets}
    rows = [_captured_row(found, own, at_target) for own in found.source.tables]
    if not rows:  # the source is unreachable, but the targets know the tables too
        names = {row.table_id: row.name for rows_ in at_target.values() for row in rows_.values()}
        rows = [_loaded_row(found, table_id, name, at_target) for table_id, name in sorted(names.items())]
    many = len(rows) > ALL_SHOWN_MAX
    listed = [row for row in rows if not (many and row.follows)]
    about = ("rows, about", *(f"rows at {name}, about" for name in at_target)) if found.rows_about is not None else ()
    shown = build_table(
        "table",
        "state",
        "in the log",
        *about,
        "changes committed",
        *(f"changes applied by {name}" for name in at_target),
        rows=[row.cells for row in listed[:LISTED_MAX]],
    )
    lines: list[RenderableType] = [shown] if listed else []
    if len(listed) > LISTED_MAX:
        lines.append(
            f"{count_phrase(len(listed) - LISTED_MAX, 'more table')} like these: `venus status --json` lists all"
        )
    if many and len(listed) < len(rows):
        lines.append(f"{count_phrase(len(rows) - len(listed), 'table')} simply follow: `venus status --json` lists all")
    return lines


@dataclass(frozen=True, slots=True)
class _Row:
    """A line about a table; `follows` = the table has no problem, so that the line may be left out."""

    cells: tuple[object, ...]
    follows: bool


def _captured_row(found: Overview, own: SourceTableView, at_target: TargetTables) -> _Row:
    """Build the line about a table that the source reports."""
    out = own.state == RELEASED
    is_read = own.fill_done or out
    verb = "comparing" if own.reason.startswith(COMPARED) else "filling"
    fill = "" if is_read else f", {verb} {own.fill_rows:,} of about {own.fill_estimate:,}"
    state = "not captured" if out else own.state.lower() + fill
    there = [tables.get(own.table_id) for tables in at_target.values()]
    cells = (
        own.name,
        state,
        None if out else own.log_rows,
        *_format_estimates(found, own.table_id, own.rows_about, at_target),
        found.broker.committed_changes.get(own.table_id),
    )
    return _Row(
        (*cells, *map(_format_at_target, there)), own.state == ACTIVE and is_read and all(map(_is_following, there))
    )


def _loaded_row(found: Overview, table_id: int, name: str, at_target: TargetTables) -> _Row:
    """Build the line about a table that only targets report."""
    there = [tables.get(table_id) for tables in at_target.values()]
    about = _format_estimates(found, table_id, None, at_target)
    cells = (name, None, None, *about, found.broker.committed_changes.get(table_id))
    return _Row((*cells, *map(_format_at_target, there)), all(map(_is_following, there)))


def _format_estimates(
    found: Overview, table_id: int, at_source: int | None, targets: Iterable[str]
) -> list[str | None]:
    """Format the estimated row counts of a table at the source and at each target, if requested."""
    if found.rows_about is None:
        return []
    counts = [at_source, *(found.rows_about.get(name, {}).get(table_id) for name in targets)]
    return [None if count is None else f"~{count:,}" for count in counts]


def _format_at_target(row: TargetTable | None) -> str:
    """Format the state of a table at one target; `-` if the target does not have it."""
    return "-" if row is None else format_table_state(row.state, row.rows_applied, row.quarantined)


def _is_following(row: TargetTable | None) -> bool:
    """Return whether a target applies the changes of a table, and none is in quarantine."""
    return row is not None and row.state == ACTIVE and not row.quarantined


def format_table_state(state: str, applied: int, quarantined: int) -> str:
    """Format the changes that were applied to a table at a target, and its state unless it is ACTIVE."""
    text = f"{applied:,}" if state == "ACTIVE" else f"{applied:,} {state.lower()}"
    return f"{text} + {quarantined:,} in quarantine" if quarantined else text


#: How often the broker is checked, and how often a message is repeated.
LOOK_S = 5.0
REPEAT_S = 300.0
#: Kinds of alarms whose problem holds up loads and fills.
_HOLDING = ("disk_space", "store_failed", "no_leader", "not_writable", "full_data_behind")


def load_obstacles(broker: BrokerView) -> list[str]:
    """Return the problems that hold up a load."""
    return _obstacles(broker, Lane.FULL_DATA)


def fill_obstacles(broker: BrokerView) -> list[str]:
    """Return the problems that hold up a first fill in this process."""
    return _obstacles(broker, Lane.HALVES)


def watched_fill_obstacles(broker: BrokerView) -> list[str]:
    """Return the problems that hold up a first fill in another process."""
    found = fill_obstacles(broker)
    if not broker.error and not broker.producer:
        found.append(no_capture_problem(broker))
    return found + list(broker.reported.get("", ()))


def _obstacles(broker: BrokerView, lane: Lane) -> list[str]:
    """Return the broker's problems that hold up the work of a lane."""
    found = []
    for problem in broker_problems(broker):
        rule, subject = classify_sentence(problem.removeprefix("broker: "))
        is_lane = rule.name == "lane_degraded" and subject == str(lane.value)
        if broker.error or is_lane or rule.name in _HOLDING:
            found.append(problem)
    return found


class WaitReporter:
    """Writes the reasons for waiting: when they change, repeatedly while they last, and when they end."""

    def __init__(self, say: Callable[[str], None], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._monotonic = monotonic
        self._written: dict[tuple[str, str], float] = {}

    def update(self, sentences: Sequence[str]) -> None:
        """Update the reasons. A change of the figures alone does not repeat a sentence."""
        now, current = self._monotonic(), {_reason_key(text): text for text in sentences}
        for key, text in current.items():
            if now >= self._written.get(key, float("-inf")) + REPEAT_S:
                self._written[key] = now
                self._say(f"waits: {text}")
        if self._written and not current:
            self._say("continues: nothing delays it any more")
        self._written = {key: at for key, at in self._written.items() if key in current}


def _reason_key(text: str) -> tuple[str, str]:
    """Return the kind and the subject of a reason, which identify it while its figures change."""
    rule, subject = classify_sentence(text.removeprefix("broker: "))
    return rule.name, subject


@contextmanager
def report_waits(
    settings: Settings, say: Callable[[str], None], judge: Callable[[BrokerView], list[str]]
) -> Iterator[None]:
    """While the block runs, check the broker and write the reasons that hold up the work."""
    from venus.cli.probes import read_broker

    ended, waits = threading.Event(), WaitReporter(say)

    def watch_broker() -> None:
        """Read the state of the broker repeatedly, and write the reasons for waiting."""
        while not ended.wait(LOOK_S):
            found = judge(read_broker(settings))
            if not ended.is_set():
                waits.update(found)

    threading.Thread(target=watch_broker, name="venus-waits", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
