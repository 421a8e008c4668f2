"""A first load in a separate process, while this process, or another one, still reads the source.

The process starts once the broker has the first rows, so that its start costs no extra time. The process ends with its
parent. A load process that is lost, or cannot continue for now, is replaced while the source is being read; the load
then continues after the last committed key range. After any other error, and for few rows, the load begins after the
read.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Protocol

from venus.adapters.targets.contract import LoadProgress
from venus.errors import Unavailable, VenusError, WorkerLost

if TYPE_CHECKING:
    from venus.adapters.targets.contract import LoadReport, Target
    from venus.config import Settings
    from venus.wire.broker_pb2 import BusinessStatus

logger = logging.getLogger(__name__)

#: How often the process may be lost.
STARTS_MAX = 4
#: The pause before the next process; it doubles while the target is unavailable.
RETRY_S, RETRY_S_MAX = 1.0, 30.0
_LOST = "look for a traceback in the log, or for the system's out-of-memory killer"
#: How often progress is passed on, and how often it is polled.
REPORT_S = 0.5
LOOK_S = 0.05
#: How long the broker may take to commit a batch that the source has committed.
DECISION_S = 60.0


class TableRead(Protocol):
    """Progress of the first read of one table."""

    @property
    def rows_done(self) -> int:
        """How many rows were read."""

    @property
    def rows_estimate(self) -> int:
        """About how many rows the table has; 0 = not known."""

    @property
    def done(self) -> bool:
        """Whether all rows were read."""


def is_overlap_due(tables: Iterable[TableRead], rows_min: int) -> bool:
    """Return whether to load during the read: `rows_min` rows are read, or some are and as many will follow. Pure."""
    left = [t for t in tables if not t.done]
    found = sum(t.rows_done for t in left)
    expected = sum(max(0, t.rows_estimate - t.rows_done) for t in left)
    return found >= rows_min or (found > 0 and expected >= rows_min)


def can_overlap(settings: Settings, target: Target, engine: str) -> bool:
    """Return whether the first load of this target may overlap the read: only local processes can do that."""
    from venus.cli.spark import find_configured_reason

    is_local = engine == "local" or (engine == "auto" and not find_configured_reason(settings))
    return is_local and target.capabilities.loads_while_read


def find_fill_end(settings: Settings) -> int:
    """Return the offset at which a first read has ended. Raises Unavailable if the last rows stay undecided.

    The broker must have committed everything that the source has committed by now before the end of its queue is read.
    """
    from venus.cli.install import open_configured_source
    from venus.rpc.address import broker_address
    from venus.rpc.admin import AdminClient

    with open_configured_source(settings) as source:
        last_batch = source.registry.read_state().last_batch
    deadline = time.monotonic() + DECISION_S
    while True:
        with AdminClient(broker_address(settings)) as admin:
            found = admin.status(settings.business.name).businesses
        business = next((b for b in found if b.business == settings.business.name), None)
        end = decided_end(business, last_batch) if business is not None else None
        if end is not None:
            return end
        if time.monotonic() >= deadline:
            raise Unavailable(
                "the broker has not committed the last rows of the first read yet",
                hint="run `venus migrate` again: it continues",
            )
        time.sleep(LOOK_S)


def decided_end(business: BusinessStatus, last_batch: int) -> int | None:
    """Return the end of the queue, or None if the broker has not decided this batch of the source yet. Pure."""
    return business.next_offset if business.last_batch >= last_batch else None


class OverlappedLoad:
    """The load of one target in parallel with the read of its source. One thread calls all methods."""

    def __init__(self, settings: Settings, target: str, say: Callable[[str], None]) -> None:
        self._settings, self.target, self._say = settings, target, say
        self._parent: Connection | None = None
        self._process: multiprocessing.process.BaseProcess | None = None
        self._watch: threading.Thread | None = None
        self._end: int | None = None
        self._closed = threading.Event()
        self._wakes = threading.Event()
        self._lock = threading.Lock()
        self._report: LoadReport | None = None
        self.progress = LoadProgress(phase="planning")
        self._error: VenusError | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether the load has begun, and has not ended without a result."""
        return self._watch is not None and self._error is None

    @property
    def pid(self) -> int | None:
        """The process id of the load; None before its start."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the load, unless it was started already."""
        if self._watch is None:
            self._say(f"target {self.target}: loading begins while the source is being read")
            self._watch = threading.Thread(target=self._supervise, name="venus-overlap", daemon=True)
            self._watch.start()

    def start_if_due(self, tables: Iterable[TableRead]) -> None:
        """Start the load if many rows were read or will follow (see `is_overlap_due`)."""
        if self._watch is None and is_overlap_due(tables, self._settings.apply.overlap_rows_min):
            self.start()

    def finish(self, end: int, on_progress: Callable[[LoadProgress], None]) -> LoadReport:
        """End the load at this offset, and wait for its report. Raises the error of the load, or of `on_progress`."""
        with self._lock:
            self._end = end
            self._send_end()
        self._wakes.set()
        assert self._watch is not None
        while self._watch.is_alive():
            self._watch.join(LOOK_S)
            on_progress(self.progress)
        if self._report is None:
            raise self._error or WorkerLost()
        return self._report

    def close(self) -> None:
        """End the load's process if it still runs; the next load resumes it."""
        self._closed.set()
        self._wakes.set()
        with self._lock:
            if self._process is not None and self._process.is_alive():
                self._process.terminate()
        if self._watch is not None:
            self._watch.join()

    # -- in a thread -----------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        """Run processes one after the other until one completes the load or the load has to be given up."""
        losses, pause_s, said = 0, RETRY_S, ""
        while not self._closed.is_set():
            outcome = self._run_process()
            if self._closed.is_set():
                return  # the child was ended together with this process
            if outcome is None:
                losses += 1
                logger.warning("target %s: the process of its load was lost (%s)", self.target, losses)
                if losses >= STARTS_MAX:
                    self._give_up(WorkerLost(hint=_LOST))
                    return
            elif isinstance(outcome, VenusError):
                if not outcome.retryable or self._end is not None:
                    self._give_up(outcome)
                    return
                if str(outcome) != said:
                    self._say(f"target {self.target}: {outcome}; its load is tried again")
                said, pause_s = str(outcome), min(2 * pause_s, RETRY_S_MAX) if said else pause_s
            else:
                self._report = outcome
                return
            self._wakes.wait(pause_s)

    def _give_up(self, error: VenusError) -> None:
        """Record the error that has ended this load; during the read, report that the target is loaded after it."""
        self._error = error
        if self._end is None:
            self._say(f"target {self.target}: {error}; it is loaded after the source is read")

    def _run_process(self) -> LoadReport | VenusError | None:
        """Run the load in one process; return its result, or None if the process was lost."""
        context = multiprocessing.get_context("spawn")  # neither a database driver nor gRPC survives a fork
        with self._lock:
            if self._closed.is_set():
                return None
            self._parent, child = context.Pipe()
            found = self._parent
            self._process = context.Process(
                target=run_load_process, args=(self._settings, self.target, child), name="venus-load", daemon=True
            )
            self._process.start()
            child.close()
            self._send_end()
        try:
            while isinstance(said := found.recv(), LoadProgress):
                if said.note:
                    self._say(f"target {self.target}: {said.note}")
                self.progress = replace(said, note="")
        except (EOFError, OSError):
            return None
        else:
            return said  # type: ignore[no-any-return]
        finally:
            self._process.join()

    def _send_end(self) -> None:
        """Send the offset at which the read has ended to the load's process, once both exist."""
        if self._end is not None and self._parent is not None:
            try:
                self._parent.send(self._end)
            except OSError:
                logger.debug("the process of the load is being replaced")


