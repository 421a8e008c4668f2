"""Handling of a peer that fails: retry rules for loops, and circuit breakers where there is a choice of peers.

Retry rules say which errors the loops of `venus sync` retry. A retry helps where the other side may come back by
itself: a server is down or is starting, or the network is interrupted. It does not help against a wrong configuration,
which ends the loop with the exit code of any other command. A refused login or a missing database can be either. If the
process has worked before, an operator is probably changing a password or restoring a backup at this moment, and the
loop retries.

A circuit breaker isolates a peer that fails or answers slowly, then probes it once (RocketMQ 2, fuse). Closed: the peer
is used normally. Open: the peer is not used while there is another. Half-open: one call is under way as a probe, and
its outcome decides. Breakers are used only where there is a choice of peers or where waiting is the only option; never
in front of a set of replicas that has to agree.

`Stalls` finds the time in which this process itself did not run, by reading a clock in regular beats. A process that
was stopped, swapped out or short of CPU measures more than the peer took, and must not blame the peer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from venus.errors import (
    Denied,
    DirectionChanged,
    Fenced,
    Held,
    LoginRefused,
    NoSuchDatabase,
    NotInstalled,
    Refused,
    UnknownHost,
    Untrusted,
    VenusError,
)

#: How often a lasting problem is worth a line in the log.
REMIND_S = 60.0


class RetryPolicy(Enum):
    """Reaction of a loop to an error."""

    WAIT = "try again, with growing pauses"
    #: Another command has to act first, for example load the target, or end.
    RARELY = "try again at long intervals, if other loops continue meanwhile"
    END = "end with the error's exit code"


#: By class of error: the reaction before the loop has worked, and afterwards. The first matching class counts.
RETRY_RULES: tuple[tuple[type[VenusError], RetryPolicy, RetryPolicy], ...] = (
    (UnknownHost, RetryPolicy.WAIT, RetryPolicy.WAIT),
    (NoSuchDatabase, RetryPolicy.END, RetryPolicy.WAIT),
    (LoginRefused, RetryPolicy.END, RetryPolicy.WAIT),
    (Untrusted, RetryPolicy.END, RetryPolicy.WAIT),
    (NotInstalled, RetryPolicy.END, RetryPolicy.END),
    (Fenced, RetryPolicy.END, RetryPolicy.END),
    (Held, RetryPolicy.END, RetryPolicy.END),
    (DirectionChanged, RetryPolicy.END, RetryPolicy.END),
    (Denied, RetryPolicy.END, RetryPolicy.END),
    (Refused, RetryPolicy.RARELY, RetryPolicy.RARELY),
)


def find_retry_policy(error: BaseException | None, *, has_worked: bool) -> RetryPolicy:
    """Return the reaction of a loop to an error."""
    if not isinstance(error, VenusError):
        return RetryPolicy.END
    for kind, before, afterwards in RETRY_RULES:
        if isinstance(error, kind):
            return afterwards if has_worked else before
    return RetryPolicy.WAIT if error.retryable else RetryPolicy.END


def should_retry(error: BaseException | None, *, has_worked: bool) -> bool:
    """Return whether a loop retries by itself after this error."""
    return find_retry_policy(error, has_worked=has_worked) is RetryPolicy.WAIT


class Circuit(Enum):
    """State of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


#: (state, has the call worked) -> the next state, below the limit of failures in a row / at it.
_NEXT = {
    (Circuit.CLOSED, True): (Circuit.CLOSED, Circuit.CLOSED),
    (Circuit.CLOSED, False): (Circuit.CLOSED, Circuit.OPEN),
    (Circuit.OPEN, True): (Circuit.CLOSED, Circuit.CLOSED),
    (Circuit.OPEN, False): (Circuit.OPEN, Circuit.OPEN),
    (Circuit.HALF_OPEN, True): (Circuit.CLOSED, Circuit.CLOSED),
    (Circuit.HALF_OPEN, False): (Circuit.OPEN, Circuit.OPEN),
}

Classes = Sequence[tuple[float, float]]

