"""Progress of a replicator, for status. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum


class MirrorState(StrEnum):
    """Activity of a mirror."""

    WAITING = "waiting"  # for the upstream set, or for disk space
    FILLING = "filling"  # it copies the full data
    FOLLOWING = "following"
    CUT_OFF = "cut off"  # no upstream broker answers; local data is served
    REFUSED = "refused"  # the configuration or the upstream does not allow the mirror
    ELSEWHERE = "elsewhere"  # another broker of this set pulls


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatorStatus:
    """State of a replicator with its reason, and counts of what it has pulled since the broker's start."""

    state: MirrorState = MirrorState.WAITING
    reason: str = ""
    since_us: int = 0
    address: str = ""
    nbytes: int = 0
    rows: int = 0  # of the current full copy
    fills: int = 0
    hop_ms: int = 0


class ReplicatorProgress:
    """Progress that the replicator updates and other threads read."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self._lock = threading.Lock()
        self._current = ReplicatorStatus(since_us=clock_us())

    @property
    def status(self) -> ReplicatorStatus:
        """The newest progress."""
        return self._current

    def enter(self, state: MirrorState, reason: str = "", address: str = "") -> bool:
        """Enter a state. `since_us` stays while only the reason changes. Return True if the state is new."""
        with self._lock:
            before = self._current
            is_new = before.state is not state
            since_us = self._clock_us() if is_new else before.since_us
            self._current = replace(before, state=state, reason=reason, since_us=since_us, address=address)
            return is_new

    def record_fill(self) -> None:
        """Count the beginning of a full copy."""
        with self._lock:
            self._current = replace(self._current, fills=self._current.fills + 1, rows=0)

    def record_resume(self, rows: int) -> None:
        """Record that an interrupted full copy continues after `rows` rows."""
        with self._lock:
            self._current = replace(self._current, rows=rows)

    def record_pulled(self, nbytes: int, rows: int = 0) -> None:
        """Count received bytes and rows."""
        with self._lock:
            self._current = replace(self._current, nbytes=self._current.nbytes + nbytes, rows=self._current.rows + rows)

    def record_arrival(self, committed_at_us: int) -> None:
        """Record the delay since the home committed the newest batch that is visible here."""
        with self._lock:
            hop_ms = max(0, self._clock_us() - committed_at_us) // 1000
            self._current = replace(self._current, hop_ms=hop_ms)
