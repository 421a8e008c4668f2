"""Repetition of a cut-over's steps while another session's lock prevents them.

Each step is one transaction, or may be repeated (switch.py). A database rolls the transaction back if a lock is not
granted in time, or to end a deadlock. Between two attempts, the sessions that have queued behind VENUS's lock request
proceed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from venus.errors import Deadlock, LockConflict, LockTimeout, VenusError

logger = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE_S = 0.2
#: How many times a step is repeated after deadlocks, regardless of the time limit.
DEADLOCKS_MAX = 5


class LockPatience:
    """Repeats a step until it gets its locks, for at most `wait_s` seconds; `report` receives the reason to wait."""

    def __init__(
        self,
        wait_s: float,
        report: Callable[[str], None] = lambda _: None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._wait_s = wait_s
        self._report = report
        self._monotonic = monotonic
        self._sleep = sleep

    def run(self, step: Callable[[], T], describe_holders: Callable[[], str] = lambda: "") -> T:
        """Run the step until it gets its locks; return its result. Raises LockTimeout with possible lock holders."""
        until, deadlocks, before = self._monotonic() + self._wait_s, 0, ""
        while True:
            try:
                return step()
            except LockConflict as error:
                deadlocks += isinstance(error, Deadlock)
                text = _describe_conflict(error, describe_holders)
                if self._monotonic() >= until and not 0 < deadlocks <= DEADLOCKS_MAX:
                    hint = error.hint or "end the transaction that holds the lock, and run the command again"
                    raise LockTimeout(text, hint=hint) from error
            if text != before:
                logger.warning("waits: %s", text)
            before = text
            self._report(f"waits: {text}")
            self._sleep(PAUSE_S)


def _describe_conflict(error: LockConflict, describe_holders: Callable[[], str]) -> str:
    """Return the error as text, with the sessions that may hold the lock."""
    holders = ""
    with suppress(VenusError):
        holders = describe_holders()
    return f"{error}; open transactions: {holders}" if holders else str(error)
