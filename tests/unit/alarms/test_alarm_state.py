"""When an alarm is sent: after it has lasted for a while, repeatedly while it lasts, and when it is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from venus.alarms import alarm_state as book_module
from venus.alarms.alarm_state import SETTLING_S, Alarm, AlarmEvent, AlarmState, Notification
from venus.alarms.notifier import load_alarms, save_alarms
from venus.config import AlarmRuleSettings, AlarmsSettings

HALTED = "target eu: app.orders is HALTED (row {}); `venus quarantine list --target eu` shows the row"
AWAY = "broker -> target eu: apply is not connected; is `venus sync` running?"
STARTED = 1_000_000.0
LATER = STARTED + SETTLING_S


def notified_pairs(notices: list[Notification]) -> list[tuple[str, str]]:
    return [(notice.event.value, notice.alarm.rule) for notice in notices]


def test_an_alarm_is_raised_repeated_and_recovers() -> None:
    book = AlarmState(AlarmsSettings(repeat_s=100, clear_s=10), STARTED)

    assert notified_pairs(book.update([("main", HALTED.format(1))], LATER)) == [("raised", "table_halted")]
    assert book.update([("main", HALTED.format(2))], LATER + 99) == []
    assert notified_pairs(book.update([("main", HALTED.format(3))], LATER + 100)) == [("stands", "table_halted")]
    assert book.update([], LATER + 101) == []
    (over,) = book.update([], LATER + 111)
    assert (over.event, over.at_s, over.alarm.since_s) == (AlarmEvent.RECOVERED, LATER + 101, LATER)
    assert over.alarm.text == HALTED.format(3)
    assert book.update([], LATER + 200) == []


def test_an_alarm_that_returns_at_once_was_never_over() -> None:
    book = AlarmState(AlarmsSettings(clear_s=10), STARTED)
    book.update([("main", HALTED.format(1))], LATER)

    assert book.update([], LATER + 1) == []
    assert book.update([("main", HALTED.format(1))], LATER + 9) == []
    assert book.active_alarms()[0].since_s == LATER
    assert book.update([], LATER + 15) == []


def test_a_short_problem_is_not_reported() -> None:
    book = AlarmState(AlarmsSettings(clear_s=0), STARTED)

    assert book.update([("main", AWAY)], LATER) == []
    assert book.update([], LATER + 30) == []
    assert book.update([("main", AWAY)], LATER + 40) == []
    assert book.update([("main", AWAY)], LATER + 99) == []
    assert notified_pairs(book.update([("main", AWAY)], LATER + 100)) == [("raised", "target_away")]


def test_a_configured_rule_sets_delay_and_interval() -> None:
    rules = {"table_halted": AlarmRuleSettings(after_s=20, repeat_s=5)}
    book = AlarmState(AlarmsSettings(rules=rules), STARTED)

    assert book.update([("main", HALTED.format(1))], LATER) == []
    assert notified_pairs(book.update([("main", HALTED.format(1))], LATER + 20)) == [("raised", "table_halted")]
    assert notified_pairs(book.update([("main", HALTED.format(1))], LATER + 25)) == [("stands", "table_halted")]


def test_two_tables_are_two_alarms_and_two_businesses_too() -> None:
    book = AlarmState(AlarmsSettings(), STARTED)
    other = HALTED.replace("orders", "items").format(1)

    found = [("main", HALTED.format(1)), ("main", other), ("second", other)]

    assert len(book.update(found, LATER)) == 3
    assert len(book.active_alarms()) == 3


def test_a_business_that_another_broker_leads_now_is_not_reported_as_recovered() -> None:
    book = AlarmState(AlarmsSettings(clear_s=0), STARTED)
    book.update([("main", HALTED.format(1))], LATER)

    assert book.update([], LATER + 60, {"main"}) == []
    assert book.active_alarms() == []


def test_a_restarted_broker_repeats_no_alarm_and_reports_the_end(tmp_path: Path) -> None:
    first = AlarmState(AlarmsSettings(clear_s=10), STARTED)
    first.update([("main", HALTED.format(1)), ("main", AWAY)], LATER)
    save_alarms(tmp_path / "alarms.json", first.all_alarms())
    again = LATER + 1000

    second = AlarmState(AlarmsSettings(clear_s=10), again, load_alarms(tmp_path / "alarms.json"))

    assert [alarm.rule for alarm in second.active_alarms()] == ["table_halted"]  # the other one was never sent
    assert second.update([], again) == []
    assert second.update([], again + 20) == []  # its adapters may not have reconnected yet
    assert notified_pairs(second.update([], again + SETTLING_S)) == [("recovered", "table_halted")]
    third = AlarmState(AlarmsSettings(), again, load_alarms(tmp_path / "alarms.json"))
    assert third.update([("main", HALTED.format(1))], again) == []


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"format": 2, "alarms": []}',
        '{"format": 1, "alarms": [5]}',
        '{"format": 1}',
        '{"format": 1, "alarms": [{"business": 1}]}',
        "\xff" * 5,
    ],
)
def test_a_damaged_file_is_ignored(content: str, tmp_path: Path) -> None:
    (tmp_path / "alarms.json").write_bytes(content.encode("latin-1"))

    assert load_alarms(tmp_path / "alarms.json") == []


def test_too_many_alarms_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "ALARMS_MAX", 2)
    book = AlarmState(AlarmsSettings(), STARTED)

    notices = book.update([(f"b{n}", HALTED.format(1)) for n in range(5)], LATER)

    assert (len(notices), book.left_out) == (2, 3)


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    alarm = Alarm(business="", rule="other", subject="x", hop="broker", text="x", since_s=1.0, notified_s=2.0)
    save_alarms(tmp_path / "alarms.json", [alarm])

    assert (tmp_path / "alarms.json").stat().st_mode & 0o077 == 0
    assert load_alarms(tmp_path / "alarms.json") == [alarm]
