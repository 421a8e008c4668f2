"""Keeps the loops of `venus sync` running as child processes, one each: they share nothing but the broker.

A loop that is killed is started again; one that ends because it must (fenced, diverged, configuration) stays down. A
target's does not take the others with it. Capture does: without it nothing new arrives, and a service that goes on
looks well. A child notices the end of its parent, whatever ended it, by the end of its stdin.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from venus.patience import REMIND_S

#: Exit codes after which starting again cannot help: the two sides differ, or the configuration is wrong. A safety rule
#: (3) can: a target may be loaded meanwhile, or another process may let go of it.
FINAL_CODES = (1, 2)
REFUSED_CODE, REFUSED_WAIT_S = 3, 15.0
#: Errors that have no exit code of their own and are final all the same.
FINAL_ERRORS = ("Fenced", "Held", "Denied", "Unproven", "NotInstalled")
RESTART_MIN_S, RESTART_MAX_S = 1.0, 30.0
#: A loop that ran so long has recovered from whatever stopped it before.
HEALTHY_AFTER_S = 60.0
#: While our own output is not taken (a terminal that was stopped), so many lines of the loops wait; then only what is
#: said once is kept, and counters that come again are dropped.
LINES_MAX = 1000
_REPORT = '"event": "report"'
STOP_TIMEOUT_S = 30.0

#: What happened to a loop, by its name.
Event = Callable[[str, dict[str, Any]], None]


@dataclass(slots=True, kw_only=True)
class Loop:
    """One child process: what starts it and how it has fared."""

    name: str
    command: Sequence[str]
    at_first: Sequence[str] = ()  # options of its first start only
    vital: bool = False  # nothing goes on without it
    process: subprocess.Popen[str] | None = None
    started: float = 0.0
    restart_at: float = 0.0
    restarts: int = 0
    error: dict[str, Any] = field(default_factory=dict)
    code: int | None = None  # set once it stays down
    said_at: float = 0.0  # when it was last said that it stays down


class Supervisor:
    """Starts loops, passes on what they report, restarts and finally stops them."""

    def __init__(self, loops: Sequence[Loop], stop: threading.Event, event: Event) -> None:
        self._loops = loops
        self._stop = stop
        self._event = event
        self._lines: queue.SimpleQueue[tuple[Loop, str]] = queue.SimpleQueue()

    def run(self) -> int:
        """Return when everything has been stopped or nothing is left that could run: the worst exit code."""
        for loop in self._loops:
            self._start(loop)
        try:
            while not self._stop.is_set() and not self._is_over():
                self._drain(0.2)
                for loop in self._loops:
                    self._look_after(loop)
        finally:
            self._end_all()
        return max((loop.code or 0 for loop in self._loops), default=0)

    def _is_over(self) -> bool:
        return all(loop.code is not None for loop in self._loops) or any(
            loop.vital and loop.code is not None for loop in self._loops
        )

    def _start(self, loop: Loop) -> None:
        loop.error = {}
        loop.started = time.monotonic()
        # a session of its own: Ctrl-C on the terminal reaches the parent alone, which then stops its children in order
        loop.process = subprocess.Popen(
            [*loop.command, *loop.at_first],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        loop.at_first = ()
        assert loop.process.stdout is not None
        threading.Thread(target=self._read, args=(loop, loop.process.stdout), daemon=True).start()
        self._event(loop.name, {"event": "started", "pid": loop.process.pid})

    def _read(self, loop: Loop, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                if self._lines.qsize() < LINES_MAX or _REPORT not in line:
                    self._lines.put((loop, line))

    def _drain(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                loop, line = self._lines.get(timeout=left)
            except queue.Empty:
                return
            self._take(loop, line)

    def _take(self, loop: Loop, line: str) -> None:
        try:
            found = json.loads(line)
        except ValueError:
            found = {"event": "output", "text": line.rstrip()}
        if not isinstance(found, dict):
            found = {"event": "output", "text": line.rstrip()}
        if "loop" in found or "event" in found:
            self._event(loop.name, found)
        else:  # its last words: what any command says of its failure
            loop.error = found.get("error", {})

    def _look_after(self, loop: Loop) -> None:
        if loop.code is not None:
            self._remind(loop)
            return
        if loop.process is None:
            if time.monotonic() >= loop.restart_at:
                self._start(loop)
            return
        code = loop.process.poll()
        if code is None:
            return
        self._drain(0.1)  # its last words
        if time.monotonic() - loop.started > HEALTHY_AFTER_S:
            loop.restarts = 0
        loop.process = None
        said = {"code": code, "error": loop.error.get("message", ""), "hint": loop.error.get("hint", "")}
        if code in FINAL_CODES or loop.error.get("kind") in FINAL_ERRORS:
            loop.code = code
            self._remind(loop)
            return
        delay_s = min(RESTART_MAX_S, RESTART_MIN_S * 2.0**loop.restarts) if code != REFUSED_CODE else REFUSED_WAIT_S
        loop.restarts += 1
        loop.restart_at = time.monotonic() + delay_s
        self._event(loop.name, {"event": "restarts", "in_s": delay_s, **said})

    def _remind(self, loop: Loop) -> None:
        """Say that a loop stays down and why: at once, and now and then while others go on."""
        if time.monotonic() < loop.said_at + REMIND_S and loop.said_at:
            return
        loop.said_at = time.monotonic()
        said = {"code": loop.code, "error": loop.error.get("message", ""), "hint": loop.error.get("hint", "")}
        self._event(loop.name, {"event": "stays down", **said})

    def _end_all(self) -> None:
        """Stop the children as an operator would, and only then harder."""
        running = [loop.process for loop in self._loops if loop.process is not None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for loop in self._loops:
            if loop.process is not None:
                self._event(loop.name, {"event": "stopped", "code": loop.process.returncode})


def stop_with_parent(stop: threading.Event) -> None:
    """Set `stop` when stdin ends: the parent holds the other end as long as it lives."""

    def wait() -> None:
        while sys.stdin.read(4096):
            pass
        stop.set()

    threading.Thread(target=wait, name="parent", daemon=True).start()