#: Latencies from which on a peer is isolated, and for how long; RocketMQ's table, in seconds.
LATENCY_CLASSES: Classes = ((0.55, 2.0), (1.8, 5.0), (3.0, 6.0), (5.0, 10.0), (15.0, 30.0))


def isolation_for_s(latency_s: float, classes: Classes = LATENCY_CLASSES) -> float:
    """Return how long to isolate a peer that answered after `latency_s`; 0 means do not isolate it."""
    return next((isolated for least, isolated in reversed(classes) if latency_s >= least), 0.0)


@dataclass(slots=True)
class Breaker:
    """Circuit breaker of one peer. Times are seconds."""

    errors_max: int = 3
    wait_first_s: float = 2.0
    wait_max_s: float = 30.0
    #: A probe without an outcome after this time no longer counts.
    probe_s: float = 10.0
    classes: Classes = LATENCY_CLASSES
    state: Circuit = Circuit.CLOSED
    errors: int = 0
    reason: str = ""
    since: float = 0.0
    _until: float = 0.0

    def is_isolated(self, now: float) -> bool:
        """Return whether not to use the peer: the circuit is open and no probe is due, or a probe is under way."""
        return self.state is not Circuit.CLOSED and now < self._until

    def remaining_s(self, now: float) -> float:
        """Return how long the peer is still isolated."""
        return max(0.0, self._until - now) if self.state is not Circuit.CLOSED else 0.0

    def start_probe(self, now: float) -> bool:
        """Start the one probe that an open circuit allows when it is due; return whether this call is the probe."""
        if self.state is Circuit.CLOSED or now < self._until:
            return False
        self.state, self._until = Circuit.HALF_OPEN, now + self.probe_s
        return True

    def record_success(self, latency_s: float, now: float) -> None:
        """Record an answer and its latency; 0 means that the latency is not known."""
        isolated = isolation_for_s(latency_s, self.classes)
        self.errors = 0
        if isolated:
            self._open(f"answered after {latency_s:.1f} s", isolated, now)
        else:
            self.state, _ = _NEXT[self.state, True]
            self.reason = ""

    def record_failure(self, now: float, reason: str = "") -> float:
        """Record a failure; return how long to wait before the next attempt."""
        self.errors += 1
        wait_s = min(self.wait_max_s, self.wait_first_s * float(2 ** min(self.errors - 1, 16)))
        below, reached = _NEXT[self.state, False]
        if (reached if self.errors >= self.errors_max else below) is Circuit.OPEN:
            self._open(reason, wait_s, now)
        return wait_s

    def record_unknown(self, now: float) -> None:
        """Record that a call has no known outcome: if it was a probe, a new one is due."""
        if self.state is Circuit.HALF_OPEN:
            self.state, self._until = Circuit.OPEN, now

    def _open(self, reason: str, isolated_s: float, now: float) -> None:
        """Isolate the peer for some seconds."""
        if self.state is Circuit.CLOSED:
            self.since = now
        self.state, self.reason, self._until = Circuit.OPEN, reason, now + isolated_s


#: Gaps that are kept; older ones are not discounted.
KEPT = 512


@dataclass(slots=True)
class Stalls:
    """Times in which this process did not run: the gaps between beats that are due every `every_s` seconds."""

    every_s: float
    _last: float | None = None
    _gaps: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def record_beat(self, now: float) -> None:
        """Record that the process runs now; if this beat is late, record the gap before it."""
        if self._last is not None and now > self._last + self.every_s:
            self._gaps.append((self._last + self.every_s, now))
        self._last = now

    def pause(self) -> None:
        """Suspend the measurement until the next beat: the time until then is no gap."""
        self._last = None

    def missing_s(self, since: float, now: float) -> float:
        """Return how long the process did not run between `since` and `now`, as far as is known."""
        missing_s = 0.0
        if self._last is not None:  # the next beat is late already, or not due
            missing_s = max(0.0, now - max(self._last + self.every_s, since))
        for begin, end in reversed(self._gaps):  # the gaps are in order, and mostly a recent one is asked for
            if end <= since:
                break
            missing_s += max(0.0, min(end, now) - max(begin, since))
        return missing_s
