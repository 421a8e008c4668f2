"""The loops of `venus run`: one that fails is restarted, one that ended forever stays down, capture ends them all."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from venus.adapters.upper.periodic import CaptureReport
from venus.cli import loop_threads, supervisor
from venus.cli.loop_threads import Emit, LoadStopped, LoopThread, StoppingRunner, ThreadSupervisor, format_step
from venus.cli.supervisor import FINAL_CODES, REFUSED_CODE, REFUSED_WAIT_S, RESTART_MAX_S, has_turned, restart_delay_s
from venus.errors import ConfigError, DirectionChanged, Diverged, Fenced, Refused, SourceError, VenusError
from venus.process.system import loops_cpu_s


class WatchedSupervisor:
    """A supervisor that records its events."""

    def __init__(self, *loops: LoopThread, stop: threading.Event | None = None) -> None:
        self.stop = stop or threading.Event()
        self.events: list[tuple[str, Any]] = []
        self.supervisor = ThreadSupervisor(list(loops), self.stop, self._write, explain)

    def _write(self, name: str, found: Any) -> None:
        self.events.append((name, found))

    def events_of(self, name: str, event: str) -> list[dict[str, Any]]:
        return [found for loop, found in self.events if loop == name and found["event"] == event]


def explain(error: BaseException) -> tuple[str, str, int]:
    if isinstance(error, VenusError):
        return str(error), error.hint, error.exit_code
    return f"unexpected {error}", "", 12


def until_stop(stop: threading.Event) -> Callable[[Emit], None]:
    """Return a loop body that works until the stop."""

    def body(emit: Emit) -> None:
        emit({"event": "running"})
        stop.wait()

    return body


@pytest.fixture(autouse=True)
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RESTART_MIN_S", 0.01)


def test_a_loop_that_fails_unexpectedly_is_restarted_and_others_continue() -> None:
    stop, failures = threading.Event(), iter([RuntimeError("bug"), SourceError("no such column")])
    done = threading.Event()

    def fail(emit: Emit) -> None:
        if (error := next(failures, None)) is not None:
            raise error
        done.set()
        stop.wait()

    capture = LoopThread(name="capture", body=fail, is_vital=True)
    watched = WatchedSupervisor(capture, LoopThread(name="main", body=until_stop(stop)), stop=stop)

    def stop_when_done() -> None:
        done.wait(60)
        stop.set()
        watched.supervisor._events.put(None)

    threading.Thread(target=stop_when_done).start()
    assert watched.supervisor.run() == 0
    assert [e["error"] for e in watched.events_of("capture", "restarts")] == ["unexpected bug", "no such column"]
    assert len(watched.events_of("main", "running")) == 1
    assert {name for name, found in watched.events if found["event"] == "stopped"} == {"capture", "main"}


def test_the_end_of_capture_stops_the_targets_and_gives_the_exit_code() -> None:
    def refuse(_: Emit) -> None:
        raise Fenced("another capture", hint="stop it")

    stop = threading.Event()
    capture = LoopThread(name="capture", body=refuse, is_vital=True)
    watched = WatchedSupervisor(capture, LoopThread(name="main", body=until_stop(stop)), stop=stop)
    assert watched.supervisor.run() == Fenced.exit_code
    assert stop.is_set()
    assert (capture.code, capture.error["message"], capture.error["hint"]) == (3, "another capture", "stop it")
    assert watched.events_of("main", "stopped")


def test_a_target_that_ended_finally_stays_down_and_is_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_threads, "REMIND_S", 0.05)
    stop = threading.Event()

    def diverge(_: Emit) -> None:
        raise Diverged("another history", hint="resync")

    main = LoopThread(name="main", body=diverge)
    watched = WatchedSupervisor(LoopThread(name="capture", body=until_stop(stop), is_vital=True), main, stop=stop)
    write = watched._write

    def stop_after_two(name: str, found: Any) -> None:
        write(name, found)
        if len(watched.events_of("main", "stays down")) == 2:
            stop.set()

    watched.supervisor._write = stop_after_two
    assert watched.supervisor.run() == Diverged.exit_code
    assert [e["error"] for e in watched.events_of("main", "stays down")] == ["another history"] * 2
    assert watched.events_of("capture", "stopped"), "it continued until the stop"


def test_one_signal_stops_and_a_second_one_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", lambda number, handler: handlers.setdefault(number, handler))
    monkeypatch.setattr(signal, "getsignal", lambda _number: signal.SIG_DFL)  # also under nohup
    watched, ended = WatchedSupervisor(), list[int]()
    signalled: list[int] = []
    watched.supervisor.stop_on_signals(ended.append, signalled)
    first = threading.Thread(target=handlers[signal.SIGTERM], args=(signal.SIGTERM, None), daemon=True)
    with watched.stop._cond:  # type: ignore[attr-defined]
        first.start()
        first.join(10)
        assert not first.is_alive(), "the main thread may have the event's lock when the signal comes"
        assert signalled == [signal.SIGTERM], "a second signal, or the next loops, see it although no event is set yet"
    assert watched.stop.wait(10)
    assert not ended
    handlers[signal.SIGINT](signal.SIGINT, None)
    assert ended == [128 + signal.SIGINT]
    handlers[signal.SIGHUP](signal.SIGHUP, None)
    assert len(ended) == 1, "a closed terminal sends two"
    later = WatchedSupervisor()
    later.supervisor.stop_on_signals(ended.append, signalled)
    assert later.stop.is_set(), "a signal between the loops of two directions counts"


def test_a_switch_ends_every_loop() -> None:
    def turn(_: Emit) -> None:
        raise DirectionChanged("changes flow the other way")

    stop = threading.Event()
    main, other = LoopThread(name="main", body=turn), LoopThread(name="other", body=until_stop(stop))
    watched = WatchedSupervisor(
        LoopThread(name="capture", body=until_stop(stop), is_vital=True), main, other, stop=stop
    )
    assert watched.supervisor.run() == 0, "a switch is no failure, also if a signal comes in this moment"
    assert has_turned((main,))
    assert not has_turned((other,))


@pytest.mark.parametrize("error", [ConfigError("x"), Diverged("x"), Fenced("x")])
def test_an_error_that_a_restart_cannot_help_causes_none(error: VenusError) -> None:
    assert restart_delay_s(error.exit_code, type(error).__name__, 0) is None


def test_restarts_have_growing_intervals_and_a_refused_loop_waits() -> None:
    delays = [restart_delay_s(12, "SourceError", n) for n in range(20)]
    assert delays == sorted(delays, key=lambda delay: delay or 0.0)
    assert delays[-1] == RESTART_MAX_S
    assert restart_delay_s(REFUSED_CODE, Refused.__name__, 5) == REFUSED_WAIT_S
    assert REFUSED_CODE not in FINAL_CODES


def test_a_load_ends_between_two_tasks_when_the_process_stops() -> None:
    stop, loaded = threading.Event(), list[int]()

    class SequentialRunner:
        def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
            return map(function, tasks)

    def load(task: int) -> int:
        loaded.append(task)
        if task == 2:
            stop.set()
        return task

    with pytest.raises(LoadStopped):
        list(StoppingRunner(SequentialRunner(), stop).run(load, [1, 2, 3]))
    assert loaded == [1, 2]


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ({"event": "loading", "rows": 0, "rows_estimate": 0}, "loading"),
        ({"event": "loading", "rows": 1200, "rows_estimate": 9000}, "loading: 1,200 of about 9,000 rows"),
        (
            {"event": "loaded", "rows": 1, "seconds": 0.24, "offset": 1200, "refused": 2},
            "loaded 1 row in 0.2 s, 2 rows refused, at offset 1,200",
        ),
        ({"event": "following"}, "following"),
        ({"event": "stopped"}, ""),
    ],
)
def test_a_step_is_logged_in_one_line(found: dict[str, Any], line: str) -> None:
    assert format_step(found) == line


def test_the_broker_does_not_count_loops_as_its_own_work() -> None:
    """Otherwise a long load in `venus run` would degrade a lane of the idle broker."""
    stop, worked = threading.Event(), threading.Event()

    def work(emit: Emit) -> None:
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass
        worked.set()
        stop.wait()

    watched = WatchedSupervisor(LoopThread(name="main", body=work), stop=stop)
    before, used_before_s = loops_cpu_s(), time.process_time()
    running = threading.Thread(target=watched.supervisor.run)
    running.start()
    assert worked.wait(60)
    loops_s = loops_cpu_s() - before
    assert 0.08 <= loops_s <= time.process_time() - used_before_s + 0.02
    stop.set()
    running.join(60)


def test_a_repeated_report_wakes_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an idle `venus run` would wake twice a second without any news to report."""
    same, other = CaptureReport(state="capturing", cuts=7), CaptureReport(state="capturing", cuts=8)

    def body(emit: Emit) -> None:
        for found in (same, same, same, other, {"event": "waiting"}, other):
            emit(found)
        monkeypatch.setattr(loop_threads, "REMIND_S", 0.0)
        emit(other)
        watched.stop.set()

    watched = WatchedSupervisor(LoopThread(name="capture", body=body))
    watched.supervisor.run()

    passed_on = [found for _, found in watched.events if found != {"event": "stopped"}]
    assert passed_on == [same, other, {"event": "waiting"}, other, other]
