"""Tells who makes the sessions of a target wait, while they wait."""

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

#: A statement that takes so long is looked into.
LOOK_S = 5.0
#: How often the log repeats itself.
REPEAT_S = 300.0


def waiting(target: PostgresTarget, session: Session, states: dict[int, TableState]) -> list[TableCondition]:
    """Return for whom this target's sessions wait."""
    by_name = {f"{t.namespace}.{t.name}": t for t in states.values()}
    return [_condition(wait, by_name) for wait in waits(session, f"venus %{target.group}%", LOOK_S)]


def _condition(wait: Wait, by_name: dict[str, TableState]) -> TableCondition:
    known = by_name.get(wait.table)
    name = known.source_name if known else wait.table or "a row"
    return TableCondition(
        table_id=known.table_id if known else 0, name=name, state=WAITING, reason=f"for a lock of {wait.holder}"
    )


class _Teller:
    """Says whom sessions of a target wait for: when that changes, and now and then."""

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
    """While the block loads a target, log for whom its sessions wait, whatever process they are of."""
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
    """Looks now and then whether a session's statement takes long, and says why if that is a lock.

    It is a thread: the session's own is the one that waits. `tell` gets what there is to say, and nothing when it is
    over.
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
        """End it; does not wait for a look that is under way."""
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
