"""Names of a broker's limiters, the record of which business each one has delayed, and the delivery window.

The window of a consumer is halved when the consumer is slow and widened a little when it is not: additive increase,
multiplicative decrease, as in TCP. It is a part of the credit that the consumer gave and never exceeds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

STEP_BYTES = 64 << 10


class Limiter(Enum):
    """A limiter; the value is its display name."""

    ROWS = "rows"  # the token bucket on rows
    BYTES = "bytes"  # the token bucket on bytes
    MEMORY = "memory"  # received and not on disk
    TURN = "turn"  # the window that all businesses share
    SLOW = "slow request"  # has waited too long for the disk
    BEHIND = "full data behind"  # the full data is too far behind the queue
    DISK = "disk"  # too little free space
    DEGRADED = "degraded"  # half messages are degraded
    STREAMS = "streams"
    SNAPSHOTS = "snapshots"
    LOADS = "loads"  # readers of full data at once
    FULL_DATA = "full data"  # the leaky bucket
    CONSUMER = "slow consumer"
    SMALL = "small commits"  # large work pauses for them


#: A limiter counts as inactive this long after its last delay.
RELEASED_S = 5.0
#: Pairs of a limiter and a business that are kept; the oldest are removed first.
REMEMBERED_MAX = 1000


@dataclass(slots=True)
class LimiterUse:
    """Delays of a business by one limiter; an empty name stands for every business."""

    limiter: Limiter
    business: str
    peer: str
    times: int = 0
    waited_s: float = 0.0
    since: float = 0.0
    #: End of the newest delay; may lie in the future.
    until: float = 0.0

    def is_active(self, now: float) -> bool:
        """Return whether the limiter is delaying the business now."""
        return now - self.until < RELEASED_S


class LimiterRecord:
    """Delays by limiter and business."""

    def __init__(self) -> None:
        self._braked: dict[tuple[Limiter, str], LimiterUse] = {}

    def record_delay(self, brake: Limiter, business: str, who: str, wait_s: float, now: float) -> None:
        """Record that a peer has to wait `wait_s` from now on."""
        self._note(brake, business, who, wait_s, now, now + wait_s)

    def record_wait(self, brake: Limiter, business: str, who: str, wait_s: float, now: float) -> None:
        """Record that a peer has waited `wait_s` until now."""
        self._note(brake, business, who, wait_s, now, now)

    def _note(self, brake: Limiter, business: str, who: str, wait_s: float, now: float, until: float) -> None:
        found = self._braked.pop((brake, business), None)
        if found is None:
            found = LimiterUse(brake, business, who, since=now)
            if len(self._braked) >= REMEMBERED_MAX:
                del self._braked[next(iter(self._braked))]
        elif not found.is_active(now):
            found.since = now
        self._braked[brake, business] = found
        found.times += 1
        found.waited_s += wait_s
        found.peer, found.until = who, max(found.until, until)

    def entries(self) -> list[LimiterUse]:
        """Return all entries, the most recent last."""
        return list(self._braked.values())


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
