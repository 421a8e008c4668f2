"""`venus uninstall-triggers`: removes VENUS from the source, or individual tables from capture while others continue.

The release of a single table has two steps, so that no logged change is lost: first the triggers are dropped, then
capture reads the rest of the log and the log is dropped. An interrupted command can be run again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli.install import DryRun, format_per_table, open_configured_source, show_sql
from venus.cli.invocation import ConfigOption, Invocation, JsonOption, may_fall_back
from venus.cli.tables import choose_tables
from venus.errors import VenusError
from venus.model import count_phrase
from venus.rpc.conditions import RELEASED, RELEASING

if TYPE_CHECKING:
    from venus.adapters.dialects.contract import InstallStep, RegisteredTable, Source
    from venus.config import Settings

#: The pause between two reads of the logs.
LOOK_S = 0.2
#: Instructions for running the script.
REMARK = (
    "-- Changes that capture has not read before their log table is dropped are left out: run the part before that,\n"
    "-- wait until `venus status` shows 0 in the log, then run the rest.\n"
)


def uninstall_triggers(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...",
            help="Take only these tables out of capture; the others continue. None = everything that VENUS created.",
        ),
    ] = None,
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0.0,
            help="With TABLE: how long to wait for capture to read its log. Changes left after that are left out.",
        ),
    ] = 30.0,
    dry_run: DryRun = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Remove everything that VENUS created at the source; or, with TABLE, what captures that table alone.

    A released table keeps its last captured state at the targets. `venus install-triggers` captures it again.
    """
    run = Invocation.from_options(ctx, config, as_json)
    if names:
        return release_tables(run, names, dry_run=dry_run, wait_s=wait_s)
    followers = find_followers(run)
    with open_configured_source(run.directed_settings) as source:
        if dry_run:
            return show_sql(run, source, source.installer.plan_uninstall(), removal=True)
        steps = source.installer.uninstall()
    for settings in followers:
        with open_configured_source(settings) as source:
            steps += source.installer.uninstall()
    document = {"removed": [{"table": s.table, "what": s.what} for s in steps]}
    run.out.answer(document, *format_per_table("-", steps), f"{len(steps)} removed")
    return 0


def find_followers(run: Invocation) -> list[Settings]:
    """Return settings whose source is the database that follows after a switch, if any: it has triggers too."""
    from venus.adapters.cutover.direction import read_state

    state = read_state(run.settings) if may_fall_back(run.settings) else None
    if state is None or not any(record is not None and record.switch for record in state.records.values()):
        return []
    return [state.pair.settings_to(state.pair.other(state.follower))]


def release_tables(run: Invocation, names: list[str], *, dry_run: bool, wait_s: float) -> int:
    """Release these tables from capture, and print how many logged changes were left out."""
    with open_configured_source(run.directed_settings) as source:
        chosen, gone = find_chosen_tables(source, names)
        ids = list(chosen)
        if dry_run:
            if ids and not run.json:
                sys.stdout.write(REMARK)
            return show_sql(run, source, source.installer.plan_release(ids) if ids else [], removal=True)
        steps, left = release_and_drop(source, chosen, wait_s, lambda: is_capturing(run.directed_settings), run.out.say)
        included = source.dictionary.read_tables(
            run.directed_settings.source.tables, run.directed_settings.source.exclude
        )
    # patterns cannot choose a table that was dropped at the source
    again = sorted({s.qualified_name for s in included} & {t.schema.qualified_name for t in (*chosen.values(), *gone)})
    document = {
        "removed": [{"table": s.table, "what": s.what} for s in steps],
        "released": [{"table": t.schema.qualified_name, "left_out": left[i]} for i, t in chosen.items()],
        "not_captured": [t.schema.qualified_name for t in gone],
        "still_chosen": again,
    }
    lines = format_per_table("-", [s for s in steps if not s.what.startswith("state ")])
    lines += [
        f"{t.schema.qualified_name} is not captured any more{format_left_out(left[i])}" for i, t in chosen.items()
    ]
    lines += [f"{t.schema.qualified_name} was not captured" for t in gone]
    if again:
        lines.append(
            f"! the configuration still chooses {', '.join(again)}: `venus install-triggers` would capture it again; "
            "[source] exclude keeps it out"
        )
    run.out.answer(document, *lines)
    return 0


def find_chosen_tables(source: Source, names: list[str]) -> tuple[dict[int, RegisteredTable], list[RegisteredTable]]:
    """Return the named tables by number, and those that are removed already. Raises ConfigError for unknown names."""
    every = [*source.registry.read_registered_tables(), *source.registry.read_released_tables()]
    named = {t.schema.table_id: t for name in names for t in choose_tables(every, name)}
    gone = [t for i, t in named.items() if t.state == RELEASED and not _leftover_steps(source, i)]
    return {i: t for i, t in named.items() if t not in gone}, gone


def _leftover_steps(source: Source, table_id: int) -> list[InstallStep]:
    """Return the steps that an interrupted removal has not run."""
    return [s for s in source.installer.plan_release([table_id]) if not s.what.startswith("state ")]


def release_and_drop(
    source: Source,
    chosen: dict[int, RegisteredTable],
    wait_s: float,
    captures: Callable[[], bool],
    say: Callable[[str], None],
) -> tuple[list[InstallStep], dict[int, int]]:
    """Release tables, drop their logs; return the removed objects, and how many changes of each were not captured."""
    if not chosen:
        return [], {}
    steps = source.installer.release(list(chosen))
    left = wait_for_capture(source, chosen, wait_s, captures, say)
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    reasons = {
        i: t.reason if t.state == RELEASED else f"taken out of capture at {when}{format_left_out(left[i])}"
        for i, t in chosen.items()
    }
    return steps + source.installer.drop_logs(reasons), left


def wait_for_capture(
    source: Source, table_ids: Iterable[int], wait_s: float, captures: Callable[[], bool], say: Callable[[str], None]
) -> dict[int, int]:
    """Wait until capture has read the logs of these tables; return how many changes remain in each log.

    Capture cannot read the log of a dropped table, or of a table that has halted at a row.
    """
    deadline, was_announced, numbers = time.monotonic() + wait_s, False, list(table_ids)
    there = set(source.dictionary.read_table_names())
    while True:
        taken = {
            t.schema.table_id
            for t in source.registry.read_registered_tables()
            if t.state == RELEASING and t.schema.qualified_name in there
        }
        backlog = source.capture.read_backlog()
        left = {i: backlog.get(i, (0, 0))[0] for i in numbers}
        waiting = sum(n for i, n in left.items() if i in taken)
        if not waiting or time.monotonic() >= deadline or not captures():
            return left
        if not was_announced:
            say(f"waiting up to {wait_s:.0f} s for {count_phrase(waiting, 'change')} to be captured")
            was_announced = True
        time.sleep(LOOK_S)


def is_capturing(settings: Settings) -> bool:
    """Return whether capture is connected; False if the broker is unreachable."""
    from venus.cli.load import is_capture_connected

    try:
        return is_capture_connected(settings)
    except VenusError:
        return False


def format_left_out(changes: int) -> str:
    """Format the number of changes that the targets do not get; empty for none."""
    verb = "was" if changes == 1 else "were"
    return f"; {count_phrase(changes, 'change')} in its log {verb} left out" if changes else ""
