"""`venus status`: positions, lag of each hop and problems; works when a part is down."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.cli.output import table
from venus.cli.status_tables import compared_shown, loads_shown, tables_shown
from venus.cli.traffic import traffic_shown
from venus.conditions import RELEASED
from venus.figures import bytes_shown, seconds_shown
from venus.model import counted
from venus.network.drawing import away_shown
from venus.network.topology import PULLS_AS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from venus.adapters.targets.views import TargetView
    from venus.cli.overview import BrokerView, ConsumerView, LeaseView, Overview, SourceView
    from venus.cli.traffic import MirrorView, ReplicationView, ReplicaView


def status(
    ctx: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")] = False,
    rows: Annotated[
        bool,
        typer.Option(
            "--rows", help="Also show the estimated number of rows of each table, from each database's statistics."
        ),
    ] = False,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.1, help="How often, with --watch.")] = 2.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show where every change is. Exit code 1 if anything is unhealthy or cannot be reached.

    With --watch and --json: one object per line.
    """
    from venus.cli.probes import look

    run = Invocation.of(ctx, config, as_json)
    settings = run.settings
    if not watch:
        found = look(settings, rows=rows)
        run.out.answer(document(found), *(shown(found) if not run.json else []))
        return 0 if found.healthy else 1
    if run.json or not run.out.console.is_terminal:
        while True:
            found = look(settings, rows=rows)
            run.out.event(document(found), verdict(found))
            time.sleep(every)
    return watch_on_terminal(run, every, rows=rows)


