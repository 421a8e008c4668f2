"""Admission control of a broker: every request to send, load or connect passes these limiters.

Nothing is dropped. Input over a limit is accepted and its sender pauses, or it is refused and the sender repeats it
later. The state belongs to the event loop; other threads report through it. `LimiterRecord` remembers which business
each limiter has delayed.

Token buckets limit what comes in, a leaky bucket what goes out (RocketMQ 2, figures 1 and 2). Both allow debt: an item
larger than the bucket passes alone and is paid for afterwards. So no batch is too large to get through, and the rate
holds in the long run.

The window of a consumer is halved when the consumer is slow and widened a little when it is not: additive increase,
multiplicative decrease, as in TCP. It is a part of the credit that the consumer gave and never exceeds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from venus.flow.degradation import Degradation, Lane
from venus.flow.write_queue import MemoryShares, WriteQueue

WINDOW_STEP_BYTES = 64 << 10


class Limiter(Enum):
    """A limiter; the value is its display name."""

    ROWS = "rows"  # the token bucket on rows
    BYTES = "bytes"  # the token bucket on bytes
    MEMORY = "memory"  # received and not on disk
    TURN = "turn"  # the window that all businesses share
    SLOW = "slow request"  # has waited too long for the disk
    BEHIND = "full data behind"  # the full data is too far behind the queue
    DISK = "disk"  # too little free space
    DEGRADED = "degraded"  # the lane of half messages is degraded
    STREAMS = "streams"
    SNAPSHOTS = "snapshots"
    LOADS = "loads"  # readers of full data at once
    FULL_DATA = "full data"  # the leaky bucket
    CONSUMER = "slow consumer"
    SMALL = "small commits"  # large work pauses for small commits


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

    def _note(self, limiter: Limiter, business: str, peer: str, wait_s: float, now: float, until: float) -> None:
        """Add a delay to the entry of a limiter and business."""
        found = self._braked.pop((limiter, business), None)
        if found is None:
            found = LimiterUse(limiter, business, peer, since=now)
            if len(self._braked) >= REMEMBERED_MAX:
                del self._braked[next(iter(self._braked))]
        elif not found.is_active(now):
            found.since = now
        self._braked[limiter, business] = found
        found.times += 1
        found.waited_s += wait_s
        found.peer, found.until = peer, max(found.until, until)

    def entries(self) -> list[LimiterUse]:
        """Return all entries, the most recent last."""
        return list(self._braked.values())


@dataclass(slots=True)
class DeliveryWindow:
    """Number of bytes that may be outstanding at a consumer: between `least` and `most`."""

    most: int
    slow_s: float
    least: int = WINDOW_STEP_BYTES
    size: int = 0
    slow_since: float | None = None
    _waits_since: float | None = None  # arrival of the oldest outstanding byte, or of the last returned one
    _outstanding: int = 0

    def __post_init__(self) -> None:
        self.size = self.size or self.most

    @property
    def room(self) -> int:
        """How many more bytes may be sent; a narrowed window waits until half of it is free, to avoid tiny frames."""
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
            self.size = min(self.most, self.size + WINDOW_STEP_BYTES)
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


@dataclass(slots=True)
class Slots:
    """Semaphore that refuses instead of blocking: at most `limit` slots are in use."""

    limit: int
    used: int = 0

    def acquire(self) -> bool:
        """Take a slot; return False if there is none."""
        if self.used >= self.limit:
            return False
        self.used += 1
        return True

    def release(self) -> None:
        """Give a slot back."""
        assert self.used > 0, "left more often than entered"
        self.used -= 1


@dataclass(slots=True)
class TokenBucket:
    """Bucket of `rate` tokens a second, at most `burst` at once. A rate of 0 means no limit."""

    rate: float
    burst: float
    level: float
    at: float

    @classmethod
    def full(cls, rate: float, burst: float, now: float) -> TokenBucket:
        """Return a full bucket."""
        return cls(rate, burst, burst, now)

    def wait_s(self, now: float) -> float:
        """Return how long until the debt is paid; 0 means now."""
        if self.rate <= 0:
            return 0.0
        self._fill(now)
        return -self.level / self.rate if self.level < 0 else 0.0

    def take(self, n: float, now: float) -> float:
        """Spend tokens, into debt if necessary; return how long until the debt is paid."""
        if self.rate <= 0:
            return 0.0
        self._fill(now)
        self.level -= n
        return -self.level / self.rate if self.level < 0 else 0.0

    def is_overdrawn(self, now: float) -> bool:
        """Return whether the debt is a whole burst or more: a sender ignores its pauses."""
        if self.rate <= 0:
            return False
        self._fill(now)
        return self.level <= -self.burst

    def _fill(self, now: float) -> None:
        """Add the tokens of the time since the last call."""
        if now > self.at:
            self.level = min(self.burst, self.level + (now - self.at) * self.rate)
            self.at = now


@dataclass(slots=True)
class LeakyBucket:
    """Lets through a number of units a second, evenly; a rate of 0 is no limit."""

    rate: float
    _free_at: float = 0.0

    def delay_s(self, n: float, now: float) -> float:
        """Return how long to wait before `n` units may be sent, and count them as sent."""
        if self.rate <= 0:
            return 0.0
        begin = max(now, self._free_at)
        self._free_at = begin + n / self.rate
        return begin - now


#: How long a producer pauses when the full data lags as far as is allowed, and while its lane is degraded.
BEHIND_PAUSE_S = 0.1
DEGRADED_PAUSE_S = 0.5
PAUSE_MAX_S = 5.0
#: When to ask again for a slot.
SLOT_RETRY_S = 1.0
#: The shared window is never smaller than the smallest group of disk writes.
WINDOW_BYTES_MIN = 256 << 10
#: Businesses whose buckets are remembered.
METERS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Settings of [broker.limits], in bytes, rows and seconds; 0 means no limit."""

    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0
    burst_s: float = 1.0
    full_data_bytes_per_s: float = 0.0
    snapshots: int = 4
    loads: int = 64
    streams: int = 20_000
    slow_request_s: float = 0.2
    slow_consumer_s: float = 5.0
    subscriptions: int = 20_000
    subscriptions_of_client: int = 10_000
    listener_s: float = 60.0
    unsaved_bytes_max: int = 48 << 20
    behind_bytes_max: int = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionVerdict:
    """Decision on half messages: whether they are refused, and how long their producer pauses."""

    pause_s: float = 0.0
    refused: bool = False


