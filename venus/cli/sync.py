"""`venus sync`: captures changes and applies them continuously.

One loop (`--capture-only`, or `--apply-only` with one target) runs in this process. Several loops run as children, so
that one failing target cannot stop the others. All positions are durable elsewhere, so a stop is safe at any moment.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from venus.cli.invocation import ConfigOption, Invocation, JsonOption, LogFormatOption
from venus.cli.supervisor import (
    HEALTHY_AFTER_S,
    WELL,
    EventWriter,
    LoopProcess,
    SupervisedLoop,
    Supervisor,
    has_turned,
    stop_with_parent,
)
from venus.cli.sync_direction import (
    DirectionGuard,
    SwitchMonitor,
    flows_back,
    forget_owner,
    require_direction,
    resolve_names,
)
from venus.errors import ConfigError, DirectionChanged, VenusError
from venus.flow.breaker import RetryPolicy, find_retry_policy
from venus.process.system import call_from_handler, freeze_objects, keep_freed_memory, stop_signals

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from venus.adapters.targets.contract import Target
    from venus.config import Settings


def run_spark(settings: Settings, target: Target, stop: threading.Event, report: Callable[[Any], None]) -> None:
    """Apply changes to one target in a Spark session, until `stop`."""
    from venus.spark.runner import SparkRunner
    from venus.spark.session import open_session
    from venus.spark.streaming_apply import run_stream

    with (
        open_session(settings, app=f"venus sync {settings.business.name}/{target.name}") as spark,
        target.open_scaled_apply(SparkRunner(spark.sparkContext), stop, report) as applies,
    ):
        run_stream(spark, settings, applies, stop)


logger = logging.getLogger(__name__)

DELAY_MIN_S, DELAY_MAX_S = 0.5, 15.0

TargetsOption = Annotated[
    list[str] | None, typer.Option("--target", metavar="NAME", help="Apply to this target only; repeatable.")
]

SyncEngineOption = Annotated[
    str,
    typer.Option("--engine", metavar="local|spark", help="Engine that applies changes: this process, or Spark."),
]


def sync(
    ctx: typer.Context,
    capture_only: Annotated[bool, typer.Option("--capture-only", help="Source to broker only.")] = False,
    apply_only: Annotated[bool, typer.Option("--apply-only", help="Broker to targets only.")] = False,
    target: TargetsOption = None,
    engine: SyncEngineOption = "local",
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Capture even if another instance captures; that one stops permanently.")
    ] = False,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
    back: Annotated[bool, typer.Option("--back", hidden=True)] = False,
    log_format: LogFormatOption = "text",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Capture changes and apply them to the targets until SIGTERM; continues where it stopped.

    Without options, the command handles the source and every target. With --json it writes one object per line. Only
    one instance captures: a second one is refused (exit code 3) while the first is alive. The command exits with an
    error when capture has ended permanently.
    """
    run = Invocation.from_options(ctx, config, as_json)
    run.supervised = with_parent
    run.choose_log_format(log_format)
    settings = run.directed_settings
    require_sync_engine(settings, engine)
    if apply_only and take_over:
        raise ConfigError("--take-over concerns capture, but --apply-only does not capture")
    if with_parent:
        require_direction(settings, is_back=back)
    names = resolve_names(run, target)
    targets = choose_targets(settings, names, capture_only=capture_only, apply_only=apply_only)
    stop = threading.Event()
    stop_on_signals(stop)
    if with_parent:
        stop_with_parent(stop)
    only_capture, only_target = not apply_only and not targets, apply_only and len(targets) == 1
    if only_capture or only_target:
        run.role = "capture" if only_capture else f"target {targets[0]}"
    run.log_to_stderr(logging.INFO if not with_parent else logging.WARNING)
    while True:
        try:
            if only_capture:
                return run_one(run, "capture", stop, None, take_over=take_over)
            if only_target:
                return run_one(run, targets[0], stop, targets[0], engine)
            return run_children(run, targets, stop, engine, capture=not apply_only, take_over=take_over)
        except DirectionChanged:
            if with_parent:
                raise
            run.forget_direction()
            forget_owner(run.settings)
            targets = choose_targets(
                run.directed_settings, resolve_names(run, target), capture_only=capture_only, apply_only=apply_only
            )
            take_over = False


