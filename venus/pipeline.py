"""A pipeline inside a Python program, for pytest, Airflow or Dagster: the commands of `venus` as methods.

    from venus.pipeline import Pipeline

    with Pipeline.from_toml("venus.toml") as pipeline:
        pipeline.install()
        pipeline.migrate()
        pipeline.run(for_s=60)

Methods use the functions that the commands use (venus/cli/), in threads of this process. Methods write nothing to
standard output, install no signal handlers, and change neither umask nor limits of the process. Relative paths in the
configuration start at the working directory, as for commands. Errors are those of venus.errors, without passwords.

A load or a comparison of 50,000 rows or more starts processes, as `multiprocessing` does with "spawn". A script
therefore needs `if __name__ == "__main__":`; `[apply] load_workers = 1` needs fewer processes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from venus.adapters.verify.findings import VerifyResult
from venus.cli.install import CheckReport, InstallReport
from venus.cli.invocation import Invocation, choose_target
from venus.cli.load import MigrationReport
from venus.cli.output import Redactor
from venus.client import Broker
from venus.errors import ConfigError, DirectionChanged, Refused, StorageError, VenusError
from venus.process.system import call_from_handler

if TYPE_CHECKING:
    from venus.adapters.targets.contract import FollowReport
    from venus.adapters.upper.periodic import CaptureReport
    from venus.broker.service.process import RunningBroker
    from venus.cli.loop_threads import Emit, LoopThread
    from venus.config import Settings

__all__ = [
    "CheckReport",
    "InstallReport",
    "MigrationReport",
    "Pipeline",
    "PipelineEvent",
    "RunReport",
    "VerifyResult",
]

logger = logging.getLogger(__name__)

#: Seconds between two calls of `until`, and between two events about the progress of a load.
LOOK_S, PROGRESS_S = 0.1, 5.0
CAPTURE = "capture"
#: One comparison at a time: it keeps its sessions in a global of its module, as its worker processes must.
_one_comparison = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineEvent:
    """An event of a pipeline, as `venus run` and `venus migrate` print it."""

    #: "capture" or the name of a target.
    loop: str
    #: Such as report, loading, loaded, following, waiting, restarts, stopped.
    event: str
    #: The event in words, without passwords.
    text: str


OnEvent = Callable[[PipelineEvent], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Result of a run: the newest report of capture and of each target; None if there was none."""

    seconds: float
    capture: CaptureReport | None
    targets: Mapping[str, FollowReport | None]
    #: The newest error that each loop waited out.
    problems: Mapping[str, str]


