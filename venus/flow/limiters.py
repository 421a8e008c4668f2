"""Names of a broker's limiters, and the record of which business each one has delayed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
