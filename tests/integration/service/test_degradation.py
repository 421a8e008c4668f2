"""The lanes of work that a real broker gives up and resumes one by one, and its alarm after a crash."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.integration.service.conftest import StartBroker, open_producer, time_commit
from tests.support.brokers.servers import BUSINESS, BrokerProcess, settings, take, traffic
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker
from venus.broker.service.traffic_watch import TrafficWatch
from venus.broker.store.files import FreeSpace
from venus.config import DegradeSettings
from venus.errors import Overloaded
from venus.flow.degradation import Degradation
from venus.rpc import connection
from venus.rpc.admin import AdminClient
from venus.rpc.snapshots import SnapshotClient
from venus.rpc.subscriber import Subscriber

pytestmark = pytest.mark.integration

MIB = 1 << 20


def degraded_lanes(broker: RunningBroker) -> list[int]:
    return sorted(lane.lane for lane in traffic(broker.address).lanes if lane.degraded_since_us)


def get(broker: RunningBroker, path: str) -> str:
    with urlopen(f"http://{broker.http_address}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def metrics(broker: RunningBroker) -> str:
    return get(broker, "/metrics")


class DegradationClock:
    """The clock that times the degradation of a broker's lanes; it stands still until a test advances it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now_s, self._readings, step = 0.0, 0, Degradation.step

        def step_by_this_clock(degradation: Degradation, readings: Mapping[str, float], _: float) -> list[str]:
            said = step(degradation, readings, self._now_s)
            self._readings += 1
            return said

        monkeypatch.setattr(Degradation, "step", step_by_this_clock)

    def advance(self, seconds: float) -> None:
        """Advance it after the broker has read the machine's present state, and wait for later readings."""
        self._wait()
        self._now_s += seconds
        self._wait()

    def _wait(self) -> None:
        last = self._readings + 2
        eventually(lambda: self._readings >= last, "readings")


def test_lanes_are_given_up_and_resumed_one_by_one_and_nothing_is_lost(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, clock = {"bytes": 1 << 40}, DegradationClock(monkeypatch)
    monkeypatch.setattr(FreeSpace, "read_free", lambda self: free["bytes"])
    broker = start_broker(
        free_bytes_min=MIB, degrade=DegradeSettings(cpu_percent=0, memory_percent=0, lag_ms=0, sustain_s=2, restore_s=1)
    )
    monkeypatch.setattr(connection, "OVERLOADED_S", 0.5)
    with open_producer(broker) as sender, SnapshotClient(broker.address) as snapshots:
        time_commit(sender, 1)
        assert degraded_lanes(broker) == []
        assert "venus_table_changes" in metrics(broker)
        free["bytes"] = MIB + MIB // 2  # writes are refused below 1 MiB of space, the first lanes are given up below 2
        clock.advance(1.9)
        assert degraded_lanes(broker) == []
        clock.advance(0.2)
        assert degraded_lanes(broker) == [4]
        assert "venus_table_changes" not in metrics(broker), "details go first"
        with AdminClient(broker.address) as admin:
            (alarm,) = admin.status().alarms
        assert alarm.startswith("lane 4 (details) is degraded since 20")
        assert ": what must stay free is at 67 % of the free space, the limit is 50 % of the free space; " in alarm
        assert re.search(r"; free some space at /\S+; the lane recovers by itself well below the limit$", alarm)
        clock.advance(2.1)
        assert degraded_lanes(broker) == [3, 4]
        with pytest.raises(Overloaded, match="no new snapshot"):
            snapshots.open(BUSINESS, holder="load")
        clock.advance(2.1)
        clock.advance(2.1)
        assert degraded_lanes(broker) == [1, 2, 3, 4]
        assert 'venus_lane_degraded{lane="halves"} 1.0' in metrics(broker)
        assert get(broker, "/health").startswith("degraded\nlane 4")
        time_commit(sender, 2)
        assert sender.throttles >= 1
        with Subscriber(broker.address, BUSINESS, "g", credit_bytes=MIB) as reader:
            reader.open(0, 0)
            assert len(take(reader, 2)) == 2
        free["bytes"] = 1 << 40
        for left in ([2, 3, 4], [3, 4], [4], []):
            clock.advance(1.1)
            assert degraded_lanes(broker) == left
        assert "venus_table_changes" in metrics(broker)
        with AdminClient(broker.address) as admin:
            assert list(admin.status().alarms) == []
        time_commit(sender, 3)


def test_a_busy_processor_ends_only_the_detailed_metrics(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = {"percent": 99.0}
    monkeypatch.setattr(TrafficWatch, "_own_cpu_percent", lambda self, rested_s: busy["percent"])
    only_cpu = DegradeSettings(memory_percent=0, lag_ms=0, cpu_sustain_s=1, sustain_s=1, restore_s=1)
    broker = start_broker(degrade=only_cpu)
    with open_producer(broker) as sender, SnapshotClient(broker.address) as snapshots:
        time_commit(sender, 1)
        eventually(lambda: degraded_lanes(broker) == [4])
        assert "venus_table_changes" not in metrics(broker)
        with AdminClient(broker.address) as admin:
            (alarm,) = admin.status().alarms
        assert alarm.startswith("lane 4 (details) is degraded since 20")
        assert ": CPU is at 99 %, the limit is 90 %; " in alarm
        number, since = 1, time.monotonic()
        while time.monotonic() < since + 4:  # long enough to end the next lanes, if the broker ended any
            number += 1
            time_commit(sender, number)
        assert (degraded_lanes(broker), sender.throttles) == ([4], 0)
        snapshots.open(BUSINESS, holder="load")
        busy["percent"] = 10.0
        eventually(lambda: degraded_lanes(broker) == [])
        assert "venus_table_changes" in metrics(broker)


def test_a_killed_broker_reports_it_for_half_an_hour_and_a_stopped_one_does_not(tmp_path: Path) -> None:
    def crash_facts(started: BrokerProcess) -> list[str]:
        return [fact.fact for fact in traffic(started.address).facts if fact.fact == "crash"]

    with BrokerProcess(settings(tmp_path / "data")) as first:
        assert first.stop() == 0
    with BrokerProcess(settings(tmp_path / "data")) as second:
        eventually(lambda: [gauge for gauge in traffic(second.address).gauges if gauge.name == "streams"])
        time.sleep(2)
        assert crash_facts(second) == []
        second.kill()
    with BrokerProcess(settings(tmp_path / "data")) as third:
        eventually(lambda: crash_facts(third) == ["crash"])
        (fact,) = (fact for fact in traffic(third.address).facts if fact.fact == "crash")
        assert fact.reason == "the broker's process ended without a stop"
        assert fact.since_us <= fact.seen_us
