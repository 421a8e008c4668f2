"""`venus status`: positions, lag of each hop and problems; works when a part is down."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from venus.adapters.targets.switching import OLD
from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.cli.output import build_table
from venus.cli.status_tables import format_comparisons, format_loads, format_tables
from venus.cli.traffic import format_overlay, format_retention, format_traffic
from venus.model import LOG_ROWS_COUNTED_MAX, count_phrase
from venus.network.topology import PULLS_AS, format_absence
from venus.rpc.conditions import RELEASED
from venus.text.formatting import format_bytes, format_duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from venus.adapters.targets.views import TargetView
    from venus.cli.overview import BrokerView, ConsumerView, LeaseView, Overview, SourceView
    from venus.cli.traffic import MirrorView, ReplicationView, ReplicaView


#: Status shows how often capture compares the dictionary only if that is less often than this.
COMPARES_EVERY_S = 10


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
    from venus.cli.probes import read_overview

    run = Invocation.from_options(ctx, config, as_json)
    settings = run.settings
    if not watch:
        found = read_overview(settings, rows=rows)
        run.out.answer(document(found), *(format_overview(found) if not run.json else []))
        return 0 if found.is_healthy else 1
    if run.json or not run.out.console.is_terminal:
        while True:
            found = read_overview(settings, rows=rows)
            run.out.write_event(document(found), verdict(found))
            time.sleep(every)
    return watch_on_terminal(run, every, rows=rows)


def watch_on_terminal(run: Invocation, every: float, *, rows: bool = False) -> int:
    """Redraw the status in place until Ctrl-C; return the last verdict as the exit code."""
    from rich.console import Group
    from rich.live import Live

    from venus.cli.probes import read_overview

    found = read_overview(run.settings, rows=rows)
    try:
        with Live(Group(*format_overview(found)), console=run.out.console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                found = read_overview(run.settings, rows=rows)
                live.update(Group(*format_overview(found)), refresh=True)
    except KeyboardInterrupt:
        run.out.console.print(verdict(found), markup=False)
        return 0 if found.is_healthy else 1


def document(found: Overview) -> dict[str, Any]:
    """Return the JSON document of `venus status`."""
    return {
        "healthy": found.is_healthy,
        "verdict": verdict(found),
        "problems": found.problems,
        "released": found.release_notices,
        "lag": lags(found),
        **dataclasses.asdict(found),
    }


def verdict(found: Overview) -> str:
    """Return the verdict in one line: OK and the lag, or UNHEALTHY and the first problem."""
    if found.is_healthy:
        following = [t for t in found.targets if not t.cut_over]
        if found.targets and not following:
            return f"OK: {found.business} is healthy, and every target was cut over"
        behind = max((t.heartbeat_age_s or 0.0 for t in following), default=0.0)
        apart = f"; {count_phrase(len(found.release_notices), 'table')} not captured" if found.release_notices else ""
        return f"OK: {found.business} is healthy, targets at most {format_duration(behind)} behind{apart}"
    first, more = found.problems[0], len(found.problems) - 1
    return f"UNHEALTHY: {first}" + (f" (and {more} more)" if more else "")


def lags(found: Overview) -> dict[str, Any]:
    """Return the lag of each hop in seconds; None if unknown."""
    return {
        "source_to_broker_s": found.broker.captured_age_s,
        "ship_s": None if found.broker.ship_s is None else max(0.0, found.broker.ship_s),
        "broker_to_target_s": {t.name: c.oldest_s for t in found.targets if (c := found.find_consumer(t)) is not None},
        "end_to_end_s": {t.name: t.heartbeat_age_s for t in found.targets},
    }


def format_overview(found: Overview) -> list[RenderableType]:
    """Format the overview: the path of a row, the tables, the problems, and last the verdict."""
    parts: list[RenderableType] = [build_path_table(found)]
    if found.source.tables or any(t.tables for t in found.targets):
        parts += ["", *format_tables(found)]
    broker = found.broker
    groups: list[list[str]] = [
        format_fall_back(found),
        format_comparisons(found),
        format_loads(broker),
        format_selections(found),
        format_different_objects(found),
        format_scrub(broker),
        format_comparing(broker),
        [format_lease(lease) for lease in broker.leases],
        format_replication(broker.replication) if broker.replication is not None else [],
        format_traffic(broker.traffic, follows=any(not t.cut_over for t in found.targets)),
        [format_mirror(broker.mirror)] if broker.mirror is not None else [],
        [format_retention(broker.retention)] if broker.retention is not None else [],
        [format_overlay(broker.overlay)] if broker.overlay is not None else [],
        [format_downstream(below) for below in found.sets_below],
    ]
    for group in filter(None, groups):
        parts += ["", *group]
    return [*parts, *format_problems(found), "", verdict(found)]


def format_fall_back(found: Overview) -> list[str]:
    """Format which of two databases is the application's, and how far behind the other one is."""
    pair = found.fall_back
    if pair is None or not pair.owner:
        return []
    follower = next((t for t in found.targets if t.name == pair.follower), None)
    age_s = follower.heartbeat_age_s if follower is not None else None
    behind = f", {format_duration(age_s)} behind" if age_s is not None else ""
    ago = f" {format_duration(pair.since_s)} ago" if pair.since_s is not None else ""
    if pair.follower == OLD:
        return [f"cut over to {pair.owner}{ago}; the old database follows{behind}; back: `venus fallback`"]
    return [f"fallen back to the old database{ago}; {pair.follower} follows{behind}"]


