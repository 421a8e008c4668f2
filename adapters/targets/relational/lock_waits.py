"""Reports of the locks that a target's sessions wait for, while they wait."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from venus.adapters.targets.relational.database import RelationalDatabase
from venus.adapters.targets.relational.session import RelationalSession
from venus.adapters.targets.relational.states import TableState
from venus.errors import VenusError
from venus.rpc.conditions import WAITING, TableCondition

logger = logging.getLogger(__name__)

#: A statement that runs longer than this is checked for lock waits.
LOOK_S = 5.0
#: How often the log repeats a lasting wait.
REPEAT_S = 300.0


class TargetLockWait(Protocol):
    """A lock that sessions wait for: its table (empty for a lock on a row), and its holder as text."""

    @property
    def table(self) -> str: ...

    @property
    def holder(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLockWait:
    """A lock on a row of a table, or on a table, that a session waits for."""

    table: str
    holder: str


def wait_conditions(waits: Iterable[TargetLockWait], states: dict[int, TableState]) -> list[TableCondition]:
    """Return the conditions of the tables for whose locks sessions wait. Pure."""
    by_name = {f"{t.namespace}.{t.name}": t for t in states.values()}
    found = []
    for wait in waits:
        known = by_name.get(wait.table)
        name = known.source_name if known else wait.table or "a row"
        table_id = known.table_id if known else 0
        found.append(TableCondition(table_id=table_id, name=name, state=WAITING, reason=f"for a lock of {wait.holder}"))
    return found


class _WaitReporter:
    """Reports the locks that sessions of a target wait for: on each change, and again from time to time."""

    def __init__(self, target: RelationalDatabase, tell: Callable[[list[TableCondition]], None]) -> None:
        self._target = target
        self._tell = tell
        self._again_at = 0.0
        self.reported: list[TableCondition] = []

    def report(self, found: list[TableCondition]) -> None:
        """Log and report lock waits if they have changed, or if the last report is old."""
        if found == self.reported and time.monotonic() < self._again_at:
            return
        self.reported, self._again_at = found, time.monotonic() + REPEAT_S
        for condition in found:
            logger.warning("target %s: %s waits %s", self._target.name, condition.name, condition.reason)
        with suppress(VenusError):
            self._tell(found)


@contextmanager
def log_load_waits(
    target: RelationalDatabase, find: Callable[[RelationalSession], Iterable[TargetLockWait]]
) -> Iterator[None]:
    """Log the locks that the sessions of a load wait for, in any process, while the block runs."""
    ended, reporter = threading.Event(), _WaitReporter(target, lambda _: None)

    def report_waits() -> None:
        while not ended.wait(LOOK_S):
            with suppress(VenusError):
                session = target.connect("report_waits")
                try:
                    reporter.report(wait_conditions(find(session), {}))
                finally:
                    session.close()

    threading.Thread(target=report_waits, name="venus-load-waits", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


class WatchedSession(Protocol):
    """A session that shows since when its statement has been running; None = no statement runs."""

    @property
    def busy_since(self) -> float | None: ...


class LockWaitMonitor:
    """Thread that checks whether a session's statement waits for a lock, and reports that.

    It is a separate thread because the session's own thread waits. `tell` receives the waits, and an empty list when
    they end.
    """

    def __init__(
        self,
        target: RelationalDatabase,
        session: WatchedSession,
        states: Callable[[], dict[int, TableState]],
        tell: Callable[[list[TableCondition]], None],
    ) -> None:
        self._target = target
        self._session = session
        self._states = states
        self._reporter = _WaitReporter(target, tell)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="venus-waits", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread without waiting for a running check."""
        self._ended.set()

    def _run(self) -> None:
        """Look for waits while a statement runs for long, and report their end, until closed."""
        while not self._ended.wait(LOOK_S):
            since = self._session.busy_since
            if since is not None and time.monotonic() - since >= LOOK_S:
                with suppress(VenusError):
                    self._check()
            elif self._reporter.reported:
                self._reporter.report([])

    def _check(self) -> None:
        """Report the locks for which the target's sessions wait at present."""
        session = self._target.connect("report_waits")
        try:
            self._reporter.report(self._target.find_lock_waits(session, self._states()))
        finally:
            session.close()
