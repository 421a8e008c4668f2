"""Reports of the locks that a target's sessions wait for, while they wait."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from venus.adapters.dialects.postgresql.waits import Wait, waits
from venus.adapters.targets.postgresql.database import PostgresTarget, TableState
from venus.adapters.targets.postgresql.session import Session
from venus.conditions import WAITING, TableCondition
from venus.errors import VenusError

logger = logging.getLogger(__name__)

#: A statement that runs for longer is examined.
LOOK_S = 5.0
#: How often the log repeats itself.
REPEAT_S = 300.0


def waiting(target: PostgresTarget, session: Session, states: dict[int, TableState]) -> list[TableCondition]:
    """Return the tables for whose locks this target's sessions wait, with the holders."""
    by_name = {f"{t.namespace}.{t.name}": t for t in states.values()}
    return [_condition(wait, by_name) for wait in waits(session, f"venus %{target.group}%", LOOK_S)]


def _condition(wait: Wait, by_name: dict[str, TableState]) -> TableCondition:
    known = by_name.get(wait.table)
    name = known.source_name if known else wait.table or "a row"
    return TableCondition(
        table_id=known.table_id if known else 0, name=name, state=WAITING, reason=f"for a lock of {wait.holder}"
    )


class _Teller:
    """Reporter of the locks that sessions of a target wait for: on each change, and from time to time."""

    def __init__(self, target: PostgresTarget, tell: Callable[[list[TableCondition]], None]) -> None:
        self._target = target
        self._tell = tell
        self._again_at = 0.0
        self.said: list[TableCondition] = []

    def say(self, found: list[TableCondition]) -> None:
        if found == self.said and time.monotonic() < self._again_at:
            return
        self.said, self._again_at = found, time.monotonic() + REPEAT_S
        for condition in found:
            logger.warning("target %s: %s waits %s", self._target.name, condition.name, condition.reason)
        with suppress(VenusError):
            self._tell(found)


@contextmanager
def load_waits_told(target: PostgresTarget) -> Iterator[None]:
    """Log the locks that the sessions of a load wait for, in any process, while the block runs."""
    ended, teller = threading.Event(), _Teller(target, lambda _: None)

    def look() -> None:
        while not ended.wait(LOOK_S):
            with suppress(VenusError):
                session = target.connect("look")
                try:
                    teller.say([_condition(wait, {}) for wait in waits(session, "venus load %", LOOK_S)])
                finally:
                    session.close()

    threading.Thread(target=look, name="venus-load-waits", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


class Watch:
    """Thread that checks whether a session's statement waits for a lock, and reports that.

    It is a separate thread because the session's own thread waits. `tell` receives the waits, and an empty list when
    they end.
    """

    def __init__(
        self, target: PostgresTarget, session: Session, states: Callable[[], dict[int, TableState]],
        tell: Callable[[list[TableCondition]], None],
    ) -> None:  # fmt: skip
        self._target = target
        self._session = session
        self._states = states
        self._teller = _Teller(target, tell)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="venus-waits", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread without waiting for a running check."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            since = self._session.busy_since
            if since is not None and time.monotonic() - since >= LOOK_S:
                with suppress(VenusError):
                    self._look()
            elif self._teller.said:
                self._teller.say([])

    def _look(self) -> None:
        session = self._target.connect("look")
        try:
            self._teller.say(waiting(self._target, session, self._states()))
        finally:
            session.close()