def format_scrub(broker: BrokerView) -> list[str]:
    """Format when the broker last read its whole store."""
    if broker.scrub_age_s is None:
        return []
    return [f"the broker last read its whole store {format_duration(broker.scrub_age_s)} ago: no damage"]


def format_comparing(broker: BrokerView) -> list[str]:
    """Format how late capture notices DDL that no cut reveals, if that may take more than a few seconds."""
    if broker.compares_every_s <= COMPARES_EVERY_S:
        return []
    every = format_duration(broker.compares_every_s)
    return [f"the source's dictionary is compared every {every}: DDL and missing triggers are noticed that late"]


def format_problems(found: Overview) -> list[RenderableType]:
    """Format the released tables and the problems."""
    parts: list[RenderableType] = ["", *found.release_notices] if found.release_notices else []
    if found.problems:
        parts += ["", *(f"! {problem}" for problem in found.problems)]
    return parts


def format_selections(found: Overview) -> list[str]:
    """Format which rows and columns each target's tables get, and the progress of changes of that choice."""
    tables = [(f"target {one.name}: {table_.name}", table_) for one in found.targets for table_ in one.tables]
    rows = [f"{name} gets {table_.rows_shown}" for name, table_ in tables if table_.rows_shown]
    return rows + [f"{name} gets these columns changed: {table_.columns}" for name, table_ in tables if table_.columns]


def format_different_objects(found: Overview) -> list[str]:
    """Format the indexes, checks and foreign keys of targets that differ from the source's."""
    return [
        f"target {target.name}: {table_.name}: {line}"
        for target in found.targets
        for table_ in target.tables
        for line in table_.differs
    ]


def format_lease(lease: LeaseView) -> str:
    """Format a lease on a snapshot."""
    holder = lease.holder or "an unnamed client"
    left = format_duration(lease.left_s)
    return f"a snapshot at offset {lease.offset:,} is kept for {holder}, for another {left} if it is not read"


def format_replication(found: ReplicationView) -> list[str]:
    """Format the leader, the mode of replication and each replica."""
    leads = f"broker {found.leader} leads in term {found.term}" if found.leader else "no broker leads"
    mode = f"; replication is {found.mode}: {found.reason}" if found.mode else ""
    return [leads + mode, *(f"  replica at {format_replica(replica)}" for replica in found.replicas)]


def format_mirror(found: MirrorView) -> str:
    """Format a mirror: its content, its upstream and its lag."""
    way = " -> ".join(found.path)
    what = f"{', '.join(found.only)} of " if found.only else ""
    rows = f" (only rows of {'; of '.join(found.where)})" if found.where else ""
    state = f"{found.state} for {format_duration(found.since_s)}"
    if found.state == "filling" and found.rows_expected:
        state += f", {found.rows:,} rows of about {found.rows_expected:,}"
    level = "it was level then" if found.state == "cut off" else "it is level"
    behind = level if not found.lag else f"{found.lag:,} offsets, {format_duration(found.lag_s)} behind"
    where = f" at {found.address}" if found.address else ""
    reason = f": {found.reason}" if found.reason else ""
    away = f"; not from {format_absence(found.nearest, found.away_s, found.not_back)}" if found.nearest else ""
    return f"mirror of {what}{way}{where}{rows}: {state}; {behind}; {format_bytes(found.bytes)} pulled{reason}{away}"


