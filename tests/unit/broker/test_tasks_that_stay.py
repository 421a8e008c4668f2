"""Permanent tasks of a broker continue after an unexpected error, which is logged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.broker.test_idle_broker import SleepRecorder, check_ended, review_clock
from venus.broker.service import ingest, traffic_watch
from venus.broker.service.traffic_watch import LOOKS, TrafficWatch
from venus.flow.degradation import Lane


class FailsOnce:
    """A bridge whose first call fails by a defect."""

    def __init__(self) -> None:
        self.calls = 0

    async def run_blocking(self, _: Lane, call: Callable[..., Any], *args: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise KeyError("a defect of the broker")
        return call(*args)


def test_reviews_continue_after_a_defect(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    bridge: Any = FailsOnce()
    SleepRecorder(3).replace(monkeypatch, ingest)
    asked, work = review_clock([True], bridge, first_s=6.0)
    asyncio.run(check_ended(work))
    assert asked == [1, 1]
    assert "a defect of the broker" in caplog.text


def test_the_self_check_continues_after_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bridge: Any = FailsOnce()
    SleepRecorder(3 * LOOKS).replace(monkeypatch, traffic_watch)
    core: Any = SimpleNamespace(data_dir=tmp_path)
    watch = TrafficWatch(cast("Any", None), core, bridge, list)
    looks: list[float] = []
    monkeypatch.setattr(watch, "_measure_machine", dict)
    monkeypatch.setattr(watch, "process_reading", lambda late_s, _: looks.append(late_s))
    asyncio.run(check_ended(watch._run()))
    assert len(looks) == 2
    assert "a defect of the broker" in caplog.text
