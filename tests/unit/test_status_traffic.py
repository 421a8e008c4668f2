"""A broker's traffic in `venus status`: nothing while it is healthy, names and figures when a client waits."""

from __future__ import annotations

import json
from dataclasses import replace

from prometheus_client import generate_latest

from tests.unit.test_overview import BROKER, HEALTHY
from venus.broker.service.metrics import build_registry
from venus.cli.probes import broker_view
from venus.cli.status import document, format_overview
from venus.cli.traffic import TrafficView, format_retention, format_traffic
from venus.wire import broker_pb2

NOW = 10**15
AGO = NOW - 12_000_000


def status(traffic: broker_pb2.TrafficStatus) -> broker_pb2.BrokerStatus:
    consumer = broker_pb2.ConsumerStatus(group="main/eu", slow_since_us=AGO, window_bytes=64 << 10)
    calm = broker_pb2.ConsumerStatus(group="main/us", window_bytes=1 << 20)
    businesses = [broker_pb2.BusinessStatus(business="main", consumers=[consumer, calm])]
    return broker_pb2.BrokerStatus(businesses=businesses, traffic=traffic)


BUSY = broker_pb2.TrafficStatus(
    brakes=[
        broker_pb2.BrakeStatus(
            brake="rows", business="main", who="shop:1", times=1200, waited_ms=3400, since_us=AGO, on=True
        ),
        broker_pb2.BrakeStatus(brake="memory", business="main", who="shop:1", times=3, since_us=AGO),
        broker_pb2.BrakeStatus(brake="bytes", business="other", who="crm", times=9, since_us=AGO, on=True),
        broker_pb2.BrakeStatus(brake="streams", times=1, since_us=AGO, on=True),
    ],
    lanes=[broker_pb2.LaneStatus(lane=4, name="details", threads=1, degraded_since_us=AGO, reason="CPU is at 97 %")],
    facts=[broker_pb2.HealthFact(fact="CPU", reason="the CPU is at 99 %", since_us=AGO, seen_us=AGO)],
    gauges=[
        broker_pb2.GaugeStatus(name="unsaved", value=60 << 20, limit=64 << 20, unit="bytes"),
        broker_pb2.GaugeStatus(name="streams", value=5, limit=20_000),
        broker_pb2.GaugeStatus(name="snapshots", value=4),
    ],
)


def test_a_throttled_client_is_named_with_the_limiter() -> None:
    view = broker_view(status(BUSY), "main", "b:7400", NOW).traffic

    assert format_traffic(view) == [
        "~ limiter rows: delays shop:1 for 12 s; 1,200 times since the broker's start, 3.4 s altogether",
        "~ limiter streams: delays all clients for 12 s; 1 time since the broker's start, 0.0 s altogether",
        "~ main/eu has taken nothing for 12 s: its window is 64.0 KiB",
        "~ the broker is sub-healthy: the CPU is at 99 %, last seen 12 s ago",
        "~ unsaved: 60.0 MiB of 64.0 MiB",
    ]


def test_no_client_is_shown_as_throttled_if_all_targets_were_cut_over() -> None:
    view = broker_view(status(BUSY), "main", "b:7400", NOW).traffic

    assert format_traffic(view, follows=False) == [
        "~ the broker is sub-healthy: the CPU is at 99 %, last seen 12 s ago",
        "~ unsaved: 60.0 MiB of 64.0 MiB",
    ]


def test_large_work_that_pauses_for_small_commits_is_shown_to_machines_only() -> None:
    makes_way = broker_pb2.BrakeStatus(brake="small commits", who="large work", times=1, since_us=AGO, on=True)
    view = broker_view(status(broker_pb2.TrafficStatus(brakes=[makes_way])), "main", "b:7400", NOW).traffic

    assert not any("large work" in line for line in format_traffic(view))
    assert [brake.brake for brake in view.brakes] == ["small commits"]


def test_machines_get_all_traffic_of_the_business_and_the_broker() -> None:
    view = broker_view(status(BUSY), "main", "b:7400", NOW)
    found = json.loads(json.dumps(document(replace(HEALTHY, broker=replace(BROKER, traffic=view.traffic)))))["broker"]

    assert [brake["brake"] for brake in found["traffic"]["brakes"]] == ["rows", "memory", "streams"]
    assert found["traffic"]["lanes"][0]["degraded_s"] == 12.0
    assert len(found["traffic"]["gauges"]) == 3
    unknown = broker_view(status(BUSY), "stranger", "b:7400", NOW).traffic
    assert [brake.brake for brake in unknown.brakes] == ["streams"]
    assert unknown.facts


def test_quiet_traffic_is_not_shown() -> None:
    assert format_traffic(TrafficView()) == []
    assert format_traffic(broker_view(broker_pb2.BrokerStatus(), "main", "b:7400", NOW).traffic) == []
    busy = replace(HEALTHY, broker=replace(BROKER, traffic=broker_view(status(BUSY), "main", "", NOW).traffic))
    assert len(format_overview(busy)) > len(format_overview(HEALTHY))


def test_the_bytes_kept_for_unknown_readers_are_shown_with_their_inputs() -> None:
    retention = broker_pb2.RetentionStatus(
        bytes=120 << 20, bytes_per_s=3 << 20, mean_absence_ms=40_000, absences=12, raised_ago_ms=90_000
    )
    made = broker_pb2.BrokerStatus(businesses=[broker_pb2.BusinessStatus(business="main", retention=retention)])
    view = broker_view(made, "main", "b:7400", NOW)
    assert view.retention is not None
    line = (
        "120.0 MiB are kept for readers that are not known: 3.0 MiB/s x 40 s, "
        "the mean of 12 absences, raised 1.5 min ago"
    )
    assert format_retention(view.retention) == line
    shown = replace(HEALTHY, broker=replace(BROKER, retention=view.retention))
    assert line in format_overview(shown)
    assert document(shown)["broker"]["retention"]["absences"] == 12
    metrics = generate_latest(build_registry(made)).decode()
    assert 'venus_retained_bytes{business="main"} 1.2582912e+08' in metrics
    assert 'venus_mean_absence_seconds{business="main"} 40.0' in metrics