def run_load_process(settings: Settings, name: str, parent: Connection) -> None:
    """Load a target in this process; if the pipe to the parent closes, exit at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    from venus.adapters.targets.registry import open_target
    from venus.process.runners import LocalRunner
    from venus.process.system import delay_collection, freeze_objects, keep_freed_memory

    keep_freed_memory()
    delay_collection()
    ends: list[int] = []
    threading.Thread(target=_listen, args=(parent, ends), name="venus-parent", daemon=True).start()
    sent_at = 0.0

    def report(found: LoadProgress) -> None:
        """Send progress to the parent if a report is due; send a note, or the progress of indexing, at once."""
        nonlocal sent_at
        if time.monotonic() >= sent_at + REPORT_S or found.phase == "indexing" or found.note:
            sent_at = time.monotonic()
            parent.send(found)

    target = open_target(settings, name)
    freeze_objects()
    try:
        outcome: LoadReport | VenusError = target.load(
            report, choose=lambda _: LocalRunner(1), fill_end=lambda: ends[0] if ends else None
        )
    except VenusError as error:
        outcome = error
    parent.send(outcome)


def _listen(parent: Connection, ends: list[int]) -> None:
    """Receive from the parent the offset at which the read has ended; end this process when the parent ends."""
    try:
        while True:
            ends.append(parent.recv())
    except (EOFError, OSError):
        os._exit(1)
