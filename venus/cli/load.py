"""`venus migrate`: the full sync of one target, from the broker's full data (offset -1) and not from the source.

If tables have never been read, the first fill runs before the load: in `venus sync` if it is running, else in this
command. `venus migrate --ddl-only` prints the statements for a target and changes nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from venus.cli.invocation import ConfigOption, Invocation, JsonOption, TargetOption, choose_target
from venus.cli.output import build_table
from venus.cli.spark import EngineOption, open_runner_choice, require_engine
from venus.errors import ConfigError, Refused, VenusError
from venus.model import count_phrase
from venus.rpc.conditions import ACTIVE, uncaptured_problem

if TYPE_CHECKING:
    from rich.console import RenderableType

    from venus.adapters.dialects.contract import Numbering, OtherObject, RegisteredTable, UncapturedTable
    from venus.adapters.targets.contract import LoadProgress, LoadReport, Target, TargetDdl
    from venus.cli.overlap import OverlappedLoad, TableRead
    from venus.config import Settings
    from venus.model import TableSchema


def show_ddl(run: Invocation, target: Target) -> int:
    """Print the DDL of a target, from the source's dictionary, or from the broker if the source is unreachable."""
    from venus.adapters.targets.contract import require_capability

    require_capability(target, "prints_ddl")
    found = build_ddl(run.settings, target)
    document = {
        "target": target.name,
        "statements": found.statements,
        "left_out": found.left_out,
        "at_cutover": found.later,
    }
    if run.json:
        run.out.answer(document)
    else:
        sys.stdout.write(run.redactor(found.text))  # a file: lines are not folded to the width of a terminal
    return 0


def build_ddl(settings: Settings, target: Target) -> TargetDdl:
    """Return the DDL of all tables for the target, and the source's objects that the target does not get."""
    return target.build_ddl(*read_schemas(settings))


def read_schemas(settings: Settings) -> tuple[list[TableSchema], list[Numbering], list[OtherObject]]:
    """Read the newest version of every captured table, the sequences, and the other objects."""
    from venus.cli.install import open_configured_source

    try:
        with open_configured_source(settings) as source:
            try:
                tables = [t.schema for t in source.registry.read_registered_tables()]
            except Refused:  # nothing is installed yet
                tables = []
            if not tables:
                tables = source.dictionary.read_tables(settings.source.tables, settings.source.exclude)
            return tables, source.dictionary.read_numberings(), source.dictionary.read_other_objects()
    except VenusError as source_error:
        try:
            return read_schemas_at_broker(settings), [], []
        except VenusError:
            raise source_error from None


def read_schemas_at_broker(settings: Settings) -> list[TableSchema]:
    """Read the newest version of each table in the broker's full data, from a snapshot that is closed at once."""
    from venus.codec.schema import from_wire
    from venus.rpc.address import broker_address
    from venus.rpc.snapshots import SnapshotClient

    snapshots = SnapshotClient(broker_address(settings))
    try:
        snapshot = snapshots.open(settings.business.name, splits=1, holder="venus migrate --ddl-only")
        snapshots.close(snapshot.snapshot_id)
    finally:
        snapshots.close()
    versions = [from_wire(schema) for schema in snapshot.schemas]
    newest = {schema.table_id: schema for schema in sorted(versions, key=lambda schema: schema.version)}
    return list(newest.values())


POLL_S = 0.5


