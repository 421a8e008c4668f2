"""An unfinished switch of the application: one thread looks for it, and one loop of the process reports it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.waiting import eventually
from venus.cli import sync_direction
from venus.cli.sync_direction import SwitchMonitor
from venus.errors import DatabaseUnavailable

ADVICE = "finish the switch"


class SwitchRecords:
    """Stand-ins for the switch records of two databases, and the threads that have read them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.owner, self.is_away = "", False
        self.threads: list[str] = []
        self.stop = threading.Event()
        monkeypatch.setattr(sync_direction, "may_fall_back", lambda _: True)
        for name in ("SWITCH_S", "NO_SWITCH_S"):
            monkeypatch.setattr(sync_direction, name, 0.01)
        monkeypatch.setattr("venus.adapters.cutover.direction.read_state", self._read)
        monkeypatch.setattr("venus.adapters.targets.switching.describe_switch", lambda _: (self.owner, ADVICE))

    def _read(self, _: Any) -> Any:
        self.threads.append(threading.current_thread().name)
        if self.is_away:
            raise DatabaseUnavailable("away")
        return SimpleNamespace(records={}, follower="main")

    def start(self) -> SwitchMonitor:
        run: Any = SimpleNamespace(settings=None)
        return SwitchMonitor(run, self.stop)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[SwitchRecords]:
    found = SwitchRecords(monkeypatch)
    yield found
    found.stop.set()
    eventually(lambda: "venus-switch" not in {thread.name for thread in threading.enumerate()})


def reports(monitor: SwitchMonitor) -> list[str]:
    """Return the reports of capture and two targets."""
    return [monitor.describe(name) for name in (None, "main", "other")]


def test_the_follower_reports_a_switch_until_there_is_an_owner_and_then_capture_does(place: SwitchRecords) -> None:
    monitor = place.start()
    eventually(lambda: reports(monitor) == ["", ADVICE, ""])
    place.owner = "main"
    eventually(lambda: reports(monitor) == [ADVICE, "", ""])
    assert set(place.threads) == {"venus-switch"}


def test_the_switch_is_reported_while_a_database_is_away(place: SwitchRecords) -> None:
    monitor = place.start()
    eventually(lambda: reports(monitor) == ["", ADVICE, ""])
    place.is_away = True
    looks = len(place.threads)
    eventually(lambda: len(place.threads) > looks)
    assert reports(monitor) == ["", ADVICE, ""]
