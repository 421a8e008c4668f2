"""Traffic, replication and mirror of a broker in `venus status`: limited clients, sub-health, limits that are near.

The broker raises alarms for degraded lanes; the lanes appear here only in the JSON output. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from venus.flow.admission import Limiter
from venus.model import count_phrase
from venus.text.formatting import format_bytes, format_duration

if TYPE_CHECKING:
    from venus.wire.broker_pb2 import BrakeStatus, BusinessStatus, GaugeStatus, TrafficStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A replica, as the queried broker knows it."""

    broker: str
    address: str
    alive: bool
    in_sync: bool
    behind: int | None = None  # the number of log entries; None = unknown to that broker


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationView:
    """State of the replication of a business: term, leader, policy and replicas."""

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
    """State of a mirror: its upstream, its lag and its content."""

    path: tuple[str, ...]  # the sets from the home to this one
    state: str
    reason: str
    since_s: float
    address: str
    lag: int  # offsets
    lag_s: float
    hop_s: float
    hop_mean_s: float
    hop_deviation_s: float
    bytes: int
    rows: int
    rows_expected: int
    only: tuple[str, ...] = ()
    #: The tables with a row filter: "TABLE where PREDICATE".
    where: tuple[str, ...] = ()
    #: The nearest set, if it is not the upstream; since when it is not, and why.
    nearest: str = ""
    away_s: float = 0.0
    not_back: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionView:
    """The part of the queue that the broker keeps for unknown readers, with the measurements behind its size."""

    bytes: int
    bytes_per_s: int
    mean_absence_s: float
    absences: int
    raised_ago_s: float


def format_retention(found: RetentionView) -> str:
    """Format the size of the part of the queue that is kept for unknown readers."""
    return (
        f"{format_bytes(found.bytes)} are kept for readers that are not known: {format_bytes(found.bytes_per_s)}/s x "
        f"{format_duration(found.mean_absence_s)}, the mean of {count_phrase(found.absences, 'absence')}, "
        f"raised {format_duration(found.raised_ago_s)} ago"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayView:
    """The broker's place in the overlay, which shares the matching of predicates."""

    cluster: str
    members: tuple[str, ...]
    neighbours: int
    installed_interests: int
    subspaces: int
    uninstalled: int
    changes_elsewhere: int
    changes_here: int
    unanswered: int


def format_overlay(found: OverlayView) -> str:
    """Format the broker's place in the overlay."""
    own = f"; {found.uninstalled} of {found.subspaces} own subspaces wait for a cluster" if found.uninstalled else ""
    return (
        f"overlay: cluster {found.cluster} of {len(found.members)}, {found.neighbours} neighbours, "
        f"{found.installed_interests:,} subscriptions of others{own}"
    )


#: The limiter of the broker's own large work, which pauses for small commits; this needs no attention.
COURTESY = Limiter.SMALL.value
#: A gauge is shown from this share of its limit.
NEAR = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterView:
    """A limiter that has delayed clients since the broker's start; `since_s`: for how long without interruption."""

    brake: str
    business: str
    who: str
    times: int
    waited_s: float
    since_s: float
    on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneView:
    """The threads of a lane; `degraded_s` is None while it is fully served."""

    lane: int
    name: str
    running: int
    threads: int
    waiting: int
    degraded_s: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FactView:
    """A reason why the broker is sub-healthy, and how long ago it was last observed."""

    fact: str
    reason: str
    seen_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeView:
    """A measured value and its limit; 0 = no limit."""

    name: str
    value: float
    limit: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowConsumerView:
    """A consumer group without progress, the time since then, and its window."""

    group: str
    since_s: float
    window_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficView:
    """Limiters and slow consumers of a business; lanes, health findings and gauges of its broker."""

    brakes: tuple[LimiterView, ...] = ()
    lanes: tuple[LaneView, ...] = ()
    facts: tuple[FactView, ...] = ()
    gauges: tuple[GaugeView, ...] = ()
    slow: tuple[SlowConsumerView, ...] = ()


def traffic_view(found: TrafficStatus, own: BusinessStatus | None, now_us: int) -> TrafficView:
    """Build the view of the traffic of a business (None = the broker does not know it) and of the broker."""
    names = {"", own.business} if own is not None else {""}

    def seconds_since(us: int) -> float:
        return max(0.0, (now_us - us) / 1e6)

    return TrafficView(
        brakes=tuple(_limiter_view(brake, seconds_since) for brake in found.brakes if brake.business in names),
        lanes=tuple(
            LaneView(
                lane=lane.lane,
                name=lane.name,
                running=lane.running,
                threads=lane.threads,
                waiting=lane.waiting,
                degraded_s=seconds_since(lane.degraded_since_us) if lane.degraded_since_us else None,
                reason=lane.reason,
            )
            for lane in found.lanes
        ),
        facts=tuple(FactView(fact=f.fact, reason=f.reason, seen_s=seconds_since(f.seen_us)) for f in found.facts),
        gauges=tuple(_gauge_view(gauge) for gauge in found.gauges),
        slow=tuple(
            SlowConsumerView(
                group=consumer.group, since_s=seconds_since(consumer.slow_since_us), window_bytes=consumer.window_bytes
            )
            for consumer in (own.consumers if own is not None else ())
            if consumer.slow_since_us
        ),
    )


def _limiter_view(found: BrakeStatus, ago: Callable[[int], float]) -> LimiterView:
    """Build the view of a limiter; `ago` returns the seconds since a time."""
    return LimiterView(
        brake=found.brake,
        business=found.business,
        who=found.who,
        times=found.times,
        waited_s=found.waited_ms / 1000,
        since_s=ago(found.since_us),
        on=found.on,
    )


def _gauge_view(found: GaugeStatus) -> GaugeView:
    return GaugeView(name=found.name, value=found.value, limit=found.limit, unit=found.unit)


def format_traffic(found: TrafficView, *, follows: bool = True) -> list[str]:
    """Format each active limiter, slow consumer, health finding and nearly reached limit; [] if there is none.

    If no target `follows` any more, no write waits for VENUS, so limiters and slow consumers are not shown.
    """
    lines = [_format_limiter(brake) for brake in found.brakes if brake.on and brake.brake != COURTESY and follows]
    lines += [
        f"~ {slow.group} has taken nothing for {format_duration(slow.since_s)}: "
        f"its window is {format_bytes(slow.window_bytes)}"
        for slow in found.slow
        if follows
    ]
    lines += [
        f"~ the broker is sub-healthy: {fact.reason}, last seen {format_duration(fact.seen_s)} ago"
        for fact in found.facts
    ]
    near = [gauge for gauge in found.gauges if gauge.limit and gauge.value >= NEAR * gauge.limit]
    return lines + [
        f"~ {gauge.name}: {_format_value(gauge, gauge.value)} of {_format_value(gauge, gauge.limit)}" for gauge in near
    ]


def _format_limiter(brake: LimiterView) -> str:
    times = f"{brake.times:,} {'time' if brake.times == 1 else 'times'} since the broker's start"
    return (
        f"~ limiter {brake.brake}: delays {brake.who or 'all clients'} for {format_duration(brake.since_s)}; "
        f"{times}, {format_duration(brake.waited_s)} altogether"
    )


def _format_value(gauge: GaugeView, value: float) -> str:
    """Format a value in the unit of its gauge."""
    if gauge.unit == "bytes":
        return format_bytes(round(value))
    return format_duration(value / 1000) if gauge.unit == "ms" else f"{value:,.0f}"
