"""When a database or the broker is away: how long to wait, and what to call it (RocketMQ 2, circuit breaking). Pure.

Closed: a failure is tried again soon. Open: it is down, so only a probe now and then. Half-open: the probe is out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Circuit(Enum):
    """What the loop thinks of its surroundings."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


#: (state, has the attempt worked) -> the next state, below the limit of failures / at it.
_NEXT = {
    (Circuit.CLOSED, True): (Circuit.CLOSED, Circuit.CLOSED),
    (Circuit.CLOSED, False): (Circuit.CLOSED, Circuit.OPEN),
    (Circuit.HALF_OPEN, True): (Circuit.CLOSED, Circuit.CLOSED),
    (Circuit.HALF_OPEN, False): (Circuit.OPEN, Circuit.OPEN),
}


@dataclass(slots=True)
class Breaker:
    """Counts failures in a row."""

    failures_max: int = 5
    wait_first_s: float = 0.1
    wait_max_s: float = 10.0
    state: Circuit = Circuit.CLOSED
    failures: int = 0

    def worked(self) -> None:
        """Take note of a success."""
        self.state, _ = _NEXT[Circuit.HALF_OPEN if self.state is Circuit.OPEN else self.state, True]
        self.failures = 0

    def failed(self) -> float:
        """Take note of a failure; return how long to wait before the next attempt."""
        self.failures += 1
        below, reached = _NEXT[self.state, False]
        self.state = reached if self.failures >= self.failures_max else below
        return min(self.wait_max_s, self.wait_first_s * float(2 ** min(self.failures - 1, 16)))

    def probe(self) -> None:
        """Start the next attempt."""
        if self.state is Circuit.OPEN:
            self.state = Circuit.HALF_OPEN