def format_downstream(below: ConsumerView) -> str:
    """Format the position of a broker set that pulls from this one."""
    behind = (
        f"{count_phrase(below.backlog_rows, 'change')} behind, {format_duration(below.oldest_s)}"
        if below.backlog_rows
        else "level"
    )
    away = "" if below.connected else "; it does not pull"
    return f"set {below.group.removeprefix(PULLS_AS)} below: offset {below.acknowledged:,}, {behind}{away}"


def format_replica(replica: ReplicaView) -> str:
    """Format a replica."""
    state = "gone" if not replica.alive else "in sync" if replica.in_sync else "not in sync"
    behind = f", {count_phrase(replica.behind, 'entry', 'entries')} behind" if replica.behind else ""
    return f"{replica.broker} ({replica.address or 'address not known'}): {state}{behind}"


def build_path_table(found: Overview) -> RenderableType:
    """Build the table of hops: position, lag, waiting changes."""
    rows: list[tuple[object, ...]] = [
        (
            "source",
            source_position(found.source),
            None,
            format_log(found.source),
        ),
        ("broker", broker_position(found.broker), format_age(found.broker.captured_age_s), format_halves(found.broker)),
    ]
    rows += [build_target_row(found, target) for target in found.targets]
    return build_table("", "position", "lag", "waiting", rows=rows)


def format_log(source: SourceView) -> str | None:
    """Format how many rows wait in the source's log tables; None if that is not known."""
    if not source.asked or source.error:
        return None
    if source.busy:
        return f"busy: {source.busy}"
    at_least = "at least " if any(t.log_rows >= LOG_ROWS_COUNTED_MAX for t in source.tables) else ""
    return f"{at_least}{count_phrase(sum(t.log_rows for t in source.tables), 'row')} in the log"


def source_position(source: SourceView) -> str:
    """Format how many tables are captured, or why that is not known."""
    if not source.asked:
        return "not asked: source.url is not set"
    if source.unusable:
        return "may not be read"
    captured = sum(table_.state != RELEASED for table_ in source.tables)
    return unreachable_mark(source.error) or f"{count_phrase(captured, 'table')} captured"


def build_target_row(found: Overview, target: TargetView) -> tuple[object, ...]:
    """Return the line about a target in the table of hops: position, lag, waiting changes."""
    if target.cut_over and not target.error:
        return f"target {target.name}", f"cut over at {target.cut_over}, offset {target.offset:,}", None, None
    consumer = found.find_consumer(target)
    place = f"offset {target.offset:,}" if target.loaded else "not loaded"
    if target.loading_rows is not None:
        place = f"loading, {target.loading_rows:,} rows so far"
    position = unreachable_mark(target.error) or place
    if target.unaccounted_rows:
        position += f", {target.unaccounted_rows:,} unaccounted for"
    waiting = None
    if consumer is not None:
        waiting = f"{count_phrase(consumer.backlog_rows, 'change')}, {format_bytes(consumer.backlog_bytes)}"
        if consumer.backlog_rows:
            waiting += f", oldest {format_duration(consumer.oldest_s)}"
        if consumer.held_bytes:
            waiting += f"; {format_bytes(consumer.held_bytes)} kept for held tables"
    return f"target {target.name}", position, format_age(target.heartbeat_age_s), waiting


def broker_position(broker: BrokerView) -> str:
    """Format the end of the broker's queue, and how far its full data is behind that."""
    if broker.error or not broker.known:
        return unreachable_mark(broker.error) or "does not know this business yet"
    behind = broker.next_offset - broker.materialised_offset
    late = f", full data {behind:,} behind" if behind > 0 else ""
    return f"offset {broker.next_offset:,}{late}"


def format_halves(broker: BrokerView) -> str | None:
    """Format the undecided half messages."""
    if broker.error or not broker.known:
        return None
    if not broker.halves:
        return "no half message"
    oldest = broker.halves[0]
    halves = count_phrase(max(broker.halves_total, len(broker.halves)), "half message")
    reviews = count_phrase(oldest.reviews, "review")
    return f"{halves}, oldest {format_duration(oldest.age_s)}, {reviews}"


def unreachable_mark(error: str) -> str:
    """Return UNREACHABLE if there is an error, else an empty text; the problems give the reason."""
    return "UNREACHABLE" if error else ""


def format_age(seconds: float | None) -> str | None:
    """Format an age."""
    return None if seconds is None else format_duration(seconds)
