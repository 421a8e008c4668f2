"""The loops of `venus run`, each in a thread: their supervisor, and the loop of a target.

The supervisor handles the end of a loop as `venus sync` does. A loop that failed is restarted; one that ended for a
final reason stays down. The end of a target's loop does not end the others, but the end of capture does. Only the
supervisor's thread writes: loops put their events into a queue.

A target's loop loads the target if it was never loaded, then applies changes.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from venus.cli.output import PLAIN_EVERY_S
from venus.cli.supervisor import HEALTHY_AFTER_S, LINES_MAX, STOP_TIMEOUT_S, ends_all, restart_delay_s, worst_code
from venus.cli.sync_direction import DirectionGuard
from venus.errors import ConfigError, DatabaseUnavailable, VenusError
from venus.flow.breaker import REMIND_S
from venus.model import count_phrase
from venus.process.system import LOOP_THREADS, call_from_handler, stop_signals

if TYPE_CHECKING:
    from venus.adapters.targets.contract import LoadProgress, Target
    from venus.cli.invocation import Invocation
    from venus.cli.overlap import OverlappedLoad
    from venus.process.runners import Runner


logger = logging.getLogger(__name__)

#: Output of a loop: an event as a dictionary, or a report, which is a frozen dataclass.
Event = Any
Emit = Callable[[Event], None]
#: A function that returns the message, the hint and the exit code of an error.
Explain = Callable[[BaseException], tuple[str, str, int]]
#: How often to check whether stopping loops have ended, and whether to stop while a target waits for the fill.
STOP_LOOK_S = 0.2


@dataclass(slots=True, kw_only=True, eq=False)
class LoopThread:
    """A loop in a thread, with its function and its outcome."""

    name: str
    #: The function, which runs until the stop and passes its events on. Raises the error that ends the loop.
    body: Callable[[Emit], None]
    is_vital: bool = False  # whether its end ends all loops
    thread: threading.Thread | None = None
    error: dict[str, Any] = field(default_factory=dict)
    code: int | None = None  # its exit code, set once it stays down
    reported_at: float = 0.0
    #: The newest report that was passed on, and the time of that.
    report: Any = None
    passed_at: float = 0.0


class ThreadSupervisor:
    """Supervisor that starts loops in threads, passes on their events, restarts them and finally stops them."""

    def __init__(
        self,
        loops: Sequence[LoopThread],
        stop: threading.Event,
        write: Callable[[str, Event], None],
        explain: Explain,
    ) -> None:
        self._loops = loops
        self._stop = stop
        self._write = write
        self._explain = explain
        self._events: queue.SimpleQueue[tuple[str, Event] | None] = queue.SimpleQueue()

    def stop_on_signals(self, end_now: Callable[[int], None], signalled: list[int]) -> None:
        """Let a signal end the command cleanly, and a second one at once, except a second SIGHUP.

        `signalled` has the signals that came, and outlives the loops: one that came before them stops them at once.
        """

        def request_stop() -> None:
            self._stop.set()
            self._events.put(None)  # `run` waits for an event

        def on_signal(number: int, _frame: object) -> None:
            """Stop the loops at the first signal; end the process at a second one that is not SIGHUP."""
            if signalled and number != signal.SIGHUP:
                end_now(128 + number)
            signalled.append(number)
            call_from_handler(request_stop)

        for number in stop_signals():
            signal.signal(number, on_signal)
        if signalled:
            self._stop.set()

    def run(self) -> int:
        """Run until all loops are stopped or stay down; return the worst exit code."""
        for loop in self._loops:
            loop.thread = threading.Thread(
                target=self._run_loop, args=(loop,), name=LOOP_THREADS + loop.name, daemon=True
            )
            loop.thread.start()
        try:
            while not self._stop.is_set() and not self._is_over():
                self._write_next_event(REMIND_S)
                self._remind()
        finally:
            self._stop.set()
            self._wait_for_end()
        return worst_code(self._loops)

    def _is_over(self) -> bool:
        """Return whether all loops stay down, or one stays down that ends the others."""
        return all(loop.code is not None for loop in self._loops) or any(map(ends_all, self._loops))

    def _write_next_event(self, timeout_s: float) -> None:
        """Write the next event of a loop, if one arrives in time."""
        try:
            found = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return
        if found is not None:
            self._write(*found)

    def _remind(self) -> None:
        """Report repeatedly that a loop stays down, and why."""
        now = time.monotonic()
        for loop in self._loops:
            if loop.code is not None and now >= loop.reported_at + REMIND_S:
                loop.reported_at = now
                self._write(loop.name, {"event": "stays down", "code": loop.code, **_error_fields(loop)})

    def _wait_for_end(self) -> None:
        """Wait until the loops have stopped. A loop that takes too long is abandoned: its positions are durable."""
        end = time.monotonic() + STOP_TIMEOUT_S
        while any(loop.thread is not None and loop.thread.is_alive() for loop in self._loops):
            if time.monotonic() >= end:
                late = [loop.name for loop in self._loops if loop.thread is not None and loop.thread.is_alive()]
                logger.warning("%s: did not stop within %.0f s", ", ".join(late), STOP_TIMEOUT_S)
                return
            self._write_next_event(STOP_LOOK_S)
        while not self._events.empty():
            self._write_next_event(STOP_LOOK_S)

    # -- in the loop's thread --------------------------------------------------------------------------------------

    def _emit(self, loop: LoopThread, found: Event) -> None:
        """Queue an event. A report without news is queued only once a minute.

        While the command's own output is blocked, reports are dropped, because they are repeated.
        """
        now = time.monotonic()
        is_report = not isinstance(found, dict)
        repeats = is_report and found == loop.report and now < loop.passed_at + REMIND_S
        if repeats or (is_report and self._events.qsize() >= LINES_MAX):
            return
        loop.report, loop.passed_at = found if is_report else None, now
        self._events.put((loop.name, found))

    def _run_loop(self, loop: LoopThread) -> None:
        """Run a loop; restart it after failures until it ends or has to stay down."""
        restarts = 0
        while True:
            began = time.monotonic()
            if (code := self._run_once(loop)) is None or self._stop.is_set():
                break
            if time.monotonic() - began > HEALTHY_AFTER_S:
                restarts = 0
            delay_s = restart_delay_s(code, loop.error.get("kind", ""), restarts)
            if delay_s is None:
                loop.code, loop.reported_at = code, time.monotonic()
                self._emit(loop, {"event": "stays down", "code": code, **_error_fields(loop)})
                return
            restarts += 1
            self._emit(loop, {"event": "restarts", "in_s": delay_s, "code": code, **_error_fields(loop)})
            self._stop.wait(delay_s)
        self._emit(loop, {"event": "stopped"})

    def _run_once(self, loop: LoopThread) -> int | None:
        """Run a loop once; return its exit code if it has failed, else None."""
        loop.error = {}
        try:
            loop.body(lambda found: self._emit(loop, found))
        except Exception as error:
            message, hint, code = self._explain(error)
            loop.error = {"kind": type(error).__name__, "message": message, "hint": hint, "exit_code": code}
            return code
        return None


def _error_fields(loop: LoopThread) -> dict[str, str]:
    """Return the error and the hint with which a loop has ended, as fields of an event."""
    return {"error": loop.error.get("message", ""), "hint": loop.error.get("hint", "")}


T = TypeVar("T")
R = TypeVar("R")

#: How often a target that waits for the fill asks the source, in a connection of its own, how many rows were read.
FILL_LOOK_S = 2.0


def format_step(found: dict[str, Any]) -> str:
    """Format a step of a target for people; empty = another kind of event."""
    match found["event"]:
        case "loading":
            of = f" of about {found['rows_estimate']:,}" if found["rows_estimate"] else ""
            return f"loading: {found['rows']:,}{of} rows" if found["rows"] else "loading"
        case "loaded":
            parked = f", {count_phrase(found['refused'], 'row')} refused" if found["refused"] else ""
            return (
                f"loaded {count_phrase(found['rows'], 'row')} in {found['seconds']:.1f} s{parked}, at offset "
                f"{found['offset']:,}"
            )
        case "waits":
            return str(found["text"])
        case "following":
            return "following"
    return ""


class LoadStopped(Exception):
    """The process stops while a target is being loaded; the next run resumes the load."""


class TargetLoop:
    """Loop of one target: it loads the target if needed, then applies changes."""

    def __init__(
        self,
        run: Invocation,
        name: str,
        stop: threading.Event,
        captured: threading.Event,
        describe_switch: Callable[[str | None], str],
    ) -> None:
        self._settings, self._name = run.directed_settings, name
        self._guard = DirectionGuard(run)
        self._describe_switch = partial(describe_switch, name)
        self._stop, self._captured = stop, captured
        self._is_following = False

    def run(self, emit: Emit) -> None:
        """Load the target if needed, and apply changes until the stop. Raises errors that no retry can solve."""
        from venus.cli.sync import run_reported

        def body(report: Callable[[Any], None]) -> None:
            """Load and apply, as long as changes flow to this target."""
            serve = lambda: self._load_and_follow(report, emit)  # noqa: E731
            self._guard.run_apply(serve, self._name, self._stop, watched=False)

        run_reported(body, self._stop, emit, emit)

    def _load_and_follow(self, report: Callable[[Any], None], emit: Emit) -> None:
        """Load the target if it was never loaded, then apply changes until the stop."""
        from venus.adapters.targets.registry import open_target

        target = open_target(self._settings, self._name)
        target.describe_switch = self._describe_switch
        view = target.read_view()
        if not view.error and not view.loaded:
            try:
                self._load(target, emit)
            except LoadStopped:
                return
        if self._stop.is_set():
            return

        def on_report(found: Any) -> None:
            """Pass a report on, after the event `following` if it is the first one without an error."""
            if not self._is_following and not found.error:
                self._is_following = True
                emit({"event": "following"})
            report(found)

        target.follow(self._stop, on_report)

    # -- the first load ----------------------------------------------------------------------------------------------

    def _load(self, target: Target, emit: Emit) -> None:
        """Load the target, if possible during the first fill, and emit events about that."""
        from venus.cli.load import choose_engine
        from venus.cli.overlap import OverlappedLoad, can_overlap, find_fill_end
        from venus.cli.spark import open_runner_choice
        from venus.cli.status_tables import load_obstacles, report_waits

        settings, engine = self._settings, choose_engine(target, "auto")
        say = lambda line: emit({"event": "waits", "text": line})  # noqa: E731
        events = _ProgressEvents(emit)
        with closing(OverlappedLoad(settings, self._name, say)) as overlap:
            self._wait_for_fill(target, emit, events, overlap if can_overlap(settings, target, engine) else None)
            emit({"event": "loading", "rows": 0, "rows_estimate": 0})
            with (
                open_runner_choice(settings, engine, say) as choice,
                report_waits(settings, say, load_obstacles),
            ):
                if overlap.is_under_way:
                    found = overlap.finish(find_fill_end(settings), self._stopping_callback(events))
                else:
                    found = target.load(
                        events.on_progress, choose=lambda rows: StoppingRunner(choice(rows), self._stop)
                    )
        if not found.already:
            rows = sum(found.rows.values())
            emit(
                {
                    "event": "loaded",
                    "rows": rows,
                    "seconds": found.seconds,
                    "offset": found.offset,
                    "refused": found.parked,
                    "warnings": list(found.warnings),
                    "left_out": list(found.left_out),
                }
            )

    def _stopping_callback(self, events: _ProgressEvents) -> Callable[[LoadProgress], None]:
        """Return a callback for progress that raises LoadStopped when the process stops."""

        def on_progress(found: LoadProgress) -> None:
            if self._stop.is_set():
                raise LoadStopped
            events.on_progress(found)

        return on_progress

    def _wait_for_fill(
        self, target: Target, emit: Emit, events: _ProgressEvents, overlap: OverlappedLoad | None
    ) -> None:
        """Wait until capture has read every table, unless the source is unreachable.

        If the source is unreachable, the target gets the broker's rows, and rows that were never read arrive as changes
        later. If there are many rows, `overlap` loads the target during the wait.
        """
        from venus.cli.load import read_captured_tables

        try:
            tables = read_captured_tables(self._settings)
        except ConfigError:
            raise
        except VenusError as error:
            emit({"event": "waits", "text": f"the source cannot be reached ({error}): loading what the broker has"})
            return
        target.require_fit([table.schema for table in tables])
        looked_at = time.monotonic()
        while not self._captured.wait(STOP_LOOK_S):
            if self._stop.is_set():
                raise LoadStopped
            if overlap is not None and time.monotonic() >= looked_at + FILL_LOOK_S:
                with suppress(DatabaseUnavailable):  # capture waits for the source as well
                    overlap.start_if_due([table.fill for table in read_captured_tables(self._settings)])
                events.on_progress(overlap.progress)
                looked_at = time.monotonic()


class _ProgressEvents:
    """Reporter of a load's progress: an event every few seconds."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._reported_at = time.monotonic()

    def on_progress(self, found: LoadProgress) -> None:
        """Emit an event if one is due, and at once a note that says how an interrupted load begins."""
        if found.note:
            self._emit({"event": "waits", "text": found.note})
        if found.phase != "loading" or time.monotonic() < self._reported_at + PLAIN_EVERY_S:
            return
        self._reported_at = time.monotonic()
        self._emit({"event": "loading", "rows": found.rows, "rows_estimate": found.rows_estimate})


class StoppingRunner:
    """Runner that ends a load between two tasks when the process stops."""

    def __init__(self, runner: Runner, stop: threading.Event) -> None:
        self._runner, self._stop = runner, stop

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        """Yield the results of the tasks as they arrive. Raises LoadStopped when the process stops."""
        for result in self._runner.run(function, tasks):
            yield result
            if self._stop.is_set():
                raise LoadStopped
