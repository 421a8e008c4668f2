"""What a broker gives up when it is overloaded: lane 4 first, one lane at a time, lane 0 never (RocketMQ 2).

A resource above its high watermark for its time degrades the next lane; as long as it stays there, another one. All
of them below their low watermarks for `restore_s` give the last lane back. Between the two nothing moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from venus.flow.lanes import Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """When a resource is short, in its unit; more is worse. A high watermark of 0 is not looked at."""

    resource: str
    high: float
    low: float
    sustain_s: float
    #: The last lane that this resource alone can degrade.
    deepest: Lane
    unit: str = ""
    #: How people call it, and what somebody can do; empty = the resource's own name, and nothing.
    named: str = ""
    way_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degraded:
    """A lane that is degraded."""

    lane: Lane
    since: float
    reason: str
    way_out: str = ""


@dataclass(slots=True)
class Degradation:
    """The lanes that are degraded now."""

    watermarks: tuple[Watermark, ...]
    restore_s: float
    degraded: list[Degraded] = field(default_factory=list)  # from lane 4 up
    _above_since: dict[str, float] = field(default_factory=dict)
    _calm_since: float | None = None

    def has(self, lane: Lane) -> bool:
        """Whether a lane is degraded."""
        return bool(self.degraded) and lane >= self.degraded[-1].lane

    def step(self, readings: Mapping[str, float], now: float) -> list[str]:
        """Look at the resources; return what has changed, for the log. A resource without a reading is left out."""
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
        """The lane that would be degraded next."""
        return self.degraded[-1].lane - 1 if self.degraded else Lane.DETAILS

    def _degrade(self, mark: Watermark, value: float, now: float) -> str:
        lane = Lane(self._next)
        reason = (
            f"{mark.named or mark.resource} is at {value:,.0f}{mark.unit}, the limit is {mark.high:,.0f}{mark.unit}"
        )
        self.degraded.append(Degraded(lane=lane, since=now, reason=reason, way_out=mark.way_out))
        self._above_since.clear()  # each further lane takes its own time
        self._calm_since = None
        return f"lane {lane.value} ({lane.label}) is degraded: {reason}"

    def _restore(self, now: float, *, calm: bool) -> list[str]:
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
