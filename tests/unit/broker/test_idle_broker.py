"""An idle broker checks itself rarely, and its threads do not wake without work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from venus.broker.service import ingest as reviews
from venus.broker.service import traffic_watch
from venus.broker.service.traffic import Traffic
from venus.broker.service.traffic_watch import LOOK_S, LOOKS, QUIET_CPU_PERCENT, QUIET_LOOK_S, TrafficWatch
from venus.config import BrokerSettings, DegradeSettings
from venus.flow.degradation import Lane
from venus.wire import broker_pb2


class SleepRecorder:
    """Stands for asyncio.sleep: it records each sleep, and ends the sleeper after a number of them."""

    def __init__(self, most: int, between: Callable[[int], None] = lambda _: None) -> None:
        self.taken: list[float] = []
        self._most, self._between = most, between

    async def __call__(self, seconds: float) -> None:
        if len(self.taken) == self._most:
            raise asyncio.CancelledError
        self._between(len(self.taken))
        self.taken.append(seconds)

    def replace(self, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": self}))


class Bridge:
    """Bridge that counts the calls in threads."""

    def __init__(self) -> None:
        self.calls = 0

    async def run_blocking(self, _: Lane, call: Callable[..., Any], *args: Any) -> Any:
        self.calls += 1
        return call(*args)


async def check_ended(work: Any) -> None:
    with pytest.raises(asyncio.CancelledError):
        await work


# -- reviews -----------------------------------------------------------------------------------------------------------


def review_clock(undecided: list[bool], bridge: Bridge, first_s: float) -> Any:
    stream = SimpleNamespace(epoch=7, outbox=SimpleNamespace(request_review=lambda halves: asked.append(len(halves))))
    asked: list[int] = []

    class Producers:
        @property
        def has_undecided(self) -> bool:
            return undecided[0]

        def due_reviews(self) -> list[tuple[str, int, list[broker_pb2.HalfRef]]]:
            return [("main", 7, [broker_pb2.HalfRef(batch_no=1)])]

    core, ingest = SimpleNamespace(producers=Producers()), SimpleNamespace(live={"main": stream})
    return asked, reviews.ask_for_reviews(cast("Any", core), cast("Any", bridge), cast("Any", ingest), first_s=first_s)


def test_without_undecided_messages_reviews_wake_a_thread_once_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    undecided, bridge = [False], Bridge()

    def end_at_sixty(turn: int) -> None:
        undecided[0] = turn >= 60

    sleeps = SleepRecorder(64, end_at_sixty)
    sleeps.replace(monkeypatch, reviews)
    asked, work = review_clock(undecided, bridge, first_s=6.0)
    asyncio.run(check_ended(work))
    assert sleeps.taken[:60] == [1.0] * 60
    assert sleeps.taken[61:] == [reviews.REVIEW_EVERY_S] * 3
    assert bridge.calls == len(asked) == 4, "a thread has a turn only for what is undecided"


def test_a_first_review_that_is_due_early_is_sent_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps = SleepRecorder(3)
    sleeps.replace(monkeypatch, reviews)
    _, work = review_clock([False], Bridge(), first_s=2.0)
    asyncio.run(check_ended(work))
    assert sleeps.taken == [0.5] * 3


# -- the self-check ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", ["", "CPU", "late", "consumer", "degraded"])
def test_an_idle_broker_checks_itself_every_other_second(
    busy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps, bridge, now = SleepRecorder(40), Bridge(), [1000.0]

    async def sleep(seconds: float) -> None:
        await sleeps(seconds)
        now[0] += seconds + (0.1 if busy == "late" else 0.0)

    monkeypatch.setattr(traffic_watch, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    used = (lambda: 2 * QUIET_CPU_PERCENT / 100 * now[0]) if busy == "CPU" else (lambda: 0.0)
    monkeypatch.setattr(traffic_watch, "time", SimpleNamespace(monotonic=lambda: now[0], process_time=used))
    core = SimpleNamespace(
        data_dir=tmp_path,
        space=SimpleNamespace(read_free=lambda: 1 << 40, free_bytes_min=1),
        commits=SimpleNamespace(silent_s=lambda _: 0.0, waited_s=0.0),
        scrub=SimpleNamespace(),
        precedence=SimpleNamespace(rested_s={}),
    )
    traffic = Traffic(cast("Any", core), BrokerSettings(), monotonic=lambda: now[0])
    if busy == "degraded":
        traffic.admission.degradation.restore_s = 1e9
        traffic.admission.degradation._degrade(traffic.admission.degradation.watermarks[0], 99.0, now[0])
    owes = SimpleNamespace(
        business="main",
        group="g",
        window=SimpleNamespace(halve_if_slow=lambda _: False),
        unacknowledged_s=lambda _: 0.1,
    )
    watch = TrafficWatch(traffic, cast("Any", core), cast("Any", bridge), lambda: [owes] if busy == "consumer" else [])

    asyncio.run(check_ended(watch._run()))
    if busy:
        assert sleeps.taken == [LOOK_S] * 40
        assert bridge.calls == 40 / LOOKS
    else:
        assert sleeps.taken == [LOOK_S] * LOOKS + [QUIET_LOOK_S] * (40 - LOOKS)


@pytest.mark.parametrize("rests", [0.0, 0.6])
def test_a_broker_whose_large_work_pauses_counts_as_busy(
    rests: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise work that pauses in an overload would hide the overload, and no lane would be given up."""
    now = 1000.0
    monkeypatch.setattr(traffic_watch, "time", SimpleNamespace(monotonic=lambda: now, process_time=lambda: 0.5 * now))
    precedence = SimpleNamespace(rested_s={"loads": 0.0})
    core = SimpleNamespace(
        data_dir=tmp_path,
        space=SimpleNamespace(free_bytes_min=1),
        commits=SimpleNamespace(silent_s=lambda _: 0.0, waited_s=0.0),
        scrub=SimpleNamespace(),
        precedence=precedence,
    )
    traffic = Traffic(
        cast("Any", core), BrokerSettings(degrade=DegradeSettings(cpu_sustain_s=5)), monotonic=lambda: now
    )
    watch = TrafficWatch(traffic, cast("Any", core), cast("Any", Bridge()), list)
    for _ in range(10):
        now += 1.0
        precedence.rested_s["loads"] += rests
        watch.process_reading(0.0, {"free": 1e12, "disk": 1.0, "memory": 1.0, "CPU": 50.0})
    assert traffic.has_degraded(Lane.DETAILS) == bool(rests)
    assert [found.reason for found in traffic.admission.degradation.degraded] == (
        ["CPU is at 110 %, the limit is 90 %"] if rests else []
    )


@pytest.mark.parametrize(("own_s", "facts"), [(0.05, []), (1.0, ["the machine's CPU is at 99 %"])])
def test_other_load_on_the_machine_is_no_fact_about_the_brokers_health(
    own_s: float, facts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now, process_time=lambda: own_s * now)
    monkeypatch.setattr(traffic_watch, "time", clock)
    monkeypatch.setattr("psutil.cpu_count", lambda: 2)
    core = SimpleNamespace(
        data_dir=tmp_path,
        space=SimpleNamespace(free_bytes_min=1),
        commits=SimpleNamespace(silent_s=lambda _: 0.0, waited_s=0.0),
        scrub=SimpleNamespace(),
        precedence=SimpleNamespace(rested_s={}),
    )
    traffic = Traffic(cast("Any", core), BrokerSettings(), monotonic=lambda: now)
    watch = TrafficWatch(traffic, cast("Any", core), cast("Any", Bridge()), list)
    for _ in range(100):
        now += 1.0
        watch.process_reading(0.0, {"free": 1e12, "disk": 1.0, "memory": 1.0, "CPU": 99.0})
    assert [fact.reason for fact in traffic.health.facts] == facts
