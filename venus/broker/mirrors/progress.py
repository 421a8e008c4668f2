"""Progress of a replicator, for status. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum


class State(StrEnum):
    """Activity of a mirror."""

    WAITING = "waiting"  # for the upstream set, or for disk space
    FILLING = "filling"  # it copies the full data
    FOLLOWING = "following"
    CUT_OFF = "cut off"  # no upstream broker answers; local data is served
    REFUSED = "refused"  # the configuration or the upstream does not allow the mirror
    ELSEWHERE = "elsewhere"  # another broker of this set pulls


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """State of a replicator with its reason, and counts of what it has pulled since the broker's start."""

    state: State = State.WAITING
    reason: str = ""
    since_us: int = 0
    address: str = ""
    nbytes: int = 0
    rows: int = 0  # of the current full copy
    fills: int = 0
    hop_ms: int = 0


class Progress:
    """Progress that the replicator updates and other threads read."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self._lock = threading.Lock()
        self._status = Told(since_us=clock_us())

    @property
    def told(self) -> Told:
        """The newest progress."""
        return self._status

    def enter(self, state: State, reason: str = "", address: str = "") -> bool:
        """Enter a state. `since_us` stays while only the reason changes. Return True if the state is new."""
        with self._lock:
            before = self._status
            is_new = before.state is not state
            since_us = self._clock_us() if is_new else before.since_us
            self._status = replace(before, state=state, reason=reason, since_us=since_us, address=address)
            return is_new

    def fills(self) -> None:
        """Count the beginning of a full copy."""
        with self._lock:
            self._status = replace(self._status, fills=self._status.fills + 1, rows=0)

    def goes_on(self, rows: int) -> None:
        """Record that an interrupted full copy continues after `rows` rows."""
        with self._lock:
            self._status = replace(self._status, rows=rows)

    def pulled(self, nbytes: int, rows: int = 0) -> None:
        """Count received bytes and rows."""
        with self._lock:
            self._status = replace(self._status, nbytes=self._status.nbytes + nbytes, rows=self._status.rows + rows)

    def arrived(self, committed_at_us: int) -> None:
        """Record the delay since the home committed the newest batch that is visible here."""
        with self._lock:
            hop_ms = max(0, self._clock_us() - committed_at_us) // 1000
            self._status = replace(self._status, hop_ms=hop_ms)
