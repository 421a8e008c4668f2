"""`venus uninstall-triggers`: VENUS leaves the source; or single tables leave capture, and the others go on.

A single table leaves in two steps, so that nothing that the triggers have noted is lost: the triggers go, capture takes
what is in the log, then the log goes. Whoever is interrupted runs the same command again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli.install import DryRun, opened_source, per_table, show_sql
from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.cli.tables import choose
from venus.conditions import RELEASED, RELEASING
from venus.errors import VenusError
from venus.model import counted

if TYPE_CHECKING:
    from venus.adapters.dialects.contract import InstallStep, RegisteredTable, Source
    from venus.config import Settings

#: Between two looks at the logs.
LOOK_S = 0.2
#: What somebody has to know who runs the script.
REMARK = (
    "-- What capture has not taken from a log table when it is dropped is left out: run the part in front of that,\n"
    "-- wait until `venus status` shows 0 in the log, then run the rest.\n"
)


def uninstall_triggers(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...",
            help="Take only these tables out of capture; the others go on. None = everything that VENUS created.",
        ),
    ] = None,
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0.0,
            help="With TABLE: how long capture may take for what waits in its log. What is left then is left out.",
        ),
    ] = 30.0,
    dry_run: DryRun = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Remove everything that VENUS created at the source; or, with TABLE, what captures that table alone.

    A table that is taken out stays at the targets as it was captured last. `venus install-triggers` takes it up again.
    """
    run = Invocation.of(ctx, config, as_json)
    if names:
        return release(run, names, dry_run=dry_run, wait_s=wait_s)
    with opened_source(run.settings) as source:
        if dry_run:
            return show_sql(run, source, source.uninstall_plan(), removal=True)
        steps = source.uninstall()
    document = {"removed": [{"table": s.table, "what": s.what} for s in steps]}
    run.out.answer(document, *per_table("-", steps), f"{len(steps)} removed")
    return 0


def release(run: Invocation, names: list[str], *, dry_run: bool, wait_s: float) -> int:
    """Take these tables out of capture, and say which changes were not captured any more."""
    with opened_source(run.settings) as source:
        chosen, gone = chosen_tables(source, names)
        ids = list(chosen)
        if dry_run:
            if ids and not run.json:
                sys.stdout.write(REMARK)
            return show_sql(run, source, source.release_plan(ids) if ids else [], removal=True)
        steps, left = taken_out(source, chosen, wait_s, lambda: captures(run.settings), run.out.say)
        included = source.tables(run.settings.source.tables, run.settings.source.exclude)
    # one that was dropped at the source is not chosen, whatever the patterns say
    again = sorted({s.qualified for s in included} & {t.schema.qualified for t in (*chosen.values(), *gone)})
    document = {
        "removed": [{"table": s.table, "what": s.what} for s in steps],
        "released": [{"table": t.schema.qualified, "left_out": left[i]} for i, t in chosen.items()],
        "not_captured": [t.schema.qualified for t in gone],
        "still_chosen": again,
    }
    lines = per_table("-", [s for s in steps if not s.what.startswith("state ")])
    lines += [f"{t.schema.qualified} is not captured any more{left_out(left[i])}" for i, t in chosen.items()]
    lines += [f"{t.schema.qualified} was not captured" for t in gone]
    if again:
        lines.append(
            f"! the configuration still chooses {', '.join(again)}: `venus install-triggers` would capture it again; "
            "[source] exclude keeps it out"
        )
    run.out.answer(document, *lines)
    return 0


def chosen_tables(source: Source, names: list[str]) -> tuple[dict[int, RegisteredTable], list[RegisteredTable]]:
    """Return the tables meant, by number; and those of which nothing is left. Refuses a name that means none."""
    every = [*source.registered(), *source.released()]
    meant = {t.schema.table_id: t for name in names for t in choose(every, name)}
    gone = [t for i, t in meant.items() if t.state == RELEASED and not _leftovers(source, i)]
    return {i: t for i, t in meant.items() if t not in gone}, gone


def _leftovers(source: Source, table_id: int) -> list[InstallStep]:
    """Return what a removal that was cut off has left of a table."""
    return [s for s in source.release_plan([table_id]) if not s.what.startswith("state ")]


def taken_out(
    source: Source,
    chosen: dict[int, RegisteredTable],
    wait_s: float,
    captures: Callable[[], bool],
    say: Callable[[str], None],
) -> tuple[list[InstallStep], dict[int, int]]:
    """Take tables out; return what was removed, and how many changes in the log of each were not captured."""
    if not chosen:
        return [], {}
    steps = source.release(list(chosen))
    left = waited(source, chosen, wait_s, captures, say)
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    reasons = {
        i: t.reason if t.state == RELEASED else f"taken out of capture at {when}{left_out(left[i])}"
        for i, t in chosen.items()
    }
    return steps + source.drop_logs(reasons), left


def waited(
    source: Source, table_ids: Iterable[int], wait_s: float, captures: Callable[[], bool], say: Callable[[str], None]
) -> dict[int, int]:
    """Wait until capture has taken what is in these logs; return what is left there.

    Nobody can take what is in the log of a table that is gone, or has halted at a row.
    """
    deadline, told, numbers = time.monotonic() + wait_s, False, list(table_ids)
    there = set(source.table_names())
    while True:
        taken = {t.schema.table_id for t in source.registered() if t.state == RELEASING and t.schema.qualified in there}
        backlog = source.backlog()
        left = {i: backlog.get(i, (0, 0))[0] for i in numbers}
        waiting = sum(n for i, n in left.items() if i in taken)
        if not waiting or time.monotonic() >= deadline or not captures():
            return left
        if not told:
            say(f"waiting up to {wait_s:.0f} s for {counted(waiting, 'change')} to be captured")
            told = True
        time.sleep(LOOK_S)


def captures(settings: Settings) -> bool:
    """Say whether anybody captures; nobody does as far as a broker knows that cannot be reached."""
    from venus.cli.load import producer_connected

    try:
        return producer_connected(settings)
    except VenusError:
        return False


def left_out(changes: int) -> str:
    """Say which changes are not at the targets, if there are any."""
    verb = "was" if changes == 1 else "were"
    return f"; {counted(changes, 'change')} in its log {verb} left out" if changes else ""