class Pipeline:
    """One source, its targets, and the broker between them.

    By default the broker runs in this process, as in `venus run`, during each call, or during a `with` block around
    several calls. With `own_broker=False` calls use the broker that the configuration names. `on_event` gets every
    event, in threads of the pipeline; it should return quickly.

    Thread-safe: any thread may call any method, also during a run. Only one run is active at a time. Several pipelines
    in a process need separate data directories and ports; `listen = "127.0.0.1:0"` takes a free port.
    """

    def __init__(self, settings: Settings, *, own_broker: bool = True, on_event: OnEvent = lambda _: None) -> None:
        from venus.cli.run import require_one_process
        from venus.security.secrets import resolve_passwords

        if own_broker:
            require_one_process(settings)
        self._settings = resolve_passwords(settings)
        self._redact = Redactor()
        self._redact.learn(self._settings)
        self._own_broker, self._on_event = own_broker, on_event
        self._lock = threading.RLock()
        self._broker: RunningBroker | None = None
        self._users = 0
        self._entered: list[AbstractContextManager[Invocation]] = []
        self._current: _Run | None = None

    @classmethod
    def from_toml(cls, path: str | Path, *, own_broker: bool = True, on_event: OnEvent = lambda _: None) -> Self:
        """Read a configuration; variables of the environment override it, as for commands. Raises ConfigError."""
        from venus.config import load

        return cls(load(Path(path)), own_broker=own_broker, on_event=on_event)

    # -- the commands ----------------------------------------------------------------------------------------------

    def check(self) -> CheckReport:
        """Report what is missing or cannot be carried, at the source and at every target. Reads only."""
        from venus.cli.install import check_both_ends

        with self._redact_errors():
            return check_both_ends(self._build_invocation().directed_settings)

    def install(self) -> InstallReport:
        """Create the triggers that are missing at the source.

        Tables that cannot be captured are in `refused` of the result. Raises Refused if no table would be captured.
        """
        from venus.cli.install import check_patterns, find_refused_tables, install_chosen_tables, open_configured_source

        with self._redact_errors():
            settings = self._build_invocation().directed_settings
            with open_configured_source(settings) as source:
                check_patterns(settings, source)
                return install_chosen_tables(source, settings, find_refused_tables(source, settings))

    def migrate(self, target: str = "", *, engine: str = "auto", empty_meanwhile: bool = False) -> MigrationReport:
        """Create the tables of a target and load all rows; do nothing if the target is loaded already.

        `target` may be left out if there is only one. `empty_meanwhile` empties a loaded target and loads it again.
        """
        from venus.adapters.targets.registry import open_target
        from venus.cli.load import choose_engine, fill_and_load

        with self._redact_errors(), self._serve() as invocation:
            settings = invocation.directed_settings
            opened = open_target(settings, choose_target(settings, target or None))
            out = _LoadEvents(opened.name, self._emit)
            return fill_and_load(settings, opened, out, choose_engine(opened, engine), empty_meanwhile=empty_meanwhile)

    def run(self, *, for_s: float | None = None, until: Callable[[], object] | None = None) -> RunReport:
        """Capture changes and apply them to all targets until a time has passed, `until` is true, or `stop` is called.

        Loads a target that was never loaded. Waits out temporary errors. Raises NotInstalled without triggers, or the
        error that ended capture or a target. `until` runs in the caller's thread.
        """
        if for_s is not None and not for_s >= 0:
            raise ConfigError(f"for_s is {for_s}: it should be a number of seconds", hint="None runs until `stop`")
        end = None if for_s is None else time.monotonic() + for_s
        with self._run_loops() as run:
            while not run.is_over.wait(LOOK_S if end is None else max(0.0, min(LOOK_S, end - time.monotonic()))):
                if (end is not None and time.monotonic() >= end) or (until is not None and until()):
                    break
        return run.build_report()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run in the background during a block. The block's end raises an error that ended capture or a target."""
        with self._run_loops():
            yield

    def stop(self) -> None:
        """Let the present run end in order, from any thread; return at once. If there is no run, do nothing."""
        run = self._current  # without the lock: a signal handler of the program may call this
        if run is not None:
            call_from_handler(run.request_stop)

    def verify(
        self, target: str = "", *, tables: Sequence[str] = (), where: str = "", wait_s: float = 30.0
    ) -> VerifyResult:
        """Compare the source and a target row by row, while both are in use; `verdict` of the result has the outcome.

        Changes that are under way are waited for, up to `wait_s`. Changes no row.
        """
        from venus.adapters.verify.run import VerifyOptions, run_verify
        from venus.cli.verify import record_comparison

        with self._redact_errors(), self._serve() as invocation, _one_comparison:
            settings = invocation.directed_settings
            name = choose_target(settings, target or None)
            options = VerifyOptions(target=name, tables=tuple(tables), where=where, wait_s=wait_s)
            result = run_verify(settings, options)
            record_comparison(settings, options, result, None, lambda line: self._emit(name, "remark", line))
        return result

    @property
    def address(self) -> str:
        """HOST:PORT of the broker, for `venus.client.connect` in other processes."""
        return self._build_invocation().settings.broker.reach

    def connect(self) -> Broker:
        """Return a client of the broker, for snapshots and changes. Raises Refused if the pipeline's broker is down."""
        from venus.rpc.address import broker_address

        with self._lock:
            if self._own_broker and self._broker is None:
                raise Refused("the broker of this pipeline does not run", hint="connect inside `with pipeline:`")
            settings = self._build_invocation().settings
        return Broker(broker_address(settings), settings.business.name)

    # -- the broker and the loops ----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Start the own broker, which then runs until the end of the block."""
        serving = self._serve()
        with self._redact_errors():
            serving.__enter__()
        self._entered.append(serving)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop().__exit__(kind, error, trace)

    def _build_invocation(self) -> Invocation:
        """Return the options of a command: the configuration, with the real port of the own broker."""
        found, settings = Invocation(redactor=self._redact), self._settings
        with self._lock:
            if self._broker is not None:
                broker = settings.broker.model_copy(update={"listen": self._broker.address})
                settings = settings.model_copy(update={"broker": broker})
        found.settings = settings
        return found

    @contextmanager
    def _serve(self) -> Iterator[Invocation]:
        """Keep the own broker running during the block."""
        from venus.broker.service.process import start_in_thread

        with self._lock:
            if self._own_broker and self._broker is None:
                self._broker = start_in_thread(self._settings, on_fatal=self._on_fatal, in_process=True)
            self._users += 1
        try:
            yield self._build_invocation()
        finally:
            with self._lock:
                self._users -= 1
                if not self._users and self._broker is not None:
                    self._broker.stop()
                    self._broker = None

    def _on_fatal(self, error: BaseException) -> None:
        """End the run with the error that has stopped the own broker."""
        logger.critical("broker: %s", self._redact(str(error) or type(error).__name__))
        run = self._current
        if run is not None:
            run.end_with(error if isinstance(error, VenusError) else StorageError(str(error)))

    @contextmanager
    def _run_loops(self) -> Iterator[_Run]:
        """Run capture and apply in the background during the block, and raise the error that ended them."""
        with self._redact_errors(), self._serve() as invocation:
            run = _Run(invocation, self._emit)
            with self._lock:
                if self._current is not None:
                    raise Refused("this pipeline runs already", hint="`stop` ends the present run")
                self._current = run
            try:
                run.start()
                yield run
            finally:
                run.finish()
                with self._lock:
                    self._current = None
            run.raise_error()

    def _emit(self, loop: str, event: str, text: str) -> None:
        """Report an event to the caller, without passwords."""
        self._on_event(PipelineEvent(loop=loop, event=event, text=self._redact(text)))

    @contextmanager
    def _redact_errors(self) -> Iterator[None]:
        """Remove passwords from VENUS errors that the block raises."""
        try:
            yield
        except VenusError as error:
            error.args, error.hint = (self._redact(str(error)),), self._redact(error.hint)
            raise


