"""Degradation of an overloaded broker: lane 4 first, one lane at a time, lane 0 never (RocketMQ 2).

A resource above its high watermark for `sustain_s` degrades the next lane, and further lanes while it stays there. When
all resources are below their low watermarks for `restore_s`, the lane degraded last is restored. Nothing changes
between the two watermarks.

`HealthMonitor` keeps facts about a broker's health, each with its reason (Tensor IV-C, table III).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum


class Lane(IntEnum):
    """Priority class of work: the smaller the number, the later it is degraded."""

    CONTROL = 0  # replication, decisions, reviews, health, leases
    HALVES = 1  # half messages, in the commit thread
    INCREMENTS = 2
    FULL_DATA = 3
    DETAILS = 4  # the page, detailed metrics, the scrub

    @property
    def label(self) -> str:
        """Display name."""
        return self.name.lower().replace("_", " ")


#: How many blocking calls of a lane run concurrently; half messages have their own, the commit thread.
THREADS = {Lane.CONTROL: 2, Lane.INCREMENTS: 2, Lane.FULL_DATA: 4, Lane.DETAILS: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRule:
    """Rule of a fact: a reading has been at `limit` or above for `sustain_s`. `text` uses {value} and {limit}."""

    fact: str
    limit: float
    text: str
    sustain_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFact:
    """A rule that was met, with the first and last time of the newest episode."""

    fact: str
    reason: str
    since: float
    seen: float


@dataclass(slots=True)
class HealthMonitor:
    """Facts of the last `keep_s` seconds. The rules are ordered by severity."""

    rules: tuple[HealthRule, ...]
    keep_s: float
    _facts: dict[str, HealthFact] = field(default_factory=dict)
    _above_since: dict[str, float] = field(default_factory=dict)

    def evaluate(self, readings: Mapping[str, float], now: float) -> list[str]:
        """Compare readings with the rules; return the reasons that are new, for the log."""
        new = []
        for rule in self.rules:
            value = readings.get(rule.fact)
            if value is None or rule.limit <= 0 or value < rule.limit:
                self._above_since.pop(rule.fact, None)
                continue
            began = self._above_since.setdefault(rule.fact, now)
            if now - began < rule.sustain_s:
                continue
            known = self._facts.get(rule.fact)
            reason = rule.text.format(value=value, limit=rule.limit)
            if known is None or known.seen < began:
                new.append(reason)
                known = None
            self._facts[rule.fact] = HealthFact(
                fact=rule.fact, reason=reason, since=known.since if known else began, seen=now
            )
        for fact in [f for f in self._facts.values() if now - f.seen > self.keep_s]:
            del self._facts[fact.fact]
        return new

    @property
    def facts(self) -> list[HealthFact]:
        """Return the recent facts, the most severe first."""
        return [self._facts[rule.fact] for rule in self.rules if rule.fact in self._facts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """Watermarks of a resource, in its unit; more is worse. A high watermark of 0 disables the check."""

    resource: str
    high: float
    low: float
    sustain_s: float
    #: The last lane that this resource alone can degrade.
    deepest: Lane
    unit: str = ""
    #: Display name and remedy; empty means the resource's own name, and no remedy.
    named: str = ""
    way_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradedLane:
    """A lane of work that is partly given up under load, since when, and why."""

    lane: Lane
    since: float
    reason: str
    way_out: str = ""


@dataclass(slots=True)
class Degradation:
    """State machine that gives up lanes of work under load, and restores them afterwards."""

    watermarks: tuple[Watermark, ...]
    restore_s: float
    degraded: list[DegradedLane] = field(default_factory=list)  # from lane 4 up
    _above_since: dict[str, float] = field(default_factory=dict)
    _calm_since: float | None = None

    def is_degraded(self, lane: Lane) -> bool:
        """Return whether a lane is degraded."""
        return bool(self.degraded) and lane >= self.degraded[-1].lane

    def step(self, readings: Mapping[str, float], now: float) -> list[str]:
        """Evaluate the resources; return the changes, for the log. A resource without a reading is skipped."""
        calm = True
        for mark in self.watermarks:
            value = readings.get(mark.resource)
            if value is None or not mark.high:
                self._above_since.pop(mark.resource, None)
                continue
            calm = calm and value < mark.low
            if value < mark.high:
                self._above_since.pop(mark.resource, None)
                continue
            since = self._above_since.setdefault(mark.resource, now)
            if now - since >= mark.sustain_s and self._next >= mark.deepest:
                return [self._degrade(mark, value, now)]
        return self._restore(now, calm=calm)

    @property
    def _next(self) -> int:
        """The next lane to degrade."""
        return self.degraded[-1].lane - 1 if self.degraded else Lane.DETAILS

    def _degrade(self, mark: Watermark, value: float, now: float) -> str:
        """Degrade the next lane because of a resource; return the change in words."""
        lane = Lane(self._next)
        reason = (
            f"{mark.named or mark.resource} is at {value:,.0f}{mark.unit}, the limit is {mark.high:,.0f}{mark.unit}"
        )
        self.degraded.append(DegradedLane(lane=lane, since=now, reason=reason, way_out=mark.way_out))
        self._above_since.clear()  # each further lane needs the full time again
        self._calm_since = None
        return f"lane {lane.value} ({lane.label}) is degraded: {reason}"

    def _restore(self, now: float, *, calm: bool) -> list[str]:
        """Restore the last degraded lane if the load has been low for long enough; return the change in words."""
        if not calm or not self.degraded:
            self._calm_since = None
            return []
        if self._calm_since is None:
            self._calm_since = now
        if now - self._calm_since < self.restore_s:
            return []
        self._calm_since = now
        back = self.degraded.pop()
        return [f"lane {back.lane.value} ({back.lane.label}) is served fully again"]
