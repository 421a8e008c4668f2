"""Supervisor of the loops of `venus run`, each in a thread, with the rules of `venus sync` for loops that end.

A loop that failed is restarted; one that ended for a final reason stays down. The end of a target's loop does not end
the others, the end of capture does. The supervisor's thread alone writes: loops put their events into a queue.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from venus.cli.supervisor import HEALTHY_AFTER_S, LINES_MAX, STOP_TIMEOUT_S, restart_delay_s
from venus.flow.retry_rules import REMIND_S
from venus.process.system import LOOP_THREADS, stop_signals

logger = logging.getLogger(__name__)

#: What a loop says: an event as a dictionary, or a report, which is a frozen dataclass.
Event = Any
Emit = Callable[[Event], None]
#: Returns the message, the hint and the exit code of an error.
Explain = Callable[[BaseException], tuple[str, str, int]]
#: How often the end of the loops is checked while they stop.
STOP_LOOK_S = 0.2


@dataclass(slots=True, kw_only=True, eq=False)
class LoopThread:
    """A loop in a thread: what it runs, and how it has ended."""

    name: str
    #: Runs until the stop, and passes its events on. Raises what ends it.
    body: Callable[[Emit], None]
    vital: bool = False  # its end ends all loops
    thread: threading.Thread | None = None
    error: dict[str, Any] = field(default_factory=dict)
    code: int | None = None  # set once it stays down
    reported_at: float = 0.0
    #: The newest report that was passed on, and when.
    report: Any = None
    passed_at: float = 0.0


class ThreadSupervisor:
    """Supervisor that starts loops, passes on their events, restarts them and finally stops them."""

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

    def stop_on_signals(self, end_now: Callable[[int], None]) -> None:
        """Let a signal end the command in order, and a second one at once, except a second SIGHUP."""

        def on_signal(number: int, _frame: object) -> None:
            if self._stop.is_set() and number != signal.SIGHUP:
                end_now(128 + number)
            self._stop.set()
            self._events.put(None)  # which a handler may call in the middle of `get`

        for number in stop_signals():
            signal.signal(number, on_signal)

    def run(self) -> int:
        """Run until all loops are stopped or stay down; return the worst exit code."""
        for loop in self._loops:
            loop.thread = threading.Thread(
                target=self._run_loop, args=(loop,), name=LOOP_THREADS + loop.name, daemon=True
            )
            loop.thread.start()
        try:
            while not self._stop.is_set() and not self._is_over():
                self._pass_on(REMIND_S)
                self._remind()
        finally:
            self._stop.set()
            self._wait_for_end()
        return max((loop.code or 0 for loop in self._loops), default=0)

    def _is_over(self) -> bool:
        return all(loop.code is not None for loop in self._loops) or any(
            loop.vital and loop.code is not None for loop in self._loops
        )

    def _pass_on(self, timeout_s: float) -> None:
        """Write the next event, if one comes in time."""
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
                self._write(loop.name, {"event": "stays down", "code": loop.code, **_outcome(loop)})

    def _wait_for_end(self) -> None:
        """Wait until the loops have stopped. One that does not in time is abandoned: its positions are durable."""
        end = time.monotonic() + STOP_TIMEOUT_S
        while any(loop.thread is not None and loop.thread.is_alive() for loop in self._loops):
            if time.monotonic() >= end:
                late = [loop.name for loop in self._loops if loop.thread is not None and loop.thread.is_alive()]
                logger.warning("%s: did not stop within %.0f s", ", ".join(late), STOP_TIMEOUT_S)
                return
            self._pass_on(STOP_LOOK_S)
        while not self._events.empty():
            self._pass_on(STOP_LOOK_S)

    # -- in the loop's thread --------------------------------------------------------------------------------------

    def _emit(self, loop: LoopThread, found: Event) -> None:
        """Queue an event. A report that says nothing new wakes no thread, but for one a minute.

        While our own output is blocked, reports are dropped, because they are repeated.
        """
        now = time.monotonic()
        is_report = not isinstance(found, dict)
        repeats = is_report and found == loop.report and now < loop.passed_at + REMIND_S
        if repeats or (is_report and self._events.qsize() >= LINES_MAX):
            return
        loop.report, loop.passed_at = found if is_report else None, now
        self._events.put((loop.name, found))

    def _run_loop(self, loop: LoopThread) -> None:
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
                self._emit(loop, {"event": "stays down", "code": code, **_outcome(loop)})
                return
            restarts += 1
            self._emit(loop, {"event": "restarts", "in_s": delay_s, "code": code, **_outcome(loop)})
            self._stop.wait(delay_s)
        self._emit(loop, {"event": "stopped"})

    def _run_once(self, loop: LoopThread) -> int | None:
        """Run a loop; return its exit code if it has failed."""
        loop.error = {}
        try:
            loop.body(lambda found: self._emit(loop, found))
        except Exception as error:
            message, hint, code = self._explain(error)
            loop.error = {"kind": type(error).__name__, "message": message, "hint": hint, "exit_code": code}
            return code
        return None


def _outcome(loop: LoopThread) -> dict[str, str]:
    return {"error": loop.error.get("message", ""), "hint": loop.error.get("hint", "")}
