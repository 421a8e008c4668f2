"""A broker's traffic as `venus status` shows it: who is held back, what the broker has suffered, which limits are near.

Lanes that are degraded are alarms of the broker already; here they are for machines only. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from venus.figures import bytes_shown, seconds_shown
from venus.flow.braking import Brake

if TYPE_CHECKING:
    from venus.wire.broker_pb2 import BrakeStatus, BusinessStatus, GaugeStatus, TrafficStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A replica as the broker that was asked knows it."""

    broker: str
    address: str
    alive: bool
    in_sync: bool
    behind: int | None = None  # log entries; None = not known there


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationView:
    """How the business is replicated."""

    term: int
    leader: str
    leader_address: str
    policy: str
    min_in_sync: int
    log_end: int
    high: int
    mode: str
    reason: str
    refusal: str
    replicas: tuple[ReplicaView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorView:
    """How a mirror stands to the broker set above."""

    path: tuple[str, ...]  # the sets from the home to this one
    state: str
    reason: str
    since_s: float
    address: str
    lag: int  # offsets
    lag_s: float
    hop_s: float
    bytes: int
    rows: int
    rows_expected: int
    only: tuple[str, ...] = ()
    #: Of which tables some rows only are here: "TABLE where PREDICATE".
    where: tuple[str, ...] = ()
    #: The set that it should come from, for how long it has not, and why; empty = it comes from there.
    nearest: str = ""
    away_s: float = 0.0
    not_back: str = ""


#: Large work of the broker's own pauses for small commits: no one has to know.
COURTESY = Brake.SMALL.value
#: From this part of a limit on, people are shown the gauge.
NEAR = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class BrakeView:
    """A brake that has held somebody back since the broker's start; `since_s` ago without a pause."""

    brake: str
    business: str
    who: str
    times: int
    waited_s: float
    since_s: float
    on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneView:
    """A lane's threads; `degraded_s` is None while it is served fully."""

    lane: int
    name: str
    running: int
    threads: int
    waiting: int
    degraded_s: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FactView:
    """Why the broker is sub-healthy, and how long ago that was last seen."""

    fact: str
    reason: str
    seen_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeView:
    """What a limit is compared with; a limit of 0 is none."""

    name: str
    value: float
    limit: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowView:
    """A consumer group that takes nothing, for so long, and its window."""

    group: str
    since_s: float
    window_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficView:
    """Everything of that."""

    brakes: tuple[BrakeView, ...] = ()
    lanes: tuple[LaneView, ...] = ()
    facts: tuple[FactView, ...] = ()
    gauges: tuple[GaugeView, ...] = ()
    slow: tuple[SlowView, ...] = ()


def traffic_view(found: TrafficStatus, own: BusinessStatus | None, now_us: int) -> TrafficView:
    """Return what concerns a business (None = it is unknown there), and the broker as a whole."""
    names = {"", own.business} if own is not None else {""}

    def ago(us: int) -> float:
        return max(0.0, (now_us - us) / 1e6)

    return TrafficView(
        brakes=tuple(_brake(brake, ago) for brake in found.brakes if brake.business in names),
        lanes=tuple(
            LaneView(
                lane=lane.lane,
                name=lane.name,
                running=lane.running,
                threads=lane.threads,
                waiting=lane.waiting,
                degraded_s=ago(lane.degraded_since_us) if lane.degraded_since_us else None,
                reason=lane.reason,
            )
            for lane in found.lanes
        ),
        facts=tuple(FactView(fact=f.fact, reason=f.reason, seen_s=ago(f.seen_us)) for f in found.facts),
        gauges=tuple(_gauge(gauge) for gauge in found.gauges),
        slow=tuple(
            SlowView(group=consumer.group, since_s=ago(consumer.slow_since_us), window_bytes=consumer.window_bytes)
            for consumer in (own.consumers if own is not None else ())
            if consumer.slow_since_us
        ),
    )


def _brake(found: BrakeStatus, ago: Callable[[int], float]) -> BrakeView:
    return BrakeView(
        brake=found.brake,
        business=found.business,
        who=found.who,
        times=found.times,
        waited_s=found.waited_ms / 1000,
        since_s=ago(found.since_us),
        on=found.on,
    )


def _gauge(found: GaugeStatus) -> GaugeView:
    return GaugeView(name=found.name, value=found.value, limit=found.limit, unit=found.unit)


def traffic_shown(found: TrafficView, *, follows: bool = True) -> list[str]:
    """Return a line for everyone who is held back now, each fact, each limit that is near; nothing while all is well.

    When no target `follows` any more, no write waits for VENUS: what is held back then concerns no one.
    """
    lines = [_held(brake) for brake in found.brakes if brake.on and brake.brake != COURTESY and follows]
    lines += [
        f"~ {slow.group} has taken nothing for {seconds_shown(slow.since_s)}: "
        f"its window is {bytes_shown(slow.window_bytes)}"
        for slow in found.slow
        if follows
    ]
    lines += [
        f"~ the broker is sub-healthy: {fact.reason}, last seen {seconds_shown(fact.seen_s)} ago"
        for fact in found.facts
    ]
    near = [gauge for gauge in found.gauges if gauge.limit and gauge.value >= NEAR * gauge.limit]
    return lines + [f"~ {gauge.name}: {_valued(gauge, gauge.value)} of {_valued(gauge, gauge.limit)}" for gauge in near]


def _held(brake: BrakeView) -> str:
    times = f"{brake.times:,} {'time' if brake.times == 1 else 'times'} since the broker's start"
    return (
        f"~ limiter {brake.brake}: holds back {brake.who or 'everybody'} for {seconds_shown(brake.since_s)}; "
        f"{times}, {seconds_shown(brake.waited_s)} altogether"
    )


def _valued(gauge: GaugeView, value: float) -> str:
    if gauge.unit == "bytes":
        return bytes_shown(round(value))
    return seconds_shown(value / 1000) if gauge.unit == "ms" else f"{value:,.0f}"
