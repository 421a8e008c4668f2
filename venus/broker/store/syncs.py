"""How long fsyncs take: the last ones, and the one that is under way."""

from __future__ import annotations

from collections import deque

KEPT = 256


class Syncs:
    """Written by whoever syncs, read by anybody; times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, float]] = deque(maxlen=KEPT)  # when, and how long it took
        self._began: float | None = None
        #: What the fsyncs since the broker's start took together.
        self.total_s = 0.0

    def begin(self, now: float) -> None:
        """Note that an fsync begins."""
        self._began = now

    def end(self, now: float) -> None:
        """Note that it has ended."""
        if self._began is not None:
            self._ended.append((now, now - self._began))
            self.total_s += now - self._began
            self._began = None

    def running_s(self, now: float) -> float:
        """Return for how long the one under way has lasted; 0 = there is none."""
        began = self._began
        return 0.0 if began is None else now - began

    def slower_than(self, seconds: float, since: float) -> int:
        """Return how many since then took so long or longer."""
        return sum(took >= seconds for at, took in tuple(self._ended) if at >= since)
