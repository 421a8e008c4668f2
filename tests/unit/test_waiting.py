"""The waits that `venus migrate` reports: what delays its own work, once, and the end of the wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from venus.cli import load
from venus.cli.output import Output, Redactor
from venus.cli.overview import BrokerView
from venus.cli.status_tables import REPEAT_S, WaitReporter, fill_obstacles, load_obstacles, watched_fill_obstacles
from venus.config import Settings

FULL = "too little free space: /data has only 3 MiB free, 512 MiB are needed: writes are refused and capture waits"
LANE = "lane {} (x) is degraded since 2026-11-22 12:00:00 UTC: memory is at 95 %, the limit is 92 %; free memory"
LOCKED = "source: main.orders is WAITING (for a lock of session 7)"
BROKER = BrokerView(known=True, producer="host:1")

Judge = Callable[[BrokerView], list[str]]


@pytest.mark.parametrize(
    ("judge", "alarms", "said"),
    [
        (fill_obstacles, (FULL,), [FULL]),
        (fill_obstacles, (LANE.format(4), LANE.format(3)), []),
        (fill_obstacles, (LANE.format(1),), [LANE.format(1)]),
        (load_obstacles, (LANE.format(4), LANE.format(3)), [LANE.format(3)]),
        (load_obstacles, ("main.orders has rows of version 3, whose columns no producer sent",), []),
        (watched_fill_obstacles, (FULL,), [FULL]),
    ],
)
def test_only_a_delay_of_its_own_work_is_reported(judge: Judge, alarms: tuple[str, ...], said: list[str]) -> None:
    assert judge(replace(BROKER, alarms=alarms)) == [f"broker: {alarm}" for alarm in said]


def test_a_fill_of_another_process_is_waited_for_with_its_reports() -> None:
    assert watched_fill_obstacles(BROKER) == []
    assert watched_fill_obstacles(replace(BROKER, reported={"": (LOCKED,), "main/a": ("x",)})) == [LOCKED]
    (said,) = watched_fill_obstacles(replace(BROKER, producer=""))
    assert said.endswith("capture is not connected; is `venus sync` running?")
    assert fill_obstacles(replace(BROKER, producer="")) == []


@pytest.mark.parametrize("judge", [fill_obstacles, load_obstacles, watched_fill_obstacles])
def test_an_absent_broker_is_the_only_thing_reported(judge: Judge) -> None:
    assert judge(BrokerView(error="broker b:1 cannot be reached")) == ["broker: b:1 cannot be reached"]


def test_a_wait_is_reported_once_then_periodically_and_at_its_end() -> None:
    now, said = [0.0], list[str]()
    waits = WaitReporter(said.append, lambda: now[0])

    waits.update([])
    waits.update([f"broker: {FULL}"])
    waits.update([f"broker: {FULL.replace('only 3', 'only 2')}"])
    assert said == [f"waits: broker: {FULL}"], "other figures are no news"
    waits.update([f"broker: {FULL}", LOCKED])
    assert said[1:] == [f"waits: {LOCKED}"]
    now[0] = REPEAT_S
    waits.update([f"broker: {FULL}"])
    waits.update([])
    waits.update([])
    assert said[2:] == [f"waits: broker: {FULL}", "continues: nothing delays it any more"]


def test_a_fill_that_only_an_operator_can_continue_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command waited endlessly for a table that had missed changes before its first read."""

    def table(name: str, state: str, *, is_read: bool) -> SimpleNamespace:
        fill = SimpleNamespace(rows_done=7, rows_estimate=9)
        return SimpleNamespace(schema=SimpleNamespace(qualified_name=name), state=state, is_read=is_read, fill=fill)

    class Source:
        looks = 0

        def __enter__(self) -> Source:
            return self

        def __exit__(self, *_: object) -> None: ...

        @property
        def registry(self) -> Source:
            return self

        def read_registered_tables(self) -> list[Any]:
            self.looks += 1
            assert self.looks < 3, "it waits"
            return [
                table("a", "ACTIVE", is_read=self.looks > 1),
                table("b", "RESYNC", is_read=False),
                table("c", "PAUSED", is_read=False),
            ]

    source = Source()
    monkeypatch.setattr("venus.cli.install.open_configured_source", lambda _: source)
    monkeypatch.setattr(load, "POLL_S", 0.0)
    with Output(json=True, redactor=Redactor()).progress("reading") as steps:
        assert load.wait_for_fill(cast("Settings", None), steps) == {"a": 7, "b": 7, "c": 7}
    assert source.looks == 2
