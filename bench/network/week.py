"""A week of readers that come and go, under each rule of retention; pure.

Offsets are bytes. Readers stay for half an hour on average and are away for 40 s in the median (log-normal, at most an
hour). In one of twelve intervals of ten minutes, 6 MB/s are written, in the others 5 to 80 KB/s.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from venus.broker.machine import consumers
from venus.broker.machine.consumers import ConsumerState
from venus.broker.pipeline.shared_log import Backlog
from venus.flow.retention import MeasuredRetention

TICK_S = 30
WEEK_S = 7 * 24 * 3600
READERS = 5
STAY_S, AWAY_S, AWAY_SIGMA, AWAY_MAX_S = 1800.0, 40.0, 1.2, 3600.0
SPELL_S, BURST_PART, BURST_BYTES_S = 600, 0.08, 6e6
QUIET_BYTES_S = (5e3, 80e3)


class Rule(Protocol):
    """Rule that decides how much of the queue is kept, from the readers that leave, return and are present."""

    def on_leave(self, name: str, position: int, now_s: int) -> None: ...

    def on_return(self, name: str, position: int, away_s: float, now_s: int) -> None: ...

    def tick(self, present: set[str], end: int, written: int, now_s: int) -> int:
        """Process one tick of the simulation; return the first byte that the queue still has."""


@dataclass
class KnownReaders:
    """The product's retention for consumers and lower sets: keep the queue for each one until it is forgotten."""

    retain_bytes: int
    ttl_s: float
    _known: dict[str, ConsumerState] = field(default_factory=dict)
    _start: int = 0

    def on_leave(self, name: str, position: int, now_s: int) -> None:
        if name in self._known:
            self._known[name] = consumers.detach(self._known[name], now_us=now_s * 10**6)

    def on_return(self, name: str, position: int, away_s: float, now_s: int) -> None:
        wanted = ConsumerState(group=name, acknowledged=position, kept=position, token=1)
        self._known[name] = consumers.attach(self._known.get(name), wanted, kept=None, log_start=self._start)

    def tick(self, present: set[str], end: int, written: int, now_s: int) -> int:
        for name in present:
            known = self._known.get(name) or ConsumerState(group=name, acknowledged=end, kept=end, token=1)
            self._known[name] = consumers.acknowledge(known, applied=end, kept=None, end=end, now_us=now_s * 10**6)
        away = {name: consumers.count_absence(each, TICK_S * 10**6) for name, each in self._known.items()}
        self._known = {name: each for name, each in away.items() if not consumers.has_expired(each, self.ttl_s)}
        point = consumers.trim_point(end, consumers.kept_offsets(self._known.values()), [])
        self._start = max(self._start, point - self.retain_bytes)
        return self._start


@dataclass
class Followers:
    """The product's retention for replicas: keep what the slowest one lacks, up to a limit."""

    retain_bytes: int
    bytes_max: int
    _needed: dict[str, int] = field(default_factory=dict)
    _entries: deque[int] = field(default_factory=deque)
    _start: int = 0

    def on_leave(self, name: str, position: int, now_s: int) -> None:
        self._needed[name] = position

    def on_return(self, name: str, position: int, away_s: float, now_s: int) -> None:
        self._needed.pop(name, None)

    def tick(self, present: set[str], end: int, written: int, now_s: int) -> int:
        self._entries.append(end)
        backlog = Backlog(needed_from=min(self._needed.values(), default=end) + 1, bytes_max=self.bytes_max)
        target = consumers.trim_point(end, [], []) - self.retain_bytes
        while (
            self._entries
            and self._entries[0] <= target
            and not backlog.must_keep(self._entries[0], end - self._entries[0])
        ):
            self._start = self._entries.popleft()
        return self._start


@dataclass
class UnknownReaders:
    """The product's retention for readers without a group, with `retain = "measured"` (Tensor's formula 1)."""

    bytes_min: int
    bytes_max: int
    _size: MeasuredRetention = field(init=False)

    def __post_init__(self) -> None:
        self._size = MeasuredRetention(
            bytes_min=self.bytes_min, bytes_max=self.bytes_max, kept_bytes=0, written_bytes=0, now=0.0
        )

    def on_leave(self, name: str, position: int, now_s: int) -> None:
        self._size.on_leave(name, now_s)

    def on_return(self, name: str, position: int, away_s: float, now_s: int) -> None:
        self._size.on_return(name, now_s)

    def tick(self, present: set[str], end: int, written: int, now_s: int) -> int:
        self._size.measure(end, now_s)
        return max(0, end - self._size.size(now_s))


@dataclass
class FixedRetention:
    """The product's retention for readers without a group, with `retain = "bytes"`."""

    retain_bytes: int

    def on_leave(self, name: str, position: int, now_s: int) -> None: ...

    def on_return(self, name: str, position: int, away_s: float, now_s: int) -> None: ...

    def tick(self, present: set[str], end: int, written: int, now_s: int) -> int:
        return max(0, end - self.retain_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Results of a simulated week; `kept_max` and `kept_mean` are bytes."""

    returns: int
    resyncs: int
    kept_max: int
    kept_mean: float


def bytes_written(seed: int, now_s: int) -> int:
    """Return how many bytes are written in the tick that begins at `now_s`."""
    chance = random.Random(now_s // SPELL_S * 7919 + seed)
    rate = BURST_BYTES_S if chance.random() < BURST_PART else chance.uniform(*QUIET_BYTES_S)
    return int(rate * TICK_S)


def simulate_week(seed: int, make: Callable[[], Rule], seconds: int = WEEK_S) -> Outcome:
    """Simulate a week in which readers come and go under a rule of retention; `make` returns the rule."""
    chance, rule = random.Random(seed), make()
    changes = {f"r{n}": chance.expovariate(1 / STAY_S) for n in range(READERS)}
    away: dict[str, tuple[int, float]] = {}  # where and when it left
    end = start = returns = resyncs = kept_max = kept_sum = 0
    for now_s in range(0, seconds, TICK_S):
        for name, at in changes.items():
            if at > now_s:
                continue
            if name in away:
                position, left_s = away.pop(name)
                returns, resyncs = returns + 1, resyncs + (position < start)
                rule.on_return(name, max(position, start), now_s - left_s, now_s)
                changes[name] = at + chance.expovariate(1 / STAY_S)
            else:
                away[name] = end, at
                rule.on_leave(name, end, now_s)
                changes[name] = at + min(AWAY_MAX_S, chance.lognormvariate(math.log(AWAY_S), AWAY_SIGMA))
        more = bytes_written(seed, now_s)
        end += more
        start = rule.tick(changes.keys() - away.keys(), end, more, now_s)
        kept_max, kept_sum = max(kept_max, end - start), kept_sum + end - start
    return Outcome(returns=returns, resyncs=resyncs, kept_max=kept_max, kept_mean=kept_sum / (seconds // TICK_S))
