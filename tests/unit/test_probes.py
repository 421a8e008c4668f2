"""The queries of `venus status`, and the order in which their answers may be combined."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.unit.test_overview import BROKER, CONSUMER, SOURCE, TARGET
from venus.cli import probes
from venus.cli.overview import BrokerView
from venus.config import Settings
from venus.rpc.admin import AdminClient
from venus.wire import broker_pb2

SETTINGS = Settings.model_validate({"targets": {"a": {"url": "postgresql://h/d"}}})


def look(monkeypatch: pytest.MonkeyPatch, *brokers: BrokerView) -> tuple[str, ...]:
    answers = list(brokers)
    monkeypatch.setattr(probes, "read_source", lambda settings, rows: SOURCE)
    monkeypatch.setattr(probes, "target_reader", lambda settings, name: lambda: replace(TARGET, offset=82))
    monkeypatch.setattr(probes, "read_broker", lambda settings: answers.pop(0))
    found = probes.read_overview(SETTINGS).problems
    assert answers == []
    return found


def broker(offset: int) -> BrokerView:
    return replace(BROKER, next_offset=offset, consumers=(replace(CONSUMER, acknowledged=81),))


def test_a_target_that_was_read_after_the_broker_is_not_reported_as_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(monkeypatch, broker(81), broker(83)) == ()
    assert look(monkeypatch, broker(82)) == ()


def test_a_broker_that_lost_its_data_is_behind_in_a_second_reading_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (problem,) = look(monkeypatch, broker(81), broker(81))
    assert "the broker has lost its data, or another one answers" in problem


@pytest.mark.parametrize("ahead_us", [-7_200_000_000, 7_200_000_000])
def test_ages_are_computed_with_the_brokers_clock(ahead_us: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the operator's machine may be off by hours."""
    now_us = time.time_ns() // 1000 + ahead_us
    status = broker_pb2.BrokerStatus(now_us=now_us)
    status.businesses.add(
        business="main",
        last_captured_at_us=now_us - 4_000_000,
        last_committed_at_us=now_us - 3_000_000,
        last_scrub_at_us=now_us - 5_000_000,
    ).halves.add(batch_no=1, received_at_us=now_us - 6_000_000)
    monkeypatch.setattr(AdminClient, "whole_status", lambda self, business: status)
    monkeypatch.setattr(AdminClient, "__init__", lambda self, *_, **__: None)
    monkeypatch.setattr(AdminClient, "__exit__", lambda self, *_: None)
    monkeypatch.setattr(AdminClient, "address", "b:7400")

    found = probes.read_broker(SETTINGS)

    assert (found.captured_age_s, found.committed_age_s, found.ship_s, found.scrub_age_s) == (4.0, 3.0, 1.0, 5.0)
    assert found.halves[0].age_s == 6.0


def test_the_brokers_own_measurement_takes_precedence_over_a_difference_of_times() -> None:
    status = broker_pb2.BrokerStatus(now_us=10**15)
    entry = status.businesses.add(
        business="main",
        last_captured_at_us=1,
        last_committed_at_us=1,
        committed_ago_ms=3000,
        halves_total=7,
        consumers_total=9,
    )
    entry.halves.add(batch_no=1, received_at_us=1, waited_ms=6000)

    found = probes.broker_view(status, "main", "b:1", status.now_us)

    assert (found.committed_age_s, found.halves[0].age_s) == (3.0, 6.0)
    assert (found.halves_total, found.consumers_total) == (7, 9)


@pytest.mark.parametrize("clock_us", [-300_000_000, 0, 300_000_000])
@pytest.mark.parametrize(("behind_s", "quiet_s"), [(0.0, 0.5), (40.0, 0.5), (0.0, 90.0)])
def test_the_end_to_end_lag_does_not_depend_on_wrong_clocks(behind_s: float, quiet_s: float, clock_us: int) -> None:
    """The source's clock was off by five minutes, or the target's: this was shown as lag, or hid it."""
    captured_us = 1_800_000_000_000_000 + clock_us
    target = replace(TARGET, heartbeat_at_us=captured_us - int(behind_s * 1e6), heartbeat_age_s=300.0)
    reported = replace(BROKER, captured_at_us=captured_us, committed_age_s=quiet_s)

    assert probes.with_lag(target, reported).heartbeat_age_s == behind_s + quiet_s
    assert probes.with_lag(target, BrokerView(error="away")) == target
    assert probes.with_lag(replace(target, heartbeat_at_us=0), reported).heartbeat_age_s == 300.0
    ahead = replace(target, heartbeat_at_us=captured_us + 2_000_000)  # it arrived after the broker was read
    assert probes.with_lag(ahead, reported).heartbeat_age_s == quiet_s


def test_a_target_left_out_of_many_consumers_is_not_reported_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    known = replace(broker(82), consumers=(replace(CONSUMER, group="main/other"),), consumers_total=2000)
    assert look(monkeypatch, known) == ()
    (problem,) = look(monkeypatch, replace(known, consumers_total=1))
    assert "the broker does not know this target" in problem


def test_an_unreachable_broker_is_not_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = look(monkeypatch, BrokerView(error="broker b cannot be reached"))
    assert problem == "broker: b cannot be reached"