TAKEN = AdmissionVerdict()


@dataclass(slots=True)
class _Meter:
    """The token buckets of one business."""

    rows: TokenBucket
    bytes: TokenBucket


class Admission:
    """All limiters of a broker."""

    def __init__(self, limits: AdmissionLimits, degradation: Degradation) -> None:
        self.limits = limits
        self.degradation = degradation
        self.record = LimiterRecord()
        target_s = limits.slow_request_s / 2 or 1.0
        self.unsaved = MemoryShares(limits.unsaved_bytes_max, target_s)
        self.write_queue = WriteQueue(most=limits.unsaved_bytes_max, least=WINDOW_BYTES_MIN, target_s=target_s)
        self.streams = Slots(limits.streams)
        self.loads = Slots(limits.loads)
        self._egress = LeakyBucket(limits.full_data_bytes_per_s)
        self._meters: dict[str, _Meter] = {}

    @property
    def counts_rows(self) -> bool:
        """Whether a limit depends on the number of rows of a half message."""
        return self.limits.rows_per_s > 0

    # -- half messages -------------------------------------------------------------------------------------------

    def takes_all(self, behind_bytes: int) -> bool:
        """Return whether half messages are accepted without a check, because no limit concerns them now."""
        limits = self.limits
        return (
            not (limits.rows_per_s or limits.bytes_per_s or self.degradation.degraded)
            and behind_bytes <= limits.behind_bytes_max
        )

    def judge_halves(
        self, business: str, producer: str, *, rows: int, nbytes: int, behind_bytes: int, now: float
    ) -> AdmissionVerdict:
        """Decide whether half messages that have arrived are accepted; accepted ones count against every limit."""
        limits = self.limits
        if self.takes_all(behind_bytes):
            return TAKEN
        pause_s, limiter, refused = self._spend_tokens(business, rows, nbytes, now)
        if behind_bytes > limits.behind_bytes_max:
            part = behind_bytes / limits.behind_bytes_max
            pause_s, limiter = max((pause_s, limiter), (BEHIND_PAUSE_S * part, Limiter.BEHIND), key=lambda p: p[0])
            refused = refused or part > 2
        if self.degradation.is_degraded(Lane.HALVES):
            pause_s, limiter = max((pause_s, limiter), (DEGRADED_PAUSE_S, Limiter.DEGRADED), key=lambda p: p[0])
        if not pause_s:
            return TAKEN
        pause_s = min(pause_s, PAUSE_MAX_S)
        self.record.record_delay(limiter, business, producer, pause_s, now)
        return AdmissionVerdict(pause_s=pause_s, refused=refused)

    def _spend_tokens(self, business: str, rows: int, nbytes: int, now: float) -> tuple[float, Limiter, bool]:
        """Spend tokens, or refuse if a whole burst is owed. Return the pause, its limiter, and whether it refused."""
        limits = self.limits
        if not (limits.rows_per_s or limits.bytes_per_s):
            return 0.0, Limiter.ROWS, False
        meter = self._meters.get(business) or self._new_meter(business, now)
        refused = meter.rows.is_overdrawn(now) or meter.bytes.is_overdrawn(now)
        for_rows = meter.rows.wait_s(now) if refused else meter.rows.take(rows, now)
        for_bytes = meter.bytes.wait_s(now) if refused else meter.bytes.take(nbytes, now)
        return max((for_rows, Limiter.ROWS, refused), (for_bytes, Limiter.BYTES, refused), key=lambda found: found[0])

    def _new_meter(self, business: str, now: float) -> _Meter:
        """Add the token buckets of a business; drop the oldest ones if there are too many."""
        limits = self.limits
        if len(self._meters) >= METERS_MAX:
            del self._meters[next(iter(self._meters))]
        meter = self._meters[business] = _Meter(
            TokenBucket.full(limits.rows_per_s, limits.rows_per_s * limits.burst_s, now),
            TokenBucket.full(limits.bytes_per_s, limits.bytes_per_s * limits.burst_s, now),
        )
        return meter

    # -- full data -----------------------------------------------------------------------------------------------

    def full_data_delay_s(self, business: str, nbytes: int, now: float) -> float:
        """Return how long a chunk of full data waits before it is sent."""
        delay_s = self._egress.delay_s(nbytes, now)
        if delay_s:
            self.record.record_delay(Limiter.FULL_DATA, business, "", delay_s, now)
        return delay_s

    def snapshot_wait_s(self, business: str, holder: str, now: float) -> float:
        """Return how long a reader waits before it may request a snapshot again; 0 means that it may have one now."""
        if not self.degradation.is_degraded(Lane.FULL_DATA):
            return 0.0
        self.record.record_delay(Limiter.DEGRADED, business, holder, SLOT_RETRY_S, now)
        return SLOT_RETRY_S
