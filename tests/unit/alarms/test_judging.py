"""Which parts a broker reports as away or late by its status, and which it does not."""

from __future__ import annotations

from venus.broker.status.history import ClockReading, LateLimits, derive_alarms, is_led_elsewhere
from venus.rpc.conditions import AdapterCondition, TableCondition, switch_conditions
from venus.rpc.reports import check, decode, encode, reported_problems
from venus.text.alarm_rules import classify_sentence
from venus.wire import broker_pb2

NOW_US = 1_000_000_000_000
NOW = ClockReading(us=NOW_US)
LATE = LateLimits(capture_s=60, target_s=60)


def business() -> tuple[broker_pb2.BrokerStatus, broker_pb2.BusinessStatus]:
    status = broker_pb2.BrokerStatus()
    entry = status.businesses.add(business="main", producer="host", last_captured_at_us=NOW_US - 1_000_000)
    entry.consumers.add(group="main/eu", connected=True)
    return status, entry


def rules(status: broker_pb2.BrokerStatus) -> list[str]:
    return [classify_sentence(text)[0].name for _, text in derive_alarms(status, NOW, LATE)]


def test_a_follower_is_not_reported() -> None:
    assert rules(business()[0]) == []


def test_capture_that_is_away_or_silent_is_reported() -> None:
    status, entry = business()
    entry.last_captured_at_us = NOW_US - 61_000_000
    assert rules(status) == ["capture_late"]
    entry.halves_total = 1
    assert rules(status) == ["capture_late"]
    ((_, said),) = derive_alarms(status, NOW, LATE)
    assert said.endswith("for 61 s; a large transaction is being read: 1 half message so far")
    entry.producer = ""
    assert rules(status) == ["capture_away"]
    entry.last_captured_at_us = 0  # no change was ever captured
    assert rules(status) == []


def test_capture_that_a_switch_has_ended_is_not_reported() -> None:
    status, entry = business()
    entry.producer = ""
    report = encode(AdapterCondition(tables=switch_conditions("the switch to eu is not finished")))
    entry.consumers[0].reported.report.CopyFrom(report)
    assert rules(status) == []
    entry.consumers[0].connected = False
    assert sorted(rules(status)) == ["capture_away", "target_away"]


def test_a_target_that_is_away_and_late_is_reported() -> None:
    status, entry = business()
    entry.consumers[0].connected = False
    entry.consumers[0].backlog_rows = 1200
    entry.consumers[0].oldest_unacknowledged_us = NOW_US - 61_000_000
    assert rules(status) == ["target_away"], "one alarm for one thing"
    ((_, said),) = derive_alarms(status, NOW, LATE)
    assert said.endswith(": apply is not connected, 1,200 changes behind, the oldest 61 s; is `venus sync` running?")
    entry.consumers[0].connected = True
    assert rules(status) == ["target_late"]


def test_a_set_below_is_not_reported_as_a_target() -> None:
    status, entry = business()
    below = entry.consumers.add(group="mirror/lyon", connected=True)
    assert rules(status) == []
    below.connected, below.backlog_rows, below.oldest_unacknowledged_us = False, 1200, NOW_US - 61_000_000
    assert [text for _, text in derive_alarms(status, NOW, LATE)] == [
        "broker -> set lyon: it does not pull, 1,200 changes behind, the oldest 61 s; "
        "the queue is kept for it: is its broker running, and the line up?"
    ]
    assert rules(status) == ["set_away"]
    below.connected = True
    assert rules(status) == ["set_late"]


def test_a_paused_adapter_is_neither_away_nor_late() -> None:
    status, entry = business()
    entry.consumers[0].backlog_rows = 1200
    entry.consumers[0].oldest_unacknowledged_us = 1
    entry.consumers[0].reported.report.paused = True
    assert rules(status) == []


def test_a_target_that_was_cut_over_is_neither_away_nor_late_nor_paused() -> None:
    status, entry = business()
    consumer = entry.consumers[0]
    consumer.connected, consumer.backlog_rows, consumer.oldest_unacknowledged_us = False, 1200, 1
    halted = AdapterCondition.of(
        [TableCondition(table_id=1, name="shop.items", state="HALTED")], paused=True, cut_over="2026-11-25 19:27:48 UTC"
    )
    consumer.reported.report.CopyFrom(encode(halted))
    check(consumer.reported.report)
    assert rules(status) == []
    assert decode(consumer.reported.report) == halted
    assert list(reported_problems(entry, NOW_US)) == []


def test_a_business_that_another_broker_leads_is_not_reported() -> None:
    status, entry = business()
    entry.producer = ""
    entry.replication.leader = "b2"
    assert is_led_elsewhere(entry)
    assert rules(status) == []
    entry.replication.mode = "sync"
    assert rules(status) == ["capture_away"]


def test_silence_is_measured_by_the_brokers_clock_alone() -> None:
    """The source's clock may be hours ahead or behind: dead capture looked alive, and working capture looked late."""
    status, entry = business()
    for wrong_us in (7_200_000_000, -7_200_000_000):
        entry.last_committed_at_us = NOW_US - 61_000_000
        entry.last_captured_at_us = entry.last_committed_at_us + wrong_us
        assert rules(status) == ["capture_late"]
        ((_, text),) = derive_alarms(status, NOW, LATE)
        assert text.endswith("for 61 s")
        entry.last_committed_at_us = NOW_US - 1_000_000
        entry.last_captured_at_us = entry.last_committed_at_us + wrong_us
        assert rules(status) == ["clocks_differ"]
    entry.last_captured_at_us = NOW_US + 7_200_000_000
    entry.producer = ""
    ((_, text),) = derive_alarms(status, NOW, LATE)
    assert "is 0 s old" in text


def test_silence_has_its_real_length_whatever_the_clock_was_set_to() -> None:
    status, entry = business()
    entry.last_captured_at_us = entry.last_committed_at_us = NOW_US - 3_600_000_000
    entry.committed_ago_ms = 1000
    assert rules(status) == []
    entry.last_captured_at_us = entry.last_committed_at_us = NOW_US
    entry.committed_ago_ms = 61_000
    assert rules(status) == ["capture_late"]
