"""Two buckets: tokens for what comes in, a leak for what goes out (RocketMQ 2, figures 1 and 2).

Both keep their promise by debt: what is larger than the bucket goes all the same, alone, and is paid for afterwards.
So no batch is too large to ever get through, and the rate holds in the long run.
"""

from __future__ import annotations

from dataclasses import dataclass


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
