"""Delivery window of a consumer: halved when the consumer is slow, widened a little when it is not.

Additive increase, multiplicative decrease, as in TCP. The window is a part of the credit that the consumer gave and
never exceeds it.
"""

from __future__ import annotations

from dataclasses import dataclass

STEP_BYTES = 64 << 10


@dataclass(slots=True)
class DeliveryWindow:
    """Bytes that may be outstanding, from `least` to `most`."""

    most: int
    slow_s: float
    least: int = STEP_BYTES
    size: int = 0
    slow_since: float | None = None
    _waits_since: float | None = None  # for the oldest outstanding byte, or for the last that came back
    _outstanding: int = 0

    def __post_init__(self) -> None:
        self.size = self.size or self.most

    @property
    def room(self) -> int:
        """How many bytes more may be sent. A narrowed window is used by halves, because tiny rests make tiny frames."""
        room = max(0, self.size - self._outstanding)
        return room if self.size == self.most or 2 * room >= self.size else 0

    @property
    def outstanding(self) -> int:
        """How many bytes are sent and not returned."""
        return self._outstanding

    def on_sent(self, nbytes: int, now: float) -> None:
        """Count sent bytes."""
        if not self._outstanding:
            self._waits_since = now
        self._outstanding += nbytes

    def on_returned(self, nbytes: int, now: float) -> None:
        """Count bytes that the consumer has taken; widen the window if that was quick."""
        waited = now - self._waits_since if self._waits_since is not None else 0.0
        self.most = max(self.most, nbytes)
        self._outstanding = max(0, self._outstanding - nbytes)
        self._waits_since = now if self._outstanding else None
        if waited < self.slow_s:
            self.size = min(self.most, self.size + STEP_BYTES)
            self.slow_since = None

    def halve_if_slow(self, now: float) -> bool:
        """Halve the window if nothing was returned for too long; return whether it was halved. Call it periodically."""
        if self._waits_since is None or now - self._waits_since < self.slow_s:
            return False
        if self.slow_since is None:
            self.slow_since = self._waits_since
        self._waits_since = now  # it is halved once for each such time
        self.size = max(min(self.least, self.most), self.size // 2)
        return True
