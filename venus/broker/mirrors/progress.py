"""What a puller says of itself, for status: thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum


class State(StrEnum):
    """What a mirror is doing."""

    WAITING = "waiting"  # for the set above, or for room
    FILLING = "filling"  # it takes the full data
    FOLLOWING = "following"
    CUT_OFF = "cut off"  # nobody of the set above answers; what is here is served
    REFUSED = "refused"  # it may not be mirrored as it is configured
    ELSEWHERE = "elsewhere"  # another broker of this set pulls


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Since when it is in a state, and why; what it has pulled since the broker's start."""

    state: State = State.WAITING
    reason: str = ""
    since_us: int = 0
    address: str = ""
    nbytes: int = 0
    rows: int = 0  # of the full data that is being taken
    fills: int = 0
    hop_ms: int = 0


class Progress:
    """Changed by the puller, read by whoever asks."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self._lock = threading.Lock()
        self._told = Told(since_us=clock_us())

    @property
    def told(self) -> Told:
        """What it said last."""
        return self._told

    def enter(self, state: State, reason: str = "", address: str = "") -> bool:
        """Be in a state; its time goes on while only the reason changes. Return whether it is a new one."""
        with self._lock:
            told = self._told
            is_new = told.state is not state
            since_us = self._clock_us() if is_new else told.since_us
            self._told = replace(told, state=state, reason=reason, since_us=since_us, address=address)
            return is_new

    def fills(self) -> None:
        """Note that the full data is taken once more."""
        with self._lock:
            self._told = replace(self._told, fills=self._told.fills + 1, rows=0)

    def goes_on(self, rows: int) -> None:
        """Note that full data that was interrupted goes on, behind so many rows."""
        with self._lock:
            self._told = replace(self._told, rows=rows)

    def pulled(self, nbytes: int, rows: int = 0) -> None:
        """Count what has come."""
        with self._lock:
            self._told = replace(self._told, nbytes=self._told.nbytes + nbytes, rows=self._told.rows + rows)

    def arrived(self, committed_at_us: int) -> None:
        """Note when the newest batch that is visible here was committed at the home."""
        with self._lock:
            hop_ms = max(0, self._clock_us() - committed_at_us) // 1000
            self._told = replace(self._told, hop_ms=hop_ms)
