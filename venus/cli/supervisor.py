"""Supervisor of the loops of `venus sync`, each in a child process, and the output of their events.

A loop that was killed is restarted; one that ended for a final reason (fenced, diverged, configuration) stays down. The
end of a target's loop does not end the others. The end of capture ends all loops, because nothing new would arrive
although the service would look healthy. A child notices the end of its parent by the end of its stdin. Events are
written as JSON lines for machines; for people, a line is written for each change, and once a minute.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

from venus.cli.invocation import Invocation
from venus.cli.output import format_cell
from venus.errors import DirectionChanged
from venus.flow.breaker import REMIND_S, Circuit

logger = logging.getLogger(__name__)

#: How often a line is written if only counters have changed.
EVERY_S = 60.0
#: A change of one of these fields is written at once.
TELLING = ("event", "circuit", "blocked_by", "error", "constraints")
#: States that alternate while the other side is unreachable; they count as one.
AWAY = ("connecting", "reconnecting", "waiting to reconnect")
#: Events of a failing loop and their consequences, which are not written repeatedly.
TROUBLE, STARTS, BETWEEN = ("waiting", "restarts"), ("started", "running"), ("connecting", "failed")
QUIET = ("report", *TROUBLE)
_FIGURES = re.compile(r"\d[\d,.]*")
#: In these states the last error is no longer current.
WELL = ("capturing", "filling", "stopped")
#: The fields of a report that people see, in this order.
SHOWN = (
    "state",
    "rows",
    "batches",
    "transactions",
    "offset",
    "lag_s",
    "circuit",
    "in_s",
    "retry_in_s",
    "pid",
    "code",
    "blocked_by",
    "last_error",
    "error",
    "constraints",
    "text",
)
#: The shown fields whose numbers are identifiers.
NUMBERS = ("pid", "code")
#: The states of a circuit breaker in words; a closed one is not shown.
CIRCUIT = {Circuit.OPEN.value: "the target is paused for a while", Circuit.HALF_OPEN.value: "the target is tried"}
#: Labels for people that differ from the names of fields.
CALLED = {"circuit": ""}


class EventWriter:
    """Writer of the events of all loops of one `venus sync`."""

    def __init__(self, run: Invocation) -> None:
        self._run = run
        self._written: dict[str, tuple[object, float]] = {}
        self._trouble: dict[str, str] = {}  # the error with which each loop waits or has ended
        self._filled: dict[str, object] = {}  # the fills in the last report of each loop

    def on_report(self, loop: str, found: Any) -> None:
        """Write the report of a loop, a frozen dataclass. Once all fills have ended, later reports omit them."""
        fills = getattr(found, "fills", ())
        if fills and fills is self._filled.get(loop):
            found = dataclasses.replace(found, fills=())
        else:
            self._filled[loop] = fills if all(fill.done for fill in fills) else ()
        self.on_event(loop, {"event": "report", **dataclasses.asdict(found)})

    def on_event(self, loop: str, found: dict[str, Any]) -> None:
        """Write an event of a loop, from this process or a child."""
        is_news = self._is_news(loop, found)
        if is_news and found["event"] in (*TROUBLE, "stays down") and self._logs_problems:
            logger.warning("%s: %s", loop, self._run.redactor(format_event(found)))
        if not self._run.json and not is_news:
            return
        self._run.out.write_event({"loop": loop, **found}, self._run.redactor(f"{loop}: {format_event(found)}"))

    @property
    def _logs_problems(self) -> bool:
        """Whether problems also go to the log, because stdout is not for people."""
        return (self._run.json or self._run.log_format != "text") and not self._run.supervised

    def _is_news(self, loop: str, found: dict[str, Any]) -> bool:
        """Return whether to write an event: it differs from the last line, or a line is due."""
        what, error, state = found["event"], found.get("error") or "", found.get("state")
        if what in TROUBLE and error:
            self._trouble[loop] = error
        elif what == "report" and not error and (state is None or state in WELL):
            self._trouble.pop(loop, None)
        elif loop in self._trouble and (what in STARTS or state in BETWEEN):
            return False
        key = self._news_key(found)
        last_key, last_s = self._written.get(loop, (None, 0.0))
        if what in QUIET and key == last_key and time.monotonic() - last_s < EVERY_S:
            return False
        self._written[loop] = (key, time.monotonic())
        return True

    def _news_key(self, found: dict[str, Any]) -> object:
        """Return the part of an event that must differ from the last line's to justify a new line."""
        error, state = found.get("error") or "", found.get("state")
        if found["event"] in TROUBLE and error:
            return _FIGURES.sub("#", error)
        held = tuple(t.get("source_name") for t in found.get("held", ()) if isinstance(t, dict))
        # an unreachable target opens its circuit a little later, which is the same problem
        telling = ("event", "error", "constraints") if error else TELLING
        return (*(found.get(name) for name in telling), "away" if state in AWAY else state, held)