def run_children(
    run: Invocation, targets: list[str], stop: threading.Event, engine: str, *, capture: bool, take_over: bool
) -> int:
    """Run capture, and apply for each target, as children; return the exit code. Raises DirectionChanged."""
    capturing = build_loop(run, "capture", "--capture-only")
    capturing.at_first = ["--take-over"] if take_over else []
    capturing.is_vital = True
    loops = [capturing] if capture else []
    loops += [build_loop(run, name, "--apply-only", "--target", name, "--engine", engine) for name in targets]
    code = Supervisor(loops, stop, EventWriter(run).on_event).run()
    if has_turned(loops) and not stop.is_set():
        raise DirectionChanged
    if capturing.code is not None and not has_turned((capturing,)):
        report_capture_end(run, capturing)
    return code


def report_capture_end(run: Invocation, capture: SupervisedLoop) -> None:
    """Print that the whole command ends because capture has ended, and why."""
    why = capture.error.get("message") or f"it ended with code {capture.code}"
    message, hint = f"capture has ended, and the targets were stopped: {why}", capture.error.get("hint", "")
    for line in (f"venus: {message}", f"  {hint}")[: 2 if hint else 1]:
        print(run.redactor(line), file=sys.stderr)  # noqa: T201
    if run.json:
        run.out.write_error({"error": {**capture.error, "message": message, "exit_code": capture.code}})


def require_sync_engine(settings: Settings, engine: str) -> None:
    """Refuse an unavailable engine before anything starts. Raises ConfigError."""
    if engine == "local":
        return
    if engine != "spark":
        raise ConfigError(f"--engine {engine}: invalid engine", hint="one of local, spark")
    if settings.spark.remote:
        raise ConfigError(
            "--engine spark of `venus sync` needs the driver in this process, but spark.remote is set",
            hint="set spark.master instead",
        )
    from venus.spark.session import require_spark

    require_spark(settings)


def choose_targets(settings: Settings, names: list[str] | None, *, capture_only: bool, apply_only: bool) -> list[str]:
    """Return the targets to apply to. Raises ConfigError for contradictory options and unknown names."""
    from venus.config import require_source, require_target

    if capture_only and (apply_only or names):
        raise ConfigError("--capture-only cannot be combined with --apply-only or --target")
    if not apply_only:
        require_source(settings)
    if capture_only:
        return []
    for name in names or []:
        require_target(settings, name)
    if not settings.targets:
        raise ConfigError("there is no [targets.NAME] section", hint="add one, or use --capture-only")
    return list(dict.fromkeys(names or settings.targets))


def stop_on_signals(stop: threading.Event) -> None:
    """Let a signal end the command cleanly, and a second one at once.

    A second SIGHUP does not count: the shell and the system each send one when a terminal is closed.
    """
    came: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        """Set `stop` at the first signal; end the process at a second one that is not SIGHUP."""
        if (came or stop.is_set()) and number != signal.SIGHUP:
            os._exit(128 + number)
        came.append(number)
        call_from_handler(stop.set)

    for number in stop_signals():
        signal.signal(number, on_signal)


def build_loop(run: Invocation, name: str, *options: str) -> LoopProcess:
    """Build the child process of one loop: this command with the options of that loop."""
    own = [*(["--verbose"] if run.verbose else []), "--log-format", run.log_format]
    command = [sys.executable, "-m", "venus.cli", *own, "sync", *options, "--with-parent", "--json"]
    if flows_back(run.directed_settings):
        command.append("--back")
    if run.file is not None:
        command += ["-c", str(run.file)]
    return LoopProcess(name=name, command=command)


