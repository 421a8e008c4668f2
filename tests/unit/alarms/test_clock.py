"""Alarms of a broker whose clock is set, forward or back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from venus.alarms.alarm_state import SETTLING_S, Alarm, AlarmState
from venus.alarms.notifier import ALARMS_FILE, Notifier, save_alarms
from venus.broker.service.alarm_monitor import AlarmMonitor
from venus.broker.status.history import derive_alarms
from venus.config import AlarmsSettings
from venus.wire import broker_pb2

HALTED = "target eu: app.orders is HALTED (row 1); `venus quarantine list --target eu` shows the row"
AWAY = "broker -> target eu: apply is not connected; is `venus sync` running?"
HOUR_S = 3600.0


class Machine:
    """A broker's clocks, its alarms, and the sent notifications."""

    def __init__(self, path: Path, clock_s: float = 2_000_000_000.0) -> None:
        self.clock_s, self.steady_s = clock_s, 0.0
        self.said: list[str] = []
        self.sent: list[tuple[str, str]] = []
        self.unapplied_us = 0
        self.watch = AlarmMonitor(
            AlarmsSettings(repeat_s=4 * HOUR_S, clear_s=10),
            cast("Notifier", self),
            path / ALARMS_FILE,
            heartbeat_s=5.0,
            clock=lambda: self.clock_s,
            steady=lambda: self.steady_s,
        )

    def notify(self, notices: Iterable[Any]) -> None:
        self.sent += [(notice.event.value, notice.alarm.rule) for notice in notices]

    def look(self, after_s: float = 0.0, *, said: list[str] | None = None) -> list[tuple[str, str]]:
        """Advance the time, check the alarms, and return the notifications sent now."""
        self.clock_s += after_s
        self.steady_s += after_s
        self.said = self.said if said is None else said
        before = len(self.sent)
        status = broker_pb2.BrokerStatus(alarms=[])
        entry = status.businesses.add(business="main", producer="host", alarms=self.said)
        if self.unapplied_us:
            entry.consumers.add(
                group="main/eu", connected=True, backlog_rows=5, oldest_unacknowledged_us=self.unapplied_us
            )
        self.watch.check(lambda: status)
        return self.sent[before:]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.look(SETTLING_S)
    return made


@pytest.mark.parametrize("by_s", [-5 * HOUR_S, -1.9e9, 5 * HOUR_S], ids=["back", "to 1970", "forward"])
def test_an_alarm_from_before_the_setting_is_reported_repeated_and_ended_in_time(machine: Machine, by_s: float) -> None:
    assert machine.look(said=[AWAY, HALTED]) == [("raised", "table_halted")]
    machine.clock_s += by_s

    assert machine.look(50) == []
    assert machine.look(10) == [("raised", "target_away")]  # after a minute
    assert machine.look(4 * HOUR_S - 61) == []
    assert machine.look(1) == [("stands", "table_halted")]
    machine.look(said=[])
    machine.clock_s -= by_s
    assert machine.look(5) == []
    assert sorted(machine.look(6)) == [("recovered", "table_halted"), ("recovered", "target_away")]


def test_a_lagging_target_is_not_reported_as_current_when_the_clock_is_set_back(machine: Machine) -> None:
    machine.unapplied_us = int(machine.clock_s * 1e6)
    machine.look(61)
    assert machine.look(31) == [("raised", "target_late")]
    machine.clock_s -= 2 * HOUR_S
    assert machine.look(31) == []
    machine.clock_s -= 3 * HOUR_S
    assert machine.look(31) == []
    ((_, text),) = derive_alarms(late_status(machine), machine.watch._now(machine.clock_s), machine.watch._late)
    assert text.endswith("5 changes behind, the oldest 154 s")
    machine.unapplied_us = 0
    machine.look()
    assert machine.look(11) == [("recovered", "target_late")]


def late_status(machine: Machine) -> broker_pb2.BrokerStatus:
    status = broker_pb2.BrokerStatus()
    status.businesses.add(business="main", producer="host").consumers.add(
        group="main/eu", connected=True, backlog_rows=5, oldest_unacknowledged_us=machine.unapplied_us
    )
    return status


def test_points_of_the_history_stay_in_order(machine: Machine) -> None:
    for _ in range(3):
        machine.look(10)
    machine.clock_s -= 5 * HOUR_S
    for _ in range(3):
        machine.look(10)

    times = machine.watch.history().times

    assert len(times) >= 6
    assert times == sorted(times)
    assert times[-1] == machine.clock_s


def test_an_alarm_stored_while_the_clock_was_ahead_is_repeated_in_time(tmp_path: Path) -> None:
    ahead = 3_000_000_000.0
    alarm = Alarm(
        business="main",
        rule="table_halted",
        subject="target eu: app.orders",
        hop="target",
        text=HALTED,
        since_s=ahead,
        notified_s=ahead,
    )
    save_alarms(tmp_path / ALARMS_FILE, [alarm])
    machine = Machine(tmp_path)

    assert machine.look(SETTLING_S, said=[HALTED]) == []
    assert machine.look(4 * HOUR_S) == [("stands", "table_halted")]
    assert machine.look(said=[]) == []
    assert machine.look(11) == [("recovered", "table_halted")]


def test_a_clock_that_is_adjusted_slowly_does_not_count_as_set() -> None:
    book = AlarmState(AlarmsSettings(), 0.0)
    book.update([("main", HALTED)], 100.0)
    (before,) = book.all_alarms()

    book.shift_times(0.0)

    assert book.all_alarms() == [before]
