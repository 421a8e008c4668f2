"""A cut-over waits for a process that reconnects meanwhile; one that stays away forbids the cut-over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.cutover.test_judging import BEHIND, READY
from venus.adapters.cutover import run
from venus.adapters.cutover.lock_patience import LockPatience
from venus.adapters.cutover.readiness import Readiness
from venus.errors import Refused

AWAY = replace(BEHIND, applied=False)


class Clock:
    """Time that passes only during a sleep."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(run, "time", made)
    return made


def drain(monkeypatch: pytest.MonkeyPatch, seen: Iterator[Readiness], *, wait_s: float = 60) -> Readiness:
    monkeypatch.setattr(run, "read_readiness", lambda *_: next(seen))
    settings: Any = SimpleNamespace(
        business=SimpleNamespace(name="main"), source=SimpleNamespace(tables=(), exclude=())
    )
    unused: Any = None
    wish: Any = SimpleNamespace(wait_s=wait_s, rehearse=False, leave_out=())
    cutover = run._Cutover(settings, unused, unused, unused, unused, wish, lambda *_: None, LockPatience(0))
    return cutover._wait_until_drained()


def for_s(clock: Clock, seconds: float, while_so: Readiness, then: Readiness) -> Iterator[Readiness]:
    end = clock.now + seconds
    while clock.now < end:
        yield while_so
    while True:
        yield then


def test_an_adapter_that_reconnects_is_waited_for(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    assert drain(monkeypatch, for_s(clock, 4, AWAY, READY)) == READY


def test_an_adapter_that_stays_away_soon_forbids_the_cutover(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    with pytest.raises(Refused, match=r"no process applies them.*--apply-only"):
        drain(monkeypatch, for_s(clock, 60, AWAY, READY))
    assert run.RECONNECT_S < clock.now < run.RECONNECT_S + 1


def test_an_operator_with_a_shorter_limit_gets_the_reason_too(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    with pytest.raises(Refused, match="no process applies them") as caught:
        drain(monkeypatch, for_s(clock, 60, AWAY, READY), wait_s=1)
    assert "writes" not in caught.value.hint
    assert clock.now < run.RECONNECT_S


def test_two_short_absences_are_not_one_long_absence(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    def readings() -> Iterator[Readiness]:
        for _ in range(4):
            yield from [AWAY] * 15  # 3 s
            yield BEHIND
        yield READY

    assert drain(monkeypatch, readings()) == READY
    assert clock.now > run.RECONNECT_S


REPAIRED = "target a: the last comparison found 1 row different; `venus verify --target a --repair` ships it again"
LATE = "broker -> target a: 5,000 changes behind (2 MiB), 40 s old"


def test_an_alarm_that_the_broker_still_repeats_is_waited_for(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """A comparison or its repair ends the alarm at the target; the broker learns of it a second later."""
    assert drain(monkeypatch, for_s(clock, 3, replace(READY, alarms=(REPAIRED,)), READY)) == READY


def test_an_alarm_that_stays_soon_forbids_the_cutover(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    with pytest.raises(Refused, match="broker: target a: the last comparison found 1 row different"):
        drain(monkeypatch, for_s(clock, 60, replace(READY, alarms=(REPAIRED,)), READY))
    assert run.RECONNECT_S < clock.now < run.RECONNECT_S + 1


def test_an_alarm_that_time_ends_is_waited_for_like_changes(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    late = replace(BEHIND, alarms=(LATE,))
    assert drain(monkeypatch, for_s(clock, 50, late, READY)) == READY
    with pytest.raises(Refused, match="5,000 changes behind"):
        drain(monkeypatch, for_s(clock, 90, late, READY))
