"""The stream of a group that reads increments from replicas: when it ends, and the effect on the broker's health."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from venus.broker.service import consumer_stream, replica_watch
from venus.broker.service.consumer_stream import ConsumerStream
from venus.broker.service.replica_watch import OTHERS_AFTER_S, ReplicaWatch
from venus.errors import NotLeader, VenusError
from venus.replication.records import LiveBroker, Member
from venus.rpc import limits
from venus.rpc.broker_selection import BrokerSelector
from venus.rpc.connection import BrokerConnection
from venus.rpc.event_loop import LoopBridge
from venus.wire import broker_pb2

OWN = "leader:1"
WAIT_S = 60.0
OLD_SITE = "x" * 129  # of a broker that did not check it


def broker(name: str, **more: Any) -> LiveBroker:
    return LiveBroker(member=Member(broker=name, store=name), address=f"{name}:1", **more)


class Leader:
    """The methods of a broker that a stream without full data calls; it has no increment to send."""

    def __init__(self, *found: LiveBroker) -> None:
        self.found, self.fill = list(found), (1, 0)
        self.subscriptions = self.full_data = self
        self.borders: dict[str, Any] = {}

    def fill_of(self, _: str) -> tuple[int, int]:
        return self.fill

    def check_position(self, *_: object) -> broker_pb2.Opened:
        return broker_pb2.Opened()

    def attach(self, *_: object, **__: object) -> int:
        return 1

    def detach(self, *_: object) -> None:
        pass

    def kept_offset(self, *_: object) -> int:
        return 0


class Client:
    """A consumer that only waits."""

    def __init__(self) -> None:
        self.opened: broker_pb2.Opened | None = None

    def peer(self) -> str:
        return "test"

    async def write(self, frame: broker_pb2.DeliveryFrame) -> None:
        limits.check(frame, "from the broker: ")
        self.opened = frame.opened

    async def read(self) -> None:
        await asyncio.Event().wait()


def serve(leader: Leader, change: Callable[[], None], seconds: float = WAIT_S) -> tuple[list[str], VenusError | None]:
    """Return the replicas that a stream is given, and the error that ends it after a change; None if it continues."""

    async def run() -> VenusError | None:
        bridge = LoopBridge(asyncio.get_running_loop())
        traffic: Any = SimpleNamespace(
            admission=SimpleNamespace(limits=SimpleNamespace(slow_consumer_s=5.0)),
            monotonic=lambda: 0.0,
            has_degraded=lambda _: False,
        )
        core, context, nothing = (part for part in (leader, client, None))
        wanted = broker_pb2.Open(business="main", group="main/eu", credit_bytes=1 << 20, elsewhere=True)
        parts: tuple[Any, ...] = (core, bridge, nothing, traffic, nothing, context, wanted, lambda: leader.found, OWN)
        served = asyncio.ensure_future(ConsumerStream(*parts).run(broker_pb2.ConsumerFrame(open=wanted)))
        while client.opened is None and not served.done():
            await asyncio.sleep(0.001)
        change()
        await asyncio.wait([served], timeout=seconds)
        served.cancel()
        ended = (await asyncio.gather(served, return_exceptions=True))[0]
        await asyncio.to_thread(bridge.close)
        assert isinstance(ended, VenusError | asyncio.CancelledError)
        return ended if isinstance(ended, VenusError) else None

    client = Client()
    error = asyncio.run(run())
    assert client.opened is not None
    return [one.address for one in client.opened.replicas], error


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_stream, "WATCH_REPLICAS_S", 0.01)


def test_a_replica_that_leaves_ends_the_stream_and_no_broker_counts_as_away() -> None:
    """With one address and `further`, the whole set counted as away for a minute."""
    leader = Leader(broker("b"), broker("c"))
    given, error = serve(leader, lambda: leader.found.remove(broker("c")))
    assert given == ["b:1", "c:1"]
    assert isinstance(error, NotLeader)
    assert error.leader == OWN
    assert places_after(error) == 0


def places_after(error: VenusError) -> int:
    """Return how many nearer sets a client with one address and `further` skips afterwards."""
    brokers = BrokerSelector((OWN,), ("other:1",))
    connection = object.__new__(BrokerConnection)
    connection._brokers, connection.address = brokers, OWN
    connection.record_error("main", error)
    return brokers.place


def test_a_draining_or_degraded_replica_is_not_offered_and_moves_no_reader() -> None:
    """A flapping lane of one replica made all readers of the business reconnect."""
    leader = Leader(broker("b"), broker("c"), broker("d", draining=True), broker("e", unhealthy="lane 4 is degraded"))

    def make_unfit() -> None:
        leader.found = [broker("b", unhealthy="lane 4 is degraded"), broker("c", draining=True)]

    assert serve(leader, make_unfit, seconds=0.2) == (["b:1", "c:1"], None)


def test_a_stream_without_increments_ends_when_the_full_data_is_taken_again() -> None:
    leader = Leader(broker("b"))

    def fill_again() -> None:
        leader.fill = (1, 9)

    _, error = serve(leader, fill_again, seconds=2.0)
    assert "takes the full data again" in str(error)


def test_a_site_that_a_client_refuses_is_omitted() -> None:
    leader = Leader(broker("b", site=OLD_SITE), broker("c", site="paris"), broker("d", site=" paris"))
    assert serve(leader, lambda: None, seconds=0.0) == (["b:1", "c:1", "d:1"], None)


@pytest.mark.parametrize("at_first", [[], ["b"]])
def test_a_stream_ends_when_another_replica_can_be_read(monkeypatch: pytest.MonkeyPatch, at_first: list[str]) -> None:
    """After an election a target that came before the followers read from the leader for ever."""
    monkeypatch.setattr(replica_watch, "OTHERS_AFTER_S", 0.05)
    leader = Leader(*map(broker, at_first))
    given, error = serve(leader, lambda: leader.found.append(broker("c")), seconds=2.0)
    assert given == [f"{name}:1" for name in at_first]
    assert isinstance(error, NotLeader)
    assert error.leader == OWN


def test_a_replica_that_was_not_offered_must_stay_for_a_while() -> None:
    watch, others = ReplicaWatch([broker("b")]), [broker("b"), broker("c")]
    assert watch.find_change(others, 0.0) == ""
    assert watch.find_change([broker("b"), broker("c", draining=True)], OTHERS_AFTER_S - 1) == ""
    assert watch.find_change(others, OTHERS_AFTER_S) == ""
    assert watch.find_change(others, 2 * OTHERS_AFTER_S - 0.1) == ""
    assert watch.find_change(others, 2 * OTHERS_AFTER_S) == "another replica can be read"
