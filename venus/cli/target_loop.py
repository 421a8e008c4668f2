"""The loop of one target in `venus run`: load it if it was never loaded, then follow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from venus.cli.loop_threads import Emit
from venus.cli.output import PLAIN_EVERY_S
from venus.errors import ConfigError, DatabaseUnavailable, VenusError
from venus.model import count_phrase

if TYPE_CHECKING:
    from venus.adapters.targets.contract import LoadProgress, Target
    from venus.cli.overlap import OverlappedLoad
    from venus.config import Settings
    from venus.process.runners import Runner

T = TypeVar("T")
R = TypeVar("R")

#: How often a target that waits for the first fill looks whether the process stops.
STOP_LOOK_S = 0.2
#: How often such a target looks how many rows were read, which needs a connection to the source.
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
    """Loop of one target."""

    def __init__(self, settings: Settings, name: str, stop: threading.Event, captured: threading.Event) -> None:
        self._settings, self._name = settings, name
        self._stop, self._captured = stop, captured
        self._is_following = False

    def run(self, emit: Emit) -> None:
        """Load the target if needed and follow until the stop. Raises what neither waiting nor retrying can solve."""
        from venus.cli.sync import run_reported

        run_reported(lambda report: self._serve(report, emit), self._stop, emit, emit)

    def _serve(self, report: Callable[[Any], None], emit: Emit) -> None:
        from venus.adapters.targets.registry import open_target

        target = open_target(self._settings, self._name)
        view = target.read_view()
        if not view.error and not view.loaded:
            try:
                self._load(target, emit)
            except LoadStopped:
                return
        if self._stop.is_set():
            return

        def on_report(found: Any) -> None:
            if not self._is_following and not found.error:
                self._is_following = True
                emit({"event": "following"})
            report(found)

        target.follow(self._stop, on_report)

    # -- the first load ----------------------------------------------------------------------------------------------

    def _load(self, target: Target, emit: Emit) -> None:
        from venus.cli.engine import open_runner_choice
        from venus.cli.load import choose_engine
        from venus.cli.overlap import OverlappedLoad, can_overlap, find_fill_end
        from venus.cli.wait_reports import load_obstacles, report_waits

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
                    found = overlap.finish(find_fill_end(settings), self._until_stop(events))
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

    def _until_stop(self, events: _ProgressEvents) -> Callable[[LoadProgress], None]:
        """Return a receiver of progress that raises LoadStopped when the process stops."""

        def on_progress(found: LoadProgress) -> None:
            if self._stop.is_set():
                raise LoadStopped
            events.on_progress(found)

        return on_progress

    def _wait_for_fill(
        self, target: Target, emit: Emit, events: _ProgressEvents, overlap: OverlappedLoad | None
    ) -> None:
        """Wait until capture has read every table. A source that cannot be reached is not waited for.

        The target then gets what the broker has, and rows that were never read come as changes later. `overlap` loads
        the target meanwhile if there are many rows.
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
                with suppress(DatabaseUnavailable):  # capture waits for it as well
                    overlap.look([table.fill for table in read_captured_tables(self._settings)])
                events.on_progress(overlap.progress)
                looked_at = time.monotonic()


class _ProgressEvents:
    """Events about the progress of a load, every few seconds."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._reported_at = time.monotonic()

    def on_progress(self, found: LoadProgress) -> None:
        """Pass the progress on if it is due."""
        if found.phase != "loading" or time.monotonic() < self._reported_at + PLAIN_EVERY_S:
            return
        self._reported_at = time.monotonic()
        self._emit({"event": "loading", "rows": found.rows, "rows_estimate": found.rows_estimate})


class StoppingRunner:
    """Runner that ends a load between two tasks when the process stops."""

    def __init__(self, runner: Runner, stop: threading.Event) -> None:
        self._runner, self._stop = runner, stop

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        """Yield the results as they arrive. Raises LoadStopped."""
        for result in self._runner.run(function, tasks):
            yield result
            if self._stop.is_set():
                raise LoadStopped
