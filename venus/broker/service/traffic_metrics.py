"""Traffic as Prometheus sees it: brakes, lanes, consumers' windows, facts of health."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from venus.flow.degradation import Lane
from venus.wire import broker_pb2

#: Gauges of the status that concern many subscribers.
_FAN_OUT = (
    (GaugeMetricFamily, "venus_subscribers", "Streams of consumers", "subscribers"),
    (
        CounterMetricFamily,
        "venus_shared_frames_encoded",
        "Frames encoded for several subscribers",
        "shared frames encoded",
    ),
    (CounterMetricFamily, "venus_shared_frames_sent", "How often their bytes were sent", "shared frames sent"),
    (GaugeMetricFamily, "venus_shared_frames_bytes", "Bytes of the frames that are kept", "shared frames kept"),
)


def details_are_degraded(status: broker_pb2.BrokerStatus) -> bool:
    """Whether figures of single tables are left out now."""
    return any(lane.lane == Lane.DETAILS and lane.degraded_since_us for lane in status.traffic.lanes)


def families(status: broker_pb2.BrokerStatus) -> Iterable[Metric]:
    """Return every family."""
    yield from _brakes(status.traffic)
    yield from _lanes(status.traffic)
    yield from _windows(status)
    yield from _fan_out(status.traffic)
    facts = GaugeMetricFamily(
        "venus_sub_healthy_fact", "1 for each fact of the last half hour that makes it sub-healthy", labels=["fact"]
    )
    for fact in status.traffic.facts:
        facts.add_metric([fact.fact], 1.0)
    yield facts


def _brakes(traffic: broker_pb2.TrafficStatus) -> Iterable[Metric]:
    labels = ["brake", "business"]
    times = CounterMetricFamily("venus_braked", "How often somebody was told to wait", labels=labels)
    waited = CounterMetricFamily("venus_braked_seconds", "How long they were told to wait", labels=labels)
    now = GaugeMetricFamily("venus_brake_on", "1 while the brake holds somebody back", labels=labels)
    for brake in traffic.brakes:
        names = [brake.brake, brake.business]
        times.add_metric(names, brake.times)
        waited.add_metric(names, brake.waited_ms / 1000)
        now.add_metric(names, float(brake.on))
    return times, waited, now


def _lanes(traffic: broker_pb2.TrafficStatus) -> Iterable[Metric]:
    degraded = GaugeMetricFamily(
        "venus_lane_degraded", "1 while a lane is degraded; lane 4 goes first", labels=["lane"]
    )
    since = GaugeMetricFamily(
        "venus_lane_degraded_since_seconds", "Unix time since when, 0 = it is served fully", labels=["lane"]
    )
    waiting = GaugeMetricFamily("venus_lane_waiting", "Calls of a lane that wait for a thread", labels=["lane"])
    for lane in traffic.lanes:
        degraded.add_metric([lane.name], float(bool(lane.degraded_since_us)))
        since.add_metric([lane.name], lane.degraded_since_us / 1e6)
        waiting.add_metric([lane.name], lane.waiting)
    return degraded, since, waiting


def _fan_out(traffic: broker_pb2.TrafficStatus) -> Iterable[Metric]:
    values = {gauge.name: gauge.value for gauge in traffic.gauges}
    for family, name, text, gauge in _FAN_OUT:
        if gauge in values:
            yield family(name, text, value=values[gauge])


def _windows(status: broker_pb2.BrokerStatus) -> Iterable[Metric]:
    labels = ["business", "group"]
    window = GaugeMetricFamily("venus_consumer_window_bytes", "How much may be under way to a consumer", labels=labels)
    slow = GaugeMetricFamily("venus_consumer_slow", "1 while a connected consumer takes nothing", labels=labels)
    for business in status.businesses:
        for consumer in business.consumers:
            if consumer.window_bytes:
                window.add_metric([business.business, consumer.group], consumer.window_bytes)
                slow.add_metric([business.business, consumer.group], float(bool(consumer.slow_since_us)))
    return window, slow
