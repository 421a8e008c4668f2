"""`venus run`: broker, capture and apply of all targets in one process.

The broker has its own thread and event loop. Capture and apply use it without a connection (venus/rpc/in_process.py);
commands, Spark and other consumers reach it over gRPC, like `venus broker`. `venus broker` and `venus sync` use the
same configuration and data directory, so an operator can change between `venus run` and these at any time.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from venus.cli.failure import explain
from venus.cli.invocation import ConfigOption, Invocation, JsonOption, LogFormatOption
from venus.cli.loop_threads import Emit, LoopThread, ThreadSupervisor
from venus.cli.supervisor import EventWriter, has_turned
from venus.errors import ConfigError, DirectionChanged, NotInstalled, VenusError
from venus.flow.breaker import RetryPolicy, find_retry_policy

if TYPE_CHECKING:
    from venus.broker.service.process import RunningBroker
    from venus.config import Settings

NO_TRIGGERS = "source: no triggers are installed"
INSTALL_HINT = "`venus run --install` installs them; `venus install-triggers --dry-run` shows the statements"


def run(
    ctx: typer.Context,
    install: Annotated[
        bool, typer.Option("--install", help="Install the triggers that are missing at the source, and list them.")
    ] = False,
    log_format: LogFormatOption = "text",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run everything in one process until SIGTERM: broker, capture, and apply of all targets.

    Loads a target that was never loaded, then follows the source. `venus broker` and `venus sync` do the same in
    separate processes, for clusters and several machines, with the same configuration and data. Exit code 3 if the
    source has no triggers.
    """
    invocation = Invocation.from_options(ctx, config, as_json)
    invocation.choose_log_format(log_format)
    settings = invocation.directed_settings
    require_one_process(settings)
    on_terminal = sys.stderr.isatty() and invocation.log_format == "text"
    invocation.log_to_stderr(logging.WARNING if on_terminal else logging.INFO)
    ensure_triggers(invocation, settings, install=install)
    with export_traces(settings, invocation.role), serving_broker(invocation, settings):
        return run_both_directions(invocation)


def require_one_process(settings: Settings) -> None:
    """Refuse a configuration that one process cannot serve. Raises ConfigError."""
    from venus.config import require_source

    require_source(settings)
    if not settings.targets:
        raise ConfigError("there is no [targets.NAME] section", hint="add one; `venus init` writes a configuration")
    if settings.cluster.name or settings.broker.addresses or settings.broker.further or settings.broker.seeds:
        raise ConfigError(
            "`venus run` has one broker of its own, but the configuration names several",
            hint="run `venus broker` on each machine of [broker] addresses, and `venus sync`",
        )


# -- triggers ----------------------------------------------------------------------------------------------------------


def ensure_triggers(run: Invocation, settings: Settings, *, install: bool) -> None:
    """Make sure that triggers are installed. Raises NotInstalled if they are missing and may not be created.

    If the source is unreachable now, this does nothing, because capture waits for it.
    """
    present = find_triggers(settings, run.out.say)
    if present is None:
        return
    if not present and not install and can_ask(run):
        run.out.say(f"{NO_TRIGGERS}; these would be created:")
        install_missing(run, settings, only_list=True)
        install = typer.confirm("Install them now?", err=True)
    if install:
        install_missing(run, settings)
    elif not present:
        raise NotInstalled(NO_TRIGGERS, hint=INSTALL_HINT)


def require_triggers(settings: Settings, say: Callable[[str], object]) -> None:
    """Raise NotInstalled if no table is captured, unless the source is unreachable now."""
    if find_triggers(settings, say) is False:
        raise NotInstalled(NO_TRIGGERS, hint=INSTALL_HINT)


def find_triggers(settings: Settings, say: Callable[[str], object]) -> bool | None:
    """Return whether any table is captured; if the source is unreachable now, say so and return None."""
    from venus.cli.install import open_configured_source

    try:
        with open_configured_source(settings) as source:
            return any(not table.schema.is_heartbeat for table in source.registry.read_registered_tables())
    except NotInstalled:
        return False
    except VenusError as error:
        if find_retry_policy(error, has_worked=False) is not RetryPolicy.WAIT:
            raise
        say(f"the source cannot be reached now: {error}")
        return None


def can_ask(run: Invocation) -> bool:
    """Return whether the command can ask its user a question on the terminal."""
    return not run.json and sys.stdin.isatty() and sys.stderr.isatty()


def install_missing(run: Invocation, settings: Settings, *, only_list: bool = False) -> None:
    """List the objects that are missing at the source, one line for each table, and create them."""
    from venus.cli.install import (
        check_patterns,
        choose_tables,
        find_refused_tables,
        format_per_table,
        open_configured_source,
    )

    with open_configured_source(settings) as source:
        check_patterns(settings, source)
        refused = find_refused_tables(source, settings)
        chosen = choose_tables(settings, refused)
        planned = [step for step in source.installer.plan_install(*chosen) if not step.exists]
        for line in (*refused.values(), *format_per_table("+", planned)):
            run.out.say(line)
        if not only_list:
            source.installer.install(*chosen)


