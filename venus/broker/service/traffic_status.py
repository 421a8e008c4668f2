"""Flow control in the status and in Prometheus: limiters, lanes, health facts, gauges, windows, and alarms."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from venus.broker.core import Core
from venus.broker.listening.listening import QUEUE_BYTES_MAX as LISTENING_BYTES_MAX
from venus.broker.service.shared_frames import SharedFrames
from venus.broker.service.traffic import Traffic
from venus.flow.admission import DeliveryWindow
from venus.flow.degradation import THREADS, Lane
from venus.rpc.event_loop import LoopBridge
from venus.wire import broker_pb2

#: Gauges of the status about shared frames and subscriptions by content.
GAUGES = (
    (GaugeMetricFamily, "venus_subscribers", "Streams of consumers", "subscribers"),
    (GaugeMetricFamily, "venus_local_streams", "Streams over the Unix socket, without gRPC", "local streams"),
    (
        CounterMetricFamily,
        "venus_shared_frames_encoded",
        "Frames encoded for several subscribers",
        "shared frames encoded",
    ),
    (CounterMetricFamily, "venus_shared_frames_sent", "How often their bytes were sent", "shared frames sent"),
    (GaugeMetricFamily, "venus_shared_frames_bytes", "Bytes of the frames that are kept", "shared frames kept"),
    (GaugeMetricFamily, "venus_subscriptions", "Subscriptions by content", "subscriptions"),
    (CounterMetricFamily, "venus_judged_changes", "Changes compared with subscriptions", "changes judged"),
    (GaugeMetricFamily, "venus_judging_bytes", "Changes that wait for this", "waiting to be judged"),
    (
        CounterMetricFamily,
        "venus_judging_skipped",
        "How often changes were too many to wait; subscriptions read them from the queue",
        "times read again",
    ),
    (
        CounterMetricFamily,
        "venus_listeners_cut",
        "Clients of changes that were cut because they read nothing for listener_s",
        "clients cut",
    ),
)


def has_degraded_details(status: broker_pb2.BrokerStatus) -> bool:
    """Return whether figures of individual tables are left out now."""
    return any(lane.lane == Lane.DETAILS and lane.degraded_since_us for lane in status.traffic.lanes)


def traffic_families(status: broker_pb2.BrokerStatus) -> Iterable[Metric]:
    """Yield the families of flow control."""
    yield from _limiter_metrics(status.traffic)
    yield from _lanes(status.traffic)
    yield from _windows(status)
    yield from _gauge_families(status.traffic)
    facts = GaugeMetricFamily(
        "venus_sub_healthy_fact", "1 for each fact of the last half hour that makes it sub-healthy", labels=["fact"]
    )
    for fact in status.traffic.facts:
        facts.add_metric([fact.fact], 1.0)
    yield facts


def _limiter_metrics(traffic: broker_pb2.TrafficStatus) -> Iterable[Metric]:
    labels = ["brake", "business"]
    times = CounterMetricFamily("venus_braked", "How often the limiter delayed a client", labels=labels)
    waited = CounterMetricFamily("venus_braked_seconds", "How long the limiter delayed clients", labels=labels)
    now = GaugeMetricFamily("venus_brake_on", "1 while the limiter delays a client", labels=labels)
    for brake in traffic.brakes:
        names = [brake.brake, brake.business]
        times.add_metric(names, brake.times)
        waited.add_metric(names, brake.waited_ms / 1000)
        now.add_metric(names, float(brake.on))
    return times, waited, now


def _lanes(traffic: broker_pb2.TrafficStatus) -> Iterable[Metric]:
    """Return the metric families of the lanes."""
    degraded = GaugeMetricFamily(
        "venus_lane_degraded", "1 while a lane is degraded; lane 4 is degraded first", labels=["lane"]
    )
    since = GaugeMetricFamily(
        "venus_lane_degraded_since_seconds", "Unix time of the degradation, 0 = none", labels=["lane"]
    )
    waiting = GaugeMetricFamily("venus_lane_waiting", "Calls of a lane that wait for a thread", labels=["lane"])
    for lane in traffic.lanes:
        degraded.add_metric([lane.name], float(bool(lane.degraded_since_us)))
        since.add_metric([lane.name], lane.degraded_since_us / 1e6)
        waiting.add_metric([lane.name], lane.waiting)
    return degraded, since, waiting


def _gauge_families(traffic: broker_pb2.TrafficStatus) -> Iterable[Metric]:
    values = {gauge.name: gauge.value for gauge in traffic.gauges}
    for family, name, text, gauge in GAUGES:
        if gauge in values:
            yield family(name, text, value=values[gauge])


def _windows(status: broker_pb2.BrokerStatus) -> Iterable[Metric]:
    """Return the metric families of the consumers' windows."""
    labels = ["business", "group"]
    window = GaugeMetricFamily(
        "venus_consumer_window_bytes", "Bytes that may be in flight to a consumer", labels=labels
    )
    slow = GaugeMetricFamily("venus_consumer_slow", "1 while a connected consumer takes nothing", labels=labels)
    for business in status.businesses:
        for consumer in business.consumers:
            if consumer.window_bytes:
                window.add_metric([business.business, consumer.group], consumer.window_bytes)
                slow.add_metric([business.business, consumer.group], float(bool(consumer.slow_since_us)))
    return window, slow


#: Returns the window of a consumer group's stream by business and group; None if it has no stream here.
Windows = Callable[[str, str], DeliveryWindow | None]


