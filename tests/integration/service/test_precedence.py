"""Small commits beside large work at a real broker: large work pauses for them, and every page shows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import pytest

from tests.integration.service.conftest import StartBroker
from tests.support.brokers.servers import BUSINESS, commit, traffic
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker
from venus.broker.snapshot.scrub import Scrub
from venus.config import LimitsSettings
from venus.flow import precedence
from venus.flow.precedence import SMALL_BYTES
from venus.rpc.producer import Producer
from venus.rpc.snapshots import SnapshotClient
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration

SMALL = "small"
LARGE_BYTES = 4 * SMALL_BYTES


class Sender:
    """Commits batches of one size."""

    def __init__(self, broker: RunningBroker, business: str, nbytes: int) -> None:
        self.producer = Producer(broker.address, business, "test", window_bytes_max=8 << 20)
        self.producer.connect(0, 0)
        self._payload = "x" * nbytes
        self.committed = 0

    def commit(self) -> None:
        self.committed += 1
        assert commit(self.producer, [half(self.committed, payload=self._payload)]).next_offset == self.committed


@contextmanager
def senders(broker: RunningBroker) -> Iterator[tuple[Sender, Sender]]:
    small, large = Sender(broker, SMALL, 10), Sender(broker, BUSINESS, LARGE_BYTES)
    with small.producer, large.producer:
        yield small, large


def find_limiter(broker: RunningBroker) -> broker_pb2.BrakeStatus | None:
    return next((found for found in traffic(broker.address).brakes if found.brake == "small commits"), None)


def behind_bytes(broker: RunningBroker) -> float:
    return next(found.value for found in traffic(broker.address).gauges if found.name == "full data behind")


@pytest.fixture
def grow_pauses_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one late commit cause the longest pause."""
    monkeypatch.setattr(precedence, "_GROWS", 1e9)
    monkeypatch.setattr(precedence, "SHARE_MOST", 1e9)


@pytest.mark.usefixtures("grow_pauses_at_once")
def test_large_work_pauses_for_small_commits_and_reports_it(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precedence, "REST_S_MAX", 3600.0)
    monkeypatch.setattr(Scrub, "step", lambda *_, **__: False)  # the scrub would pause too
    broker = start_broker(limits=LimitsSettings(small_commit_ms=0.001))
    with senders(broker) as (small, large):

        def read_limiter() -> broker_pb2.BrakeStatus | None:
            large.commit()
            small.commit()
            found = find_limiter(broker)
            return found if found is not None and found.on else None

        found = eventually(read_limiter)
        assert (found.who, found.business) == ("large work", "")
        for _ in range(3):
            large.commit()
            small.commit()
        assert behind_bytes(broker) > LARGE_BYTES, "decisions continue, and the full data rests"

        def has_metric() -> bool:
            large.commit()
            small.commit()
            with urlopen(f"http://{broker.http_address}/metrics", timeout=60) as answer:
                return 'venus_brake_on{brake="small commits",business=""} 1.0' in answer.read().decode()

        eventually(has_metric)
    began = time.monotonic()
    broker.stop()
    assert time.monotonic() - began < 600, "no call waits for the end of a rest"


@pytest.mark.usefixtures("grow_pauses_at_once")
def test_readers_of_full_data_pause_too(start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precedence, "REST_S_MAX", 0.5)
    rests, rest_s = list[float](), precedence.Precedence.rest_s

    def record_rest(self: precedence.Precedence, kind: str, took_s: float, now: float) -> float:
        found = rest_s(self, kind, took_s, now)
        if kind == "loads":
            rests.append(found)
        return found

    monkeypatch.setattr(precedence.Precedence, "rest_s", record_rest)
    broker = start_broker(limits=LimitsSettings(small_commit_ms=0.001))
    done = threading.Event()
    with senders(broker) as (small, large), SnapshotClient(broker.address) as snapshots:

        def trickle() -> None:
            while not done.wait(0.02):  # without a pause it would soon be a flood itself
                small.commit()

        def rests_at_each_chunk() -> bool:
            """Read once; a writer that gets no CPU time sends nothing for which a read would have to rest."""
            rests.clear()
            began, split = time.monotonic(), snapshot.splits[0]
            chunks = list(snapshots.read_split(snapshot.snapshot_id, split, chunk_bytes=LARGE_BYTES))
            took_s = time.monotonic() - began
            assert len(chunks) >= 4
            assert took_s >= sum(rests)
            return sum(rests) >= 4 * 0.5 and find_limiter(broker) is not None

        for _ in range(4):
            large.commit()
        snapshot = snapshots.open(BUSINESS, splits=1)
        other = threading.Thread(target=trickle)
        other.start()
        try:
            eventually(rests_at_each_chunk)
        finally:
            done.set()
            other.join(60)


@pytest.mark.usefixtures("grow_pauses_at_once")
def test_large_work_does_not_pause_if_that_is_turned_off(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precedence, "REST_S_MAX", 3600.0)
    broker = start_broker(limits=LimitsSettings(small_commit_ms=0))
    with senders(broker) as (small, large):
        for _ in range(20):
            large.commit()
            small.commit()
        eventually(lambda: behind_bytes(broker) == 0)
    assert find_limiter(broker) is None


@pytest.mark.usefixtures("grow_pauses_at_once")
def test_a_flood_alone_never_pauses(start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precedence, "REST_S_MAX", 3600.0)
    broker = start_broker(limits=LimitsSettings(small_commit_ms=0.001))
    with Sender(broker, BUSINESS, LARGE_BYTES).producer as producer:
        for n in range(1, 21):
            commit(producer, [half(n, payload="x" * LARGE_BYTES)])
        eventually(lambda: behind_bytes(broker) == 0)
    assert find_limiter(broker) is None