def run_one(
    run: Invocation,
    name: str,
    stop: threading.Event,
    target: str | None,
    engine: str = "local",
    *,
    take_over: bool = False,
) -> int:
    """Run capture or the loop of one target in this process; return the exit code."""
    keep_freed_memory()
    narrator = EventWriter(run)
    body = build_body(run, target, engine, stop, take_over=take_over)
    from venus.process import tracing

    spans = tracing.start_tracing(
        run.directed_settings.tracing.endpoint, run.directed_settings.tracing.sample, run.role
    )
    try:
        narrator.on_event(name, {"event": "running"})
        run_reported(
            body,
            stop,
            lambda found: narrator.on_report(name, found),
            lambda found: narrator.on_event(name, found),
            supervised=run.supervised,
        )
        narrator.on_event(name, {"event": "stopped"})
    finally:
        tracing.stop_tracing(spans)
    return 0


def build_body(
    run: Invocation, target: str | None, engine: str, stop: threading.Event, *, take_over: bool
) -> Callable[[Callable[[Any], None]], None]:
    """Return the function of one loop in the present direction, capture or apply; its argument is the reporter."""
    guard, describe_switch = DirectionGuard(run), partial(SwitchMonitor(run, stop).describe, target)
    if target is not None:
        return lambda report: guard.run_apply(
            build_follower(run.directed_settings, target, engine, stop, report, describe_switch),
            target,
            stop,
            watched=not run.supervised,
        )
    from venus.adapters.upper.capture import run_capture

    return lambda report: guard.run_capture(
        lambda: run_capture(
            run.directed_settings,
            stop,
            report=report,
            take_over=take_over,
            may_read_again=guard.may_read_again,
            describe_switch=describe_switch,
        ),
        stop,
    )


def run_reported(
    body: Callable[[Callable[[Any], None]], None],
    stop: threading.Event,
    on_report: Callable[[Any], None],
    event: Callable[[dict[str, Any]], None],
    *,
    supervised: bool = True,
) -> None:
    """Run a loop with retries (see `run_with_retries`), and pass its reports on."""
    settled = has_worked = False

    def report(found: Any) -> None:
        """Pass a report on; at the first one, exclude all present objects from garbage collection."""
        nonlocal settled, has_worked
        has_worked = has_worked or is_at_work(found)
        if not settled:  # both sides of the loop are connected, and all imports are done
            freeze_objects()
            settled = True
        on_report(found)

    run_with_retries(lambda: body(report), stop, event, lambda: has_worked, supervised=supervised)


def build_follower(
    settings: Settings,
    name: str,
    engine: str,
    stop: threading.Event,
    report: Callable[[Any], None],
    describe_switch: Callable[[], str],
) -> Callable[[], None]:
    """Return the function that applies changes to a target: in Spark if that was chosen and can write to it."""
    from venus.adapters.targets.registry import open_target

    target = open_target(settings, name)
    target.describe_switch = describe_switch
    if engine == "spark" and target.capabilities.follows_by_runner:
        return lambda: run_spark(settings, target, stop, report)
    return lambda: target.follow(stop, report)


def is_at_work(report: Any) -> bool:
    """Return whether a report shows that both sides of the loop are connected."""
    state = getattr(report, "state", "")
    return state in WELL if state else not report.error


def run_with_retries(
    body: Callable[[], None],
    stop: threading.Event,
    event: Callable[[dict[str, Any]], None],
    has_worked: Callable[[], bool],
    *,
    supervised: bool,
) -> None:
    """Run a loop; retry after errors that may pass by themselves, and raise all others.

    An error that another command has to resolve is retried only if `supervised`, because other loops then continue.
    """
    delay_s = DELAY_MIN_S
    while True:
        started = time.monotonic()
        try:
            body()
        except VenusError as error:
            patience = find_retry_policy(error, has_worked=has_worked())
            if patience is RetryPolicy.END or (patience is RetryPolicy.RARELY and not supervised):
                raise
            if time.monotonic() - started > HEALTHY_AFTER_S:
                delay_s = DELAY_MIN_S
            if patience is RetryPolicy.RARELY:
                delay_s = DELAY_MAX_S
            event({"event": "waiting", "error": str(error), "hint": error.hint, "retry_in_s": delay_s})
            stop.wait(delay_s)
            delay_s = min(delay_s * 2, DELAY_MAX_S)
        else:
            return
        if stop.is_set():
            return