class _LoadEvents:
    """Output of a load as events: remarks, and its progress every few seconds."""

    def __init__(self, target: str, emit: Callable[[str, str, str], None]) -> None:
        self._target, self._emit = target, emit
        self._title, self._reported_at = "", time.monotonic()

    def say(self, line: str) -> None:
        self._emit(self._target, "remark", line)

    def progress(self, title: str) -> AbstractContextManager[_LoadEvents]:
        self._title = title
        return nullcontext(self)

    def update(self, name: str, done: int, total: int = 0, *, title: str = "") -> None:
        if time.monotonic() >= self._reported_at + PROGRESS_S:
            self._reported_at = time.monotonic()
            of = f" of about {total:,}" if total else ""
            self._emit(self._target, "progress", f"{title or self._title} {name}: {done:,}{of}")


class _Run:
    """One run: its loops in threads, their newest reports, and the error that has ended it."""

    def __init__(self, invocation: Invocation, emit: Callable[[str, str, str], None]) -> None:
        self.is_over = threading.Event()
        self._invocation, self._emit = invocation, emit
        self._stop, self._is_stopping = threading.Event(), threading.Event()
        self._loops: list[LoopThread] = []
        self._error: BaseException | None = None
        self._reports: dict[str, Any] = {}
        self._problems: dict[str, str] = {}
        self._errors: dict[str, Exception] = {}
        self._thread = threading.Thread(target=self._main, name="venus-pipeline", daemon=True)
        self._began = self._ended = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Stop the loops and wait for their end."""
        self.request_stop()
        self._thread.join()
        self._ended = time.monotonic()

    def request_stop(self) -> None:
        """Ask all loops to end; return at once."""
        self._is_stopping.set()
        self._stop.set()

    def end_with(self, error: VenusError) -> None:
        """End the run with this error, unless it has one already."""
        self._error = self._error or error
        self.request_stop()
        self.is_over.set()

    def raise_error(self) -> None:
        """Raise the error that has ended the run, unless it was stopped."""
        if self._error is not None:
            raise self._error
        for loop in self._loops:
            if loop.code is not None and not isinstance(self._errors[loop.name], DirectionChanged):
                raise self._errors[loop.name]

    def build_report(self) -> RunReport:
        return RunReport(
            seconds=self._ended - self._began,
            capture=self._reports.get(CAPTURE),
            targets={loop.name: self._reports.get(loop.name) for loop in self._loops[1:]},
            problems=dict(self._problems),
        )

    def _main(self) -> None:
        """Run the loops until they end; after a change of direction, run them again. The run's thread calls this."""
        from venus.cli.run import require_triggers

        try:
            require_triggers(self._invocation.directed_settings, partial(self._emit, CAPTURE, "remark"))
            while self._run_one_direction():
                self._forget_direction()
        except BaseException as error:  # the caller gets it
            self._error = self._error or error
        finally:
            self.is_over.set()

    def _run_one_direction(self) -> bool:
        """Run until a stop or a final error. Return whether changes now flow in the other direction."""
        from venus.cli.loop_threads import LoopThread, TargetLoop, ThreadSupervisor
        from venus.cli.run import capture_changes
        from venus.cli.supervisor import has_turned
        from venus.cli.sync_direction import SwitchMonitor

        own, stop, captured = self._invocation, threading.Event(), threading.Event()
        self._stop = stop
        if self._is_stopping.is_set():
            return False
        switch = SwitchMonitor(own, stop)
        bodies: list[tuple[str, Callable[[Emit], None]]] = [
            (CAPTURE, partial(capture_changes, own, stop, captured, partial(switch.describe, None))),
            *((n, TargetLoop(own, n, stop, captured, switch.describe).run) for n in own.directed_settings.targets),
        ]
        self._loops = [LoopThread(name=name, body=self._keep_error(name, body), is_vital=True) for name, body in bodies]
        ThreadSupervisor(self._loops, stop, self._on_event, _explain).run()
        return has_turned(self._loops) and not self._is_stopping.is_set()

    def _forget_direction(self) -> None:
        from venus.cli.sync_direction import forget_owner

        self._invocation.forget_direction()
        forget_owner(self._invocation.settings)

    def _keep_error(self, name: str, body: Callable[[Emit], None]) -> Callable[[Emit], None]:
        """Wrap the body of a loop, so that its error is also kept for `raise_error`."""

        def run(emit: Emit) -> None:
            try:
                body(emit)
            except Exception as error:
                self._errors[name] = error
                if not isinstance(error, VenusError):
                    logger.exception("%s: unexpected error", name)
                raise

        return run

    def _on_event(self, loop: str, found: Any) -> None:
        """Keep a loop's report or problem, and report its event to the caller."""
        from venus.cli.loop_threads import format_step
        from venus.cli.supervisor import format_event

        if not isinstance(found, dict):
            self._reports[loop] = found
            found = {"event": "report", **asdict(found)}
        if problem := found.get("error") or found.get("last_error"):
            self._problems[loop] = str(problem)
        try:
            self._emit(loop, found["event"], format_step(found) or format_event(found))
        except Exception as error:  # of `on_event`: the caller gets it, once the loops have stopped
            self._error = self._error or error
            self.request_stop()


def _explain(error: BaseException) -> tuple[str, str, int]:
    """Return the message, the hint and the exit code of the error of a loop."""
    if isinstance(error, VenusError):
        return str(error), error.hint, error.exit_code
    return f"unexpected {type(error).__name__}: {error}", "", VenusError.exit_code