def format_event(found: dict[str, Any]) -> str:
    """Format an event: what happened, then the figures that are not empty."""
    if found["event"] in ("restarts", "stays down", "waiting"):
        then = f"starts again in {found['in_s']:.0f} s" if found["event"] == "restarts" else found["event"]
        hint = f"; {found['hint']}" if found.get("hint") else ""
        return f"{then}: {found['error'] or 'it ended with code ' + str(found['code'])}{hint}"
    figures = {name: found.get(name) for name in SHOWN if name != "state"}
    if found.get("state") in WELL:
        figures["last_error"] = None
    figures["circuit"] = CIRCUIT.get(str(figures["circuit"]))
    parts = [
        " ".join(filter(None, (CALLED.get(name, name), str(value) if name in NUMBERS else format_cell(value))))
        for name, value in figures.items()
        if value not in (None, "")
    ]
    what = found.get("state") or ("" if found["event"] == "report" else found["event"])
    parts += [f"{t['source_name']} {t['state'].lower()}" for t in found.get("held", ()) if isinstance(t, dict)]
    parts += [f"{f['table']} {f['rows_done']:,} of about {f['rows_estimate']:,}" for f in open_fills(found)]
    return ", ".join(part for part in (what, *parts) if part)


def open_fills(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the first fills that have not ended."""
    return [f for f in found.get("fills", ()) if isinstance(f, dict) and not f["done"]]


#: Exit codes after which a restart cannot help: the two sides differ, or the configuration is wrong. After a refusal by
#: a safety rule (3) it can help: a target may have been loaded since, or another process may have released it.
FINAL_CODES = (1, 2)
REFUSED_CODE, REFUSED_WAIT_S = 3, 15.0
#: Errors that are final, but have no separate exit code.
FINAL_ERRORS = ("Fenced", "Held", "Denied", "Unproven", "NotInstalled", "DirectionChanged")
RESTART_MIN_S, RESTART_MAX_S = 1.0, 30.0
#: A loop that has run this long has recovered from its last failure.
HEALTHY_AFTER_S = 60.0
#: How many lines of the loops may wait while the command's own output is blocked, for example by a stopped terminal.
#: Beyond that, reports are dropped, because they are repeated; other events are kept.
LINES_MAX = 1000
_REPORT = '"event": "report"'
STOP_TIMEOUT_S = 30.0

#: Callback with the name of a loop and its event.
Event = Callable[[str, dict[str, Any]], None]


def restart_delay_s(code: int, kind: str, restarts: int) -> float | None:
    """Return the pause before an ended loop is restarted; None = it stays down. `kind`: the loop's error class."""
    if code in FINAL_CODES or kind in FINAL_ERRORS:
        return None
    return min(RESTART_MAX_S, RESTART_MIN_S * 2.0**restarts) if code != REFUSED_CODE else REFUSED_WAIT_S


@dataclass(slots=True, kw_only=True)
class LoopProcess:
    """A loop in a child process: its command and its state."""

    name: str
    command: Sequence[str]
    at_first: Sequence[str] = ()  # options for the first start only
    is_vital: bool = False  # whether its end ends all loops
    process: subprocess.Popen[str] | None = None
    started: float = 0.0
    restart_at: float = 0.0
    restarts: int = 0
    error: dict[str, Any] = field(default_factory=dict)
    code: int | None = None  # its exit code, set once it stays down
    said_at: float = 0.0  # when its end was last reported


class SupervisedLoop(Protocol):
    """The interface of a loop for a supervisor of processes or of threads."""

    @property
    def is_vital(self) -> bool:
        """Whether the end of this loop ends all others."""

    @property
    def error(self) -> dict[str, Any]:
        """The error document with which the loop has ended."""

    @property
    def code(self) -> int | None:
        """The exit code of the loop, once it stays down."""


def has_turned(loops: Iterable[SupervisedLoop]) -> bool:
    """Return whether a loop has ended because changes now flow in the other direction."""
    return any(loop.error.get("kind") == DirectionChanged.__name__ for loop in loops)


def ends_all(loop: SupervisedLoop) -> bool:
    """Return whether a loop stays down and the others end with it."""
    return loop.code is not None and (loop.is_vital or has_turned((loop,)))


def worst_code(loops: Iterable[SupervisedLoop]) -> int:
    """Return the worst exit code of ended loops. A loop that has ended because of a switch has not failed."""
    return max((loop.code or 0 for loop in loops if not has_turned((loop,))), default=0)


class Supervisor:
    """Supervisor that starts loops in processes, passes on their events, restarts them and finally stops them."""

    def __init__(self, loops: Sequence[LoopProcess], stop: threading.Event, event: Event) -> None:
        self._loops = loops
        self._stop = stop
        self._event = event
        self._lines: queue.SimpleQueue[tuple[LoopProcess, str]] = queue.SimpleQueue()

    def run(self) -> int:
        """Run until all loops are stopped or stay down; return the worst exit code."""
        for loop in self._loops:
            self._start(loop)
        try:
            while not self._stop.is_set() and not self._is_over():
                self._drain(0.2)
                for loop in self._loops:
                    self._check_loop(loop)
        finally:
            self._end_all()
        return worst_code(self._loops)

    def _is_over(self) -> bool:
        """Return whether all loops stay down, or one stays down that ends the others."""
        return all(loop.code is not None for loop in self._loops) or any(map(ends_all, self._loops))

    def _start(self, loop: LoopProcess) -> None:
        """Start the child process of a loop, and a thread that reads its output."""
        loop.error = {}
        loop.started = time.monotonic()
        # a separate session: Ctrl-C on the terminal reaches only the parent, which then stops its children cleanly
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

    def _read(self, loop: LoopProcess, pipe: IO[str]) -> None:
        """Queue the lines that a child process writes."""
        with pipe:
            for line in pipe:
                if self._lines.qsize() < LINES_MAX or _REPORT not in line:
                    self._lines.put((loop, line))

    def _drain(self, timeout_s: float) -> None:
        """Handle the lines of the loops until the time is over."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                loop, line = self._lines.get(timeout=left)
            except queue.Empty:
                return
            self._on_line(loop, line)

    def _on_line(self, loop: LoopProcess, line: str) -> None:
        """Handle a line of output: an event, the error document of the loop, or other text."""
        try:
            found = json.loads(line)
        except ValueError:
            found = {"event": "output", "text": line.rstrip()}
        if not isinstance(found, dict):
            found = {"event": "output", "text": line.rstrip()}
        if "loop" in found or "event" in found:
            self._event(loop.name, found)
        else:  # the error document that every failing command writes
            loop.error = found.get("error", {})

    def _check_loop(self, loop: LoopProcess) -> None:
        """Restart a loop that has ended, after a pause, or report that it stays down."""
        if loop.code is not None:
            self._report_stays_down(loop)
            return
        if loop.process is None:
            if time.monotonic() >= loop.restart_at:
                self._start(loop)
            return
        code = loop.process.poll()
        if code is None:
            return
        self._drain(0.1)  # the loop's error document
        if time.monotonic() - loop.started > HEALTHY_AFTER_S:
            loop.restarts = 0
        loop.process = None
        outcome = {"code": code, "error": loop.error.get("message", ""), "hint": loop.error.get("hint", "")}
        delay_s = restart_delay_s(code, loop.error.get("kind", ""), loop.restarts)
        if delay_s is None:
            loop.code = code
            self._report_stays_down(loop)
            return
        loop.restarts += 1
        loop.restart_at = time.monotonic() + delay_s
        self._event(loop.name, {"event": "restarts", "in_s": delay_s, **outcome})

    def _report_stays_down(self, loop: LoopProcess) -> None:
        """Report that a loop stays down and why: at once, and repeatedly while others run."""
        if time.monotonic() < loop.said_at + REMIND_S and loop.said_at:
            return
        loop.said_at = time.monotonic()
        outcome = {"code": loop.code, "error": loop.error.get("message", ""), "hint": loop.error.get("hint", "")}
        self._event(loop.name, {"event": "stays down", **outcome})

    def _end_all(self) -> None:
        """Stop the child processes by SIGTERM, and kill those that do not end in time."""
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
    """Set `stop` when stdin ends, which happens when the parent ends."""

    def wait_for_parent() -> None:
        while sys.stdin.read(4096):
            pass
        stop.set()

    threading.Thread(target=wait_for_parent, name="parent", daemon=True).start()