class TrafficStatus:
    """Adds flow control to the core's status."""

    def __init__(
        self,
        traffic: Traffic,
        core: Core,
        bridge: LoopBridge,
        windows: Windows,
        frames: SharedFrames,
        local_streams: Callable[[], int],
    ) -> None:
        self._traffic, self._core, self._bridge, self._windows = traffic, core, bridge, windows
        self._frames, self._local_streams = frames, local_streams

    def add_to_status(self, status: broker_pb2.BrokerStatus, business: str = "") -> None:
        """Add the traffic of one business or of all. Works in any thread."""
        now = self._traffic.monotonic()
        ahead_us = time.time_ns() // 1000 - int(now * 1e6)
        status.load_mean, status.load_variance = self._traffic.load.mean, self._traffic.load.variance
        status.traffic.CopyFrom(
            broker_pb2.TrafficStatus(
                brakes=self._limiter_metrics(now, ahead_us, business),
                lanes=self._lanes(ahead_us),
                facts=[
                    broker_pb2.HealthFact(
                        fact=fact.fact,
                        reason=fact.reason,
                        since_us=ahead_us + int(fact.since * 1e6),
                        seen_us=ahead_us + int(fact.seen * 1e6),
                    )
                    for fact in self._traffic.health.facts
                ],
                gauges=self._gauges(),
            )
        )
        for entry in status.businesses:
            for consumer in entry.consumers:
                if (window := self._windows(entry.business, consumer.group)) is not None:
                    consumer.window_bytes = window.size
                    if window.slow_since is not None:
                        consumer.slow_since_us = ahead_us + int(window.slow_since * 1e6)
        status.alarms.extend(self._alarms(ahead_us))

    def _limiter_metrics(self, now: float, ahead_us: int, business: str) -> list[broker_pb2.BrakeStatus]:
        """Describe the limiters that have delayed clients, of one business or of all."""
        return [
            broker_pb2.BrakeStatus(
                brake=found.limiter.value,
                business=found.business,
                who=found.peer,
                times=found.times,
                waited_ms=int(found.waited_s * 1000),
                since_us=ahead_us + int(found.since * 1e6),
                on=found.is_active(now),
            )
            for found in self._traffic.admission.record.entries()
            if not business or found.business in ("", business)
        ]

    def _lanes(self, ahead_us: int) -> list[broker_pb2.LaneStatus]:
        """Describe each lane: its threads, its waiting calls and its degradation."""
        degraded = {found.lane: found for found in self._traffic.admission.degradation.degraded.copy()}
        lanes = []
        for lane in Lane:
            running, waiting = self._bridge.lane_load(lane)
            found = degraded.get(lane)
            lanes.append(
                broker_pb2.LaneStatus(
                    lane=lane.value,
                    name=lane.label,
                    threads=THREADS.get(lane, 1),
                    running=running,
                    waiting=waiting,
                    degraded_since_us=ahead_us + int(found.since * 1e6) if found else 0,
                    reason=found.reason if found else "",
                )
            )
        return lanes

    def _gauges(self) -> list[broker_pb2.GaugeStatus]:
        """Describe the gauges of flow control, each with its limit."""
        admission, limits = self._traffic.admission, self._traffic.admission.limits

        def gauge(name: str, value: float, limit: float, unit: str) -> broker_pb2.GaugeStatus:
            return broker_pb2.GaugeStatus(name=name, value=value, limit=limit, unit=unit)

        return [
            gauge("unsaved", admission.unsaved.nbytes, limits.unsaved_bytes_max, "bytes"),
            gauge("under way to the disk", admission.write_queue.nbytes, 0, "bytes"),
            gauge("shared window", admission.write_queue.size, 0, "bytes"),
            gauge("waiting for a turn", admission.write_queue.waiting, 0, ""),
            gauge("full data behind", self._core.materialiser.behind_bytes, limits.behind_bytes_max, "bytes"),
            gauge("streams", admission.streams.used, limits.streams, ""),
            gauge("local streams", self._local_streams(), 0, ""),
            gauge("subscribers", self._frames.streams.total(), 0, ""),
            gauge("shared frames encoded", self._frames.encoded, 0, ""),
            gauge("shared frames sent", self._frames.sent, 0, ""),
            gauge("shared frames kept", self._frames.nbytes, 0, "bytes"),
            gauge("subscriptions", len(self._core.listening), limits.subscriptions, ""),
            gauge("changes judged", self._core.listening.judged_changes, 0, ""),
            gauge("waiting to be judged", self._core.listening.waiting_bytes, LISTENING_BYTES_MAX, "bytes"),
            gauge("times read again", self._core.listening.gaps, 0, ""),
            gauge("clients cut", self._traffic.cut_listeners, 0, ""),
            gauge("loads", admission.loads.used, limits.loads, ""),
            gauge("snapshots", self._core.snapshots.checkpoints, limits.snapshots, ""),
            gauge("waited for the disk", self._core.commits.waited_s * 1000, limits.slow_request_s * 1000, "ms"),
        ]

    def _alarms(self, ahead_us: int) -> list[str]:
        """Return an alarm for each degraded lane."""
        alarms = []
        for found in self._traffic.admission.degradation.degraded.copy():
            since = datetime.fromtimestamp((ahead_us / 1e6) + found.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            then = f"; {found.way_out}; the lane recovers by itself well below the limit" if found.way_out else ""
            number, name = found.lane.value, found.lane.label
            alarms.append(f"lane {number} ({name}) is degraded since {since}: {found.reason}{then}")
        return alarms