# -- the broker --------------------------------------------------------------------------------------------------------


@contextmanager
def export_traces(settings: Settings, role: str) -> Iterator[None]:
    """Export traces while the block runs."""
    from venus.process import tracing

    spans = tracing.start_tracing(settings.tracing.endpoint, settings.tracing.sample, role)
    try:
        yield
    finally:
        tracing.stop_tracing(spans)


@contextmanager
def serving_broker(run: Invocation, settings: Settings) -> Iterator[RunningBroker]:
    """Run the broker in a thread while the block runs."""
    from venus.broker.service.process import prepare_process, start_in_thread
    from venus.process.system import freeze_objects, keep_freed_memory

    prepare_process()
    keep_freed_memory()
    try:
        broker = start_in_thread(settings, in_process=True)
    except ConfigError as error:
        if not str(error).startswith("broker."):
            raise
        raise ConfigError(
            str(error), hint=f"{error.hint.rstrip('.')}; a broker that runs already is used by `venus sync`"
        ) from error
    try:
        freeze_objects()
        announce(run, settings, broker)
        yield broker
    finally:
        broker.stop()
        run.out.write_event({"event": "ended"}, "broker stopped")


def announce(run: Invocation, settings: Settings, broker: RunningBroker) -> None:
    """Write the event that the broker is ready, with its addresses."""
    data_dir = settings.broker.data_dir.resolve()
    page = f", status page {broker.page}" if broker.http_address else ""
    document = {"event": "ready", "listen": broker.address, "http": broker.http_address, "data_dir": str(data_dir)}
    run.out.write_event(document, f"broker ready at {broker.address}{page}, data in {data_dir}")


# -- the loops ---------------------------------------------------------------------------------------------------------


def run_both_directions(run: Invocation) -> int:
    """Run the loops; after a switch (`venus cutover --fall-back`), run the other direction's. Return the exit code."""
    from venus.cli.sync_direction import forget_owner

    signalled: list[int] = []
    while True:
        try:
            return run_loops(run, signalled)
        except DirectionChanged:
            run.forget_direction()
            forget_owner(run.settings)


def run_loops(run: Invocation, signalled: list[int]) -> int:
    """Run capture and the targets until a signal or until capture ends permanently. Raises DirectionChanged."""
    from venus.cli.loop_threads import TargetLoop, format_step
    from venus.cli.sync import report_capture_end
    from venus.cli.sync_direction import SwitchMonitor

    stop, captured = threading.Event(), threading.Event()
    switch = SwitchMonitor(run, stop)
    body = partial(capture_changes, run, stop, captured, partial(switch.describe, None))
    capture = LoopThread(name="capture", body=body, is_vital=True)
    names = run.directed_settings.targets
    targets = [LoopThread(name=n, body=TargetLoop(run, n, stop, captured, switch.describe).run) for n in names]
    writer = EventWriter(run)

    def write(name: str, found: Any) -> None:
        """Write a report or an event of a loop."""
        if not isinstance(found, dict):
            writer.on_report(name, found)
        elif line := format_step(found):
            run.out.write_event({"loop": name, **found}, run.redactor(f"{name}: {line}"))
        else:
            writer.on_event(name, found)

    supervisor = ThreadSupervisor([capture, *targets], stop, write, lambda error: explain(error, run))
    supervisor.stop_on_signals(os._exit, signalled)
    code = supervisor.run()
    if has_turned((capture, *targets)):
        if not signalled:
            raise DirectionChanged
    elif capture.code is not None:
        report_capture_end(run, capture)
    return code


def capture_changes(
    run: Invocation,
    stop: threading.Event,
    captured: threading.Event,
    describe_switch: Callable[[], str],
    emit: Emit,
) -> None:
    """Capture until the stop; set `captured` once every table has been read. Raises DirectionChanged."""
    from venus.adapters.upper.capture import run_capture
    from venus.cli.sync import run_reported
    from venus.cli.sync_direction import DirectionGuard

    settings, guard = run.directed_settings, DirectionGuard(run)

    def on_report(found: Any) -> None:
        """Pass a report on; set `captured` once every table has been read."""
        emit(found)
        if found.state == "capturing":  # after the event, because the loads that wait for this write their own events
            captured.set()

    def body(report: Callable[[Any], None]) -> None:
        """Capture, as long as changes flow from this source."""
        capture = lambda: run_capture(  # noqa: E731
            settings, stop, report=report, may_read_again=guard.may_read_again, describe_switch=describe_switch
        )
        guard.run_capture(capture, stop)

    run_reported(body, stop, on_report, emit)