def watch_on_terminal(run: Invocation, every: float, *, rows: bool = False) -> int:
    """Redraw in place until Ctrl-C; the exit code is the last verdict."""
    from rich.console import Group
    from rich.live import Live

    from venus.cli.probes import look

    found = look(run.settings, rows=rows)
    try:
        with Live(Group(*shown(found)), console=run.out.console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                found = look(run.settings, rows=rows)
                live.update(Group(*shown(found)), refresh=True)
    except KeyboardInterrupt:
        run.out.console.print(verdict(found), markup=False)
        return 0 if found.healthy else 1


def document(found: Overview) -> dict[str, Any]:
    """Return the JSON document."""
    return {
        "healthy": found.healthy,
        "verdict": verdict(found),
        "problems": found.problems,
        "released": found.released,
        "lag": lags(found),
        **dataclasses.asdict(found),
    }


def verdict(found: Overview) -> str:
    """Return the one-line verdict."""
    if found.healthy:
        following = [t for t in found.targets if not t.cut_over]
        if found.targets and not following:
            return f"OK: {found.business} is healthy, and every target was cut over"
        behind = max((t.heartbeat_age_s or 0.0 for t in following), default=0.0)
        apart = f"; {counted(len(found.released), 'table')} not captured" if found.released else ""
        return f"OK: {found.business} is healthy, targets at most {seconds_shown(behind)} behind{apart}"
    first, more = found.problems[0], len(found.problems) - 1
    return f"UNHEALTHY: {first}" + (f" (and {more} more)" if more else "")


def lags(found: Overview) -> dict[str, Any]:
    """Return the lag of each hop in seconds; None if unknown."""
    return {
        "source_to_broker_s": found.broker.captured_age_s,
        "ship_s": None if found.broker.ship_s is None else max(0.0, found.broker.ship_s),
        "broker_to_target_s": {t.name: c.oldest_s for t in found.targets if (c := found.consumer(t)) is not None},
        "end_to_end_s": {t.name: t.heartbeat_age_s for t in found.targets},
    }


def shown(found: Overview) -> list[RenderableType]:
    """Format the overview: the path in its order, the tables, the problems, the verdict last."""
    parts: list[RenderableType] = [path_table(found)]
    if found.source.tables or any(t.tables for t in found.targets):
        parts += ["", *tables_shown(found)]
    broker = found.broker
    groups: list[list[str]] = [
        compared_shown(found),
        loads_shown(broker),
        rows_shown(found),
        differing_shown(found),
        scrub_shown(broker),
        [lease_shown(lease) for lease in broker.leases],
        replication_shown(broker.replication) if broker.replication is not None else [],
        traffic_shown(broker.traffic, follows=any(not t.cut_over for t in found.targets)),
        [mirror_shown(broker.mirror)] if broker.mirror is not None else [],
        [below_shown(below) for below in found.sets_below],
    ]
    for group in filter(None, groups):
        parts += ["", *group]
    return [*parts, *sentences(found), "", verdict(found)]


def scrub_shown(broker: BrokerView) -> list[str]:
    """Format when the broker last read its whole store."""
    if broker.scrub_age_s is None:
        return []
    return [f"the broker last read its whole store {seconds_shown(broker.scrub_age_s)} ago: no damage"]


def sentences(found: Overview) -> list[RenderableType]:
    """Format the released tables and the problems."""
    parts: list[RenderableType] = ["", *found.released] if found.released else []
    if found.problems:
        parts += ["", *(f"! {problem}" for problem in found.problems)]
    return parts


def rows_shown(found: Overview) -> list[str]:
    """Format the row filters of tables at targets, and the progress of changing them."""
    return [
        f"target {target.name}: {table_.name} gets {table_.rows_shown}"
        for target in found.targets
        for table_ in target.tables
        if table_.rows_shown
    ]


def differing_shown(found: Overview) -> list[str]:
    """Format the indexes, checks and foreign keys of targets that differ from the source's."""
    return [
        f"target {target.name}: {table_.name}: {line}"
        for target in found.targets
        for table_ in target.tables
        for line in table_.differs
    ]


def lease_shown(lease: LeaseView) -> str:
    """Format a lease on a snapshot."""
    holder = lease.holder or "an unnamed client"
    left = seconds_shown(lease.left_s)
    return f"a snapshot at offset {lease.offset:,} is kept for {holder}, for another {left} if it is not read"


def replication_shown(found: ReplicationView) -> list[str]:
    """Format the leader, the mode of replication and each replica."""
    leads = f"broker {found.leader} leads in term {found.term}" if found.leader else "no broker leads"
    mode = f"; replication is {found.mode}: {found.reason}" if found.mode else ""
    return [leads + mode, *(f"  replica at {replica_shown(replica)}" for replica in found.replicas)]


def mirror_shown(found: MirrorView) -> str:
    """Format a mirror: its content, its upstream and its lag."""
    way = " -> ".join(found.path)
    what = f"{', '.join(found.only)} of " if found.only else ""
    rows = f" (only rows of {'; of '.join(found.where)})" if found.where else ""
    state = f"{found.state} for {seconds_shown(found.since_s)}"
    if found.state == "filling" and found.rows_expected:
        state += f", {found.rows:,} rows of about {found.rows_expected:,}"
    level = "it was level then" if found.state == "cut off" else "it is level"
    behind = level if not found.lag else f"{found.lag:,} offsets, {seconds_shown(found.lag_s)} behind"
    where = f" at {found.address}" if found.address else ""
    reason = f": {found.reason}" if found.reason else ""
    away = f"; not from {away_shown(found.nearest, found.away_s, found.not_back)}" if found.nearest else ""
    return f"mirror of {what}{way}{where}{rows}: {state}; {behind}; {bytes_shown(found.bytes)} pulled{reason}{away}"


def below_shown(below: ConsumerView) -> str:
    """Format the position of a broker set that pulls from this one."""
    behind = (
        f"{counted(below.backlog_rows, 'change')} behind, {seconds_shown(below.oldest_s)}"
        if below.backlog_rows
        else "level"
    )
    away = "" if below.connected else "; it does not pull"
    return f"set {below.group.removeprefix(PULLS_AS)} below: offset {below.acknowledged:,}, {behind}{away}"


def replica_shown(replica: ReplicaView) -> str:
    """Format a replica."""
    state = "gone" if not replica.alive else "in sync" if replica.in_sync else "not in sync"
    behind = f", {counted(replica.behind, 'entry', 'entries')} behind" if replica.behind else ""
    return f"{replica.broker} ({replica.address or 'address not known'}): {state}{behind}"


def path_table(found: Overview) -> RenderableType:
    """Build the table of hops: position, lag, waiting changes."""
    waiting = sum(t.log_rows for t in found.source.tables)
    rows: list[tuple[object, ...]] = [
        (
            "source",
            source_position(found.source),
            None,
            f"{counted(waiting, 'row')} in the log" if found.source.asked and not found.source.error else None,
        ),
        ("broker", broker_position(found.broker), age(found.broker.captured_age_s), halves_shown(found.broker)),
    ]
    rows += [target_row(found, target) for target in found.targets]
    return table("", "position", "lag", "waiting", rows=rows)


def source_position(source: SourceView) -> str:
    """Format the position of the source."""
    if not source.asked:
        return "not asked: source.url is not set"
    if source.unusable:
        return "may not be read"
    captured = sum(table_.state != RELEASED for table_ in source.tables)
    return unreachable(source.error) or f"{counted(captured, 'table')} captured"


def target_row(found: Overview, target: TargetView) -> tuple[object, ...]:
    """Build the row of a target."""
    if target.cut_over and not target.error:
        return f"target {target.name}", f"cut over at {target.cut_over}, offset {target.offset:,}", None, None
    consumer = found.consumer(target)
    position = unreachable(target.error) or (f"offset {target.offset:,}" if target.loaded else "not loaded")
    if target.unaccounted_rows:
        position += f", {target.unaccounted_rows:,} unaccounted for"
    waiting = None
    if consumer is not None:
        waiting = f"{counted(consumer.backlog_rows, 'change')}, {bytes_shown(consumer.backlog_bytes)}"
        if consumer.backlog_rows:
            waiting += f", oldest {seconds_shown(consumer.oldest_s)}"
        if consumer.held_bytes:
            waiting += f"; {bytes_shown(consumer.held_bytes)} kept for held tables"
    return f"target {target.name}", position, age(target.heartbeat_age_s), waiting


def broker_position(broker: BrokerView) -> str:
    """Format the position of the broker."""
    if broker.error or not broker.known:
        return unreachable(broker.error) or "does not know this business yet"
    behind = broker.next_offset - broker.materialised_offset
    late = f", full data {behind:,} behind" if behind > 0 else ""
    return f"offset {broker.next_offset:,}{late}"


def halves_shown(broker: BrokerView) -> str | None:
    """Format the undecided half messages."""
    if broker.error or not broker.known:
        return None
    if not broker.halves:
        return "no half message"
    oldest = broker.halves[0]
    halves = counted(max(broker.halves_total, len(broker.halves)), "half message")
    reviews = counted(oldest.reviews, "review")
    return f"{halves}, oldest {seconds_shown(oldest.age_s)}, {reviews}"


def unreachable(error: str) -> str:
    """Return a mark for a part that did not answer; the reason is among the problems."""
    return "UNREACHABLE" if error else ""


def age(seconds: float | None) -> str | None:
    """Format an age."""
    return None if seconds is None else seconds_shown(seconds)
