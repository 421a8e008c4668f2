"""The one owner of a broker's brakes: whoever wants to send, load or connect is let in here, or told when.

Nothing is dropped: what is over a limit is taken and its sender told to pause, or not taken and asked for again after
a time. The state is the event loop's; whoever is in another thread reports through it.
"""

from __future__ import annotations

from dataclasses import dataclass

from venus.flow.braking import Brake, Record
from venus.flow.degradation import Degradation, Lane
from venus.flow.turns import Sharing, Turns


@dataclass(slots=True)
class Slots:
    """At most `limit` at once."""

    limit: int
    used: int = 0

    def enter(self) -> bool:
        """Take a slot; False = there is none."""
        if self.used >= self.limit:
            return False
        self.used += 1
        return True

    def leave(self) -> None:
        """Give a slot back."""
        assert self.used > 0, "left more often than entered"
        self.used -= 1


@dataclass(slots=True)
class TokenBucket:
    """So many tokens a second, and `burst` of them at once. A rate of 0 is no limit."""

    rate: float
    burst: float
    level: float
    at: float

    @classmethod
    def full(cls, rate: float, burst: float, now: float) -> TokenBucket:
        """Return a bucket that has its whole burst."""
        return cls(rate, burst, burst, now)

    def wait_s(self, now: float) -> float:
        """Return how long until nothing is owed; 0 = go on."""
        if self.rate <= 0:
            return 0.0
        self._fill(now)
        return -self.level / self.rate if self.level < 0 else 0.0

    def take(self, n: float, now: float) -> float:
        """Spend tokens, into debt if need be; return how long until nothing is owed."""
        if self.rate <= 0:
            return 0.0
        self._fill(now)
        self.level -= n
        return -self.level / self.rate if self.level < 0 else 0.0

    def overdrawn(self, now: float) -> bool:
        """Whether a whole burst or more is owed: somebody does not wait as he was told."""
        if self.rate <= 0:
            return False
        self._fill(now)
        return self.level <= -self.burst

    def _fill(self, now: float) -> None:
        if now > self.at:
            self.level = min(self.burst, self.level + (now - self.at) * self.rate)
            self.at = now


@dataclass(slots=True)
class LeakyBucket:
    """Lets through so many units a second, evenly; a rate of 0 is no limit."""

    rate: float
    _free_at: float = 0.0

    def delay_s(self, n: float, now: float) -> float:
        """Return how long to wait before `n` units may go; they are counted as gone."""
        if self.rate <= 0:
            return 0.0
        begin = max(now, self._free_at)
        self._free_at = begin + n / self.rate
        return begin - now


#: How long a producer pauses for full data that is behind by as much as is allowed, and while its lane is degraded.
BEHIND_PAUSE_S = 0.1
DEGRADED_PAUSE_S = 0.5
PAUSE_MAX_S = 5.0
#: When to ask again for a slot.
SLOT_RETRY_S = 1.0
#: The shared window is never smaller than the smallest group of the disk.
WINDOW_BYTES_MIN = 256 << 10
#: Businesses whose buckets are remembered.
METERS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What [broker.limits] says, in bytes, rows and seconds; 0 = no limit."""

    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0
    burst_s: float = 1.0
    full_data_bytes_per_s: float = 0.0
    snapshots: int = 4
    loads: int = 64
    streams: int = 20_000
    slow_request_s: float = 0.2
    slow_consumer_s: float = 5.0
    unsaved_bytes_max: int = 48 << 20
    behind_bytes_max: int = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether half messages are taken, and how long their producer pauses."""

    pause_s: float = 0.0
    refused: bool = False


TAKEN = Verdict()


@dataclass(slots=True)
class _Meter:
    rows: TokenBucket
    bytes: TokenBucket


class Admission:
    """Every brake of a broker."""

    def __init__(self, limits: Limits, degradation: Degradation) -> None:
        self.limits = limits
        self.degradation = degradation
        self.record = Record()
        target_s = limits.slow_request_s / 2 or 1.0
        self.unsaved = Sharing(limits.unsaved_bytes_max, target_s)
        self.turns = Turns(most=limits.unsaved_bytes_max, least=WINDOW_BYTES_MIN, target_s=target_s)
        self.streams = Slots(limits.streams)
        self.loads = Slots(limits.loads)
        self._egress = LeakyBucket(limits.full_data_bytes_per_s)
        self._meters: dict[str, _Meter] = {}

    @property
    def counts_rows(self) -> bool:
        """Whether anybody needs to know how many rows a half message has."""
        return self.limits.rows_per_s > 0

    # -- half messages -------------------------------------------------------------------------------------------

    def ingest(self, business: str, producer: str, *, rows: int, nbytes: int, behind_bytes: int, now: float) -> Verdict:
        """Judge half messages that have arrived; what is taken counts against every limit."""
        limits = self.limits
        if not (limits.rows_per_s or limits.bytes_per_s or self.degradation.degraded) and (
            behind_bytes <= limits.behind_bytes_max
        ):
            return TAKEN
        pause_s, brake, refused = self._metered(business, rows, nbytes, now)
        if behind_bytes > limits.behind_bytes_max:
            part = behind_bytes / limits.behind_bytes_max
            pause_s, brake = max((pause_s, brake), (BEHIND_PAUSE_S * part, Brake.BEHIND), key=lambda p: p[0])
            refused = refused or part > 2
        if self.degradation.has(Lane.HALVES):
            pause_s, brake = max((pause_s, brake), (DEGRADED_PAUSE_S, Brake.DEGRADED), key=lambda p: p[0])
        if not pause_s:
            return TAKEN
        pause_s = min(pause_s, PAUSE_MAX_S)
        self.record.told(brake, business, producer, pause_s, now)
        return Verdict(pause_s=pause_s, refused=refused)

    def _metered(self, business: str, rows: int, nbytes: int, now: float) -> tuple[float, Brake, bool]:
        """Spend tokens, unless the business owes a whole burst already: then nothing is taken."""
        limits = self.limits
        if not (limits.rows_per_s or limits.bytes_per_s):
            return 0.0, Brake.ROWS, False
        meter = self._meters.get(business) or self._new_meter(business, now)
        refused = meter.rows.overdrawn(now) or meter.bytes.overdrawn(now)
        for_rows = meter.rows.wait_s(now) if refused else meter.rows.take(rows, now)
        for_bytes = meter.bytes.wait_s(now) if refused else meter.bytes.take(nbytes, now)
        return max((for_rows, Brake.ROWS, refused), (for_bytes, Brake.BYTES, refused), key=lambda found: found[0])

    def _new_meter(self, business: str, now: float) -> _Meter:
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
        """Return how long a chunk of full data waits before it goes."""
        delay_s = self._egress.delay_s(nbytes, now)
        if delay_s:
            self.record.told(Brake.FULL_DATA, business, "", delay_s, now)
        return delay_s

    def snapshot_wait_s(self, business: str, holder: str, now: float) -> float:
        """Return when to ask again for a new snapshot; 0 = now is the time."""
        if not self.degradation.has(Lane.FULL_DATA):
            return 0.0
        self.record.told(Brake.DEGRADED, business, holder, SLOT_RETRY_S, now)
        return SLOT_RETRY_S