def migrate(
    ctx: typer.Context,
    target: TargetOption = None,
    ddl_only: Annotated[
        bool, typer.Option("--ddl-only", help="Print the target's CREATE statements; change nothing.")
    ] = False,
    empty_meanwhile: Annotated[
        bool,
        typer.Option("--empty-meanwhile", help="Load a loaded target again: its tables are empty until that is done."),
    ] = False,
    engine: EngineOption = "auto",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Create the tables of a target and load all rows into them while the source is in use.

    The load leaves the target at an exact position, from which `venus sync` continues. The source is not read if the
    broker has the full data already.
    """
    from venus.adapters.targets.registry import open_target
    from venus.process.system import keep_freed_memory

    run = Invocation.from_options(ctx, config, as_json)
    settings = run.directed_settings
    opened = open_target(settings, choose_target(settings, target))
    if ddl_only:
        return show_ddl(run, opened)
    engine = choose_engine(opened, engine)
    require_engine(settings, engine)
    keep_freed_memory()
    report = fill_and_load(settings, opened, run.out, engine, empty_meanwhile=empty_meanwhile)
    return print_result(run, report, read_mirrored_tables(settings), find_tables_out_of_capture(settings))


class Steps(Protocol):
    """Receiver of the progress of named steps."""

    def update(self, name: str, done: int, total: int = 0, *, title: str = "") -> None:
        """Set the progress of one step; total 0 = unknown, an empty title = the title given to `progress`."""


class LoadOutput(Protocol):
    """Receiver of a load's remarks and progress."""

    def say(self, line: str) -> None:
        """Receive a remark."""

    def progress(self, title: str) -> AbstractContextManager[Steps]:
        """Return the progress of some steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationReport:
    """Result of a full sync."""

    load: LoadReport
    #: The engine that moved the rows: local or spark.
    engine: str
    #: Rows read from the source, by table, for tables without a first fill; None = the source is unreachable.
    first_fill: dict[str, int] | None
    first_fill_s: float


def fill_and_load(
    settings: Settings, target: Target, out: LoadOutput, engine: str = "auto", *, empty_meanwhile: bool = False
) -> MigrationReport:
    """Run the first fill if it is missing, then the full sync of one target."""
    from venus.cli.overlap import OverlappedLoad, can_overlap, find_fill_end
    from venus.cli.status_tables import load_obstacles, report_waits

    started = time.monotonic()
    with closing(OverlappedLoad(settings, target.name, out.say)) as overlap:
        is_apart = not can_overlap(settings, target, engine)
        with out.progress("reading") as steps:
            filled = complete_first_fill(out.say, settings, target, steps, None if is_apart else overlap)
        read_s = time.monotonic() - started
        with (
            out.progress("loading") as steps,
            open_runner_choice(settings, engine, out.say) as choice,
            report_waits(settings, out.say, load_obstacles),
        ):
            show = partial(show_load, target, out.say, steps)
            if overlap.is_under_way:
                report = overlap.finish(find_fill_end(settings), show)
            else:
                report = target.load(show, choose=choice, empty_meanwhile=empty_meanwhile)
    return MigrationReport(load=report, engine=choice.name, first_fill=filled, first_fill_s=read_s)


def read_mirrored_tables(settings: Settings) -> tuple[str, ...]:
    """Return the tables that the broker's set mirrors, as its labels name them; () = all."""
    from venus.rpc.address import broker_address
    from venus.rpc.admin import AdminClient

    with AdminClient(broker_address(settings)) as admin:
        return admin.mirrored_tables(settings.business.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesOutOfCapture:
    """Tables without capture: released ones, and new ones that the patterns choose."""

    released: tuple[str, ...] = ()
    uncaptured: tuple[UncapturedTable, ...] = ()

    @property
    def lines(self) -> list[str]:
        """A line of output for each table without capture."""
        return [
            *(f"! {name} is not captured any more: its last captured state is loaded" for name in self.released),
            *(f"! not loaded: {uncaptured_problem(table.name, table.obstacle)}" for table in self.uncaptured),
        ]


def find_tables_out_of_capture(settings: Settings) -> TablesOutOfCapture:
    """Find the tables that are not captured; none if the source is unreachable."""
    from venus.cli.install import open_configured_source

    chosen = settings.source
    try:
        with open_configured_source(settings) as source:
            return TablesOutOfCapture(
                released=tuple(t.schema.qualified_name for t in source.registry.read_released_tables()),
                uncaptured=tuple(source.dictionary.find_uncaptured_tables(chosen.tables, chosen.exclude)),
            )
    except VenusError:
        return TablesOutOfCapture()


def choose_engine(target: Target, engine: str) -> str:
    """Return the engine for a target. If Spark cannot load the target, `auto` means local, and `spark` is refused."""
    from venus.adapters.targets.contract import require_capability

    if engine == "spark":
        require_capability(target, "loads_by_runner")
    return engine if target.capabilities.loads_by_runner or engine != "auto" else "local"


def complete_first_fill(
    say: Callable[[str], None], settings: Settings, target: Target, steps: Steps, overlap: OverlappedLoad | None
) -> dict[str, int] | None:
    """Make sure that every captured table has been read once; return None if the source is unreachable.

    The command checks that the target can take the tables before it reads the first row, because the fill may take
    hours. If there are many rows, `overlap` loads the target during the fill.

    If the source is unreachable, the target gets the broker's data. Nothing is lost: rows that were never read arrive
    as increments when the source is reachable again.
    """
    from venus.cli.status_tables import fill_obstacles, report_waits, watched_fill_obstacles
    from venus.errors import Fenced, Held

    try:
        tables = read_captured_tables(settings)
    except ConfigError:
        raise
    except VenusError as error:
        say(f"the source is unreachable ({error}): loading the broker's full data as it is")
        return None
    if all(t.is_read for t in tables):
        return {}
    target.require_fit([t.schema for t in tables])
    if not is_capture_connected(settings):
        try:
            with report_waits(settings, say, fill_obstacles):
                return run_first_fill(settings, steps, overlap)
        except (Fenced, Held):
            say("`venus sync` has just been started: it reads the tables, this command waits")
    with report_waits(settings, say, watched_fill_obstacles):
        return wait_for_fill(settings, steps, overlap)


def read_captured_tables(settings: Settings) -> list[RegisteredTable]:
    """Read the captured tables. Raises ConfigError if there is none."""
    from venus.cli.install import open_configured_source

    if not settings.source.url.get_secret_value():
        raise VenusError("no [source] url is set")
    with open_configured_source(settings) as source:
        tables = [t for t in source.registry.read_registered_tables() if not t.schema.is_heartbeat]
    if not tables:
        raise ConfigError("no table is captured yet", hint="run `venus install-triggers` first")
    return tables


def is_capture_connected(settings: Settings) -> bool:
    """Return whether capture is connected. Raises VenusError if the broker is unreachable."""
    from venus.rpc.address import broker_address
    from venus.rpc.admin import AdminClient

    with AdminClient(broker_address(settings)) as admin:
        found = admin.status(settings.business.name)
    return any(b.producer for b in found.businesses if b.business == settings.business.name)


def run_first_fill(settings: Settings, steps: Steps, overlap: OverlappedLoad | None) -> dict[str, int]:
    """Capture in this process until every table has been read."""
    from venus.adapters.upper.capture import run_capture_fill

    def report(found: Any) -> None:
        """Show the progress of the fill, and start the load if it is due."""
        for fill in found.fills:
            steps.update(fill.table, fill.rows_done, fill.rows_estimate)
        start_load_if_due(overlap, found.fills, steps)

    return dict(run_capture_fill(settings, threading.Event(), report).rows)


def start_load_if_due(overlap: OverlappedLoad | None, tables: Iterable[TableRead], steps: Steps) -> None:
    """Start the load beside the first read if it is due, and show its progress."""
    if overlap is not None:
        overlap.start_if_due(tables)
        if overlap.progress.rows:
            steps.update(f"target {overlap.target}", overlap.progress.rows, title="loading")


def wait_for_fill(settings: Settings, steps: Steps, overlap: OverlappedLoad | None = None) -> dict[str, int]:
    """Wait while another process reads the tables, and show its progress."""
    from venus.cli.install import open_configured_source

    with open_configured_source(settings) as source:
        while True:
            tables = source.registry.read_registered_tables()
            for t in tables:
                steps.update(t.schema.qualified_name, t.fill.rows_done, t.fill.rows_estimate)
            start_load_if_due(overlap, [t.fill for t in tables], steps)
            if all(t.is_read or t.state != ACTIVE for t in tables):  # tables in other states wait for an operator
                return {t.schema.qualified_name: t.fill.rows_done for t in tables}
            time.sleep(POLL_S)


def show_load(target: Target, say: Callable[[str], None], steps: Steps, found: LoadProgress) -> None:
    """Show the progress of a load."""
    if found.note:
        say(f"target {target.name}: {found.note}")
    if found.phase == "loading":
        steps.update(f"target {target.name}", found.rows, found.rows_estimate)
    elif found.phase == "indexing":
        steps.update(f"{found.table}: keys, indexes, foreign keys", 0)


def print_result(
    run: Invocation,
    found: MigrationReport,
    only: tuple[str, ...] = (),
    out: TablesOutOfCapture = TablesOutOfCapture(),
) -> int:
    """Print the result of the load. Rows that the target refused count as differences."""
    report, filled, read_s = found.load, found.first_fill, found.first_fill_s
    rows = sum(report.rows.values())
    document = {
        "target": report.target,
        "already_loaded": report.already,
        "engine": found.engine,
        "offset": report.offset,
        "rows": rows,
        "rows_per_s": rows / report.seconds if report.seconds else 0.0,
        "seconds": report.seconds,
        "tables": report.rows,
        "refused": report.parked,
        "warnings": report.warnings,
        "left_out": report.left_out,
        "halted": report.halted,
        "mirrored_only": only,
        "not_captured": out.released,
        "not_loaded": [table.name for table in out.uncaptured],
        "source_asked": filled is not None,
        "first_fill": filled or {},
        "first_fill_seconds": read_s,
    }
    if report.already:
        line = f"target {report.target} is loaded already, at offset {report.offset:,}; `venus sync` continues"
        run.out.answer(document, line)
        return 0
    read = (
        f"first fill: {count_phrase(sum(filled.values()), 'row')} read from the source in {read_s:.1f} s"
        if filled
        else ""
    )
    run.out.answer(document, *format_tables(report, only, out), *([read] if read else []), *format_position(report))
    return 1 if report.parked or report.halted else 0


def format_tables(report: LoadReport, only: tuple[str, ...], out: TablesOutOfCapture) -> list[RenderableType]:
    """Format the loaded tables, and the objects of the source that are not among them."""
    shown: list[RenderableType] = [build_table("table", "rows", rows=list(report.rows.items()))]
    shown += [f"! not created: {warning}" for warning in report.warnings]
    shown += [f"! halted: {line}" for line in report.halted]
    if report.left_out:
        look = f"venus migrate --target {report.target} --ddl-only"
        verb = "is" if len(report.left_out) == 1 else "are"
        objects = count_phrase(len(report.left_out), "object")
        shown.append(f"{objects} of the source {verb} not carried over: `{look}` lists them")
    if only:
        shown.append(f"the broker set here mirrors {', '.join(only)} only: the target gets no other table")
    return [*shown, *out.lines]


def format_position(report: LoadReport) -> list[str]:
    """Format the position of the target, and the number of refused rows."""
    rows = count_phrase(sum(report.rows.values()), "row")
    shown = [f"target {report.target}: {rows} in {report.seconds:.1f} s, at offset {report.offset:,}"]
    if report.parked:
        look = f"venus quarantine list --target {report.target}"
        verb = "was" if report.parked == 1 else "were"
        shown.append(f"! {count_phrase(report.parked, 'row')} {verb} refused by the target: `{look}`")
    return shown
