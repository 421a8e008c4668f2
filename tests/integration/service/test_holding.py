"""One producer for each business: a second one is refused while the first is alive, and admitted when it is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.servers import BUSINESS, business_status, fill, settings
from tests.support.engines.batches import half
from tests.support.faults.proxy import Proxy
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.broker.service.server import Keepalive
from venus.errors import Fenced, Held, VenusError
from venus.rpc.channel import CLUSTER_KEEPALIVE_S
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber

pytestmark = pytest.mark.integration

KEEPALIVE_S = 1.0
#: A living client gets this long to answer a ping, however busy the machine is.
ANSWER_S = 8.0
#: Longer than a test: neither keepalive nor the wait for the holder's answer ends within one.
NEVER_S = 600.0
#: What need not wait for the end of such a time takes less than this on any machine.
SOON_S = 60.0
#: Number of pings; gRPC tolerates two that come too early.
PINGS = 5

StartBroker = Callable[..., RunningBroker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartBroker]:
    running: list[RunningBroker] = []

    def start_broker(every_s: float, timeout_s: float) -> RunningBroker:
        keepalive = Keepalive(every_s=every_s, timeout_s=timeout_s)
        running.append(start_in_thread(settings(tmp_path / "broker"), keepalive=keepalive))
        return running[-1]

    yield start_broker
    for broker in running:
        broker.stop()


@pytest.fixture
def broker(start: StartBroker) -> RunningBroker:
    """Start a broker that never takes a client's silence for its end."""
    return start(NEVER_S, NEVER_S)


def producer(address: str, name: str, **options: Any) -> Producer:
    return Producer(address, BUSINESS, name, **{"window_bytes_max": 1 << 20, "keepalive_s": NEVER_S, **options})


@contextmanager
def speaking(sender: Producer) -> Iterator[None]:
    """Ship half messages continuously, so that the broker hears from this producer at any time."""
    done = threading.Event()

    def send_halves() -> None:
        for number in count(1):
            sender.send_half(half(number))
            sender.wait_until_persisted(number)
            if done.wait(0.1):
                return

    thread = threading.Thread(target=send_halves)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_a_second_producer_is_refused_at_once_when_the_first_one_sends(broker: RunningBroker) -> None:
    with producer(broker.address, "first:1") as first, producer(broker.address, "second:2") as second:
        epoch = first.connect(0, 0, owner="a").epoch
        started = time.monotonic()
        with speaking(first), pytest.raises(Held, match="held by first:1, connected since 20") as refused:
            second.connect(0, 0, owner="b", timeout_s=NEVER_S)
        assert time.monotonic() - started < SOON_S
        assert "--take-over" in refused.value.hint
        assert business_status(broker.address).epoch == epoch, "nothing was fenced"


def test_a_silent_producer_that_answers_keepalive_is_alive(start: StartBroker) -> None:
    broker = start(KEEPALIVE_S, ANSWER_S)
    with producer(broker.address, "first:1") as first, producer(broker.address, "second:2") as second:
        first.connect(0, 0, owner="a")
        with pytest.raises(Held):
            second.connect(0, 0, owner="b")
        first.send_half(half(1))
        first.wait_until_persisted(1)


def test_a_producer_with_a_dead_connection_is_replaced_when_keepalive_notices(start: StartBroker) -> None:
    """The machine is gone or frozen: nothing arrives any more, not even the end of the connection."""
    broker = start(KEEPALIVE_S, KEEPALIVE_S)
    with (
        Proxy(broker.address) as proxy,
        producer(proxy.address, "first:1") as first,
        producer(broker.address, "second:2") as second,
    ):
        epoch = first.connect(0, 0, owner="a").epoch
        proxy.silence()

        def enter() -> int:
            try:
                return int(second.connect(0, 0, owner="b").epoch)
            except Held:  # a busy machine notices later than a new producer waits
                return 0

        assert eventually(enter) > epoch
        assert business_status(broker.address).producer == "second:2"


def test_a_producer_that_returns_replaces_its_own_dead_connection_at_once(broker: RunningBroker) -> None:
    with (
        Proxy(broker.address) as proxy,
        producer(proxy.address, "first:1") as before,
        producer(broker.address, "first:1") as after,
    ):
        before.connect(0, 0, owner="a")
        proxy.silence()
        started = time.monotonic()
        after.connect(0, 0, owner="a", timeout_s=NEVER_S)
        assert time.monotonic() - started < SOON_S


def test_a_producer_that_takes_over_fences_the_first(broker: RunningBroker) -> None:
    with producer(broker.address, "first:1") as first, producer(broker.address, "second:2") as second:
        first.connect(0, 0, owner="a")
        second.connect(0, 0, owner="b", take_over=True)
        with pytest.raises(Fenced, match="second:2 has taken over"):
            first.wait_until_persisted(1)


def test_a_first_fill_makes_room_for_capture_and_not_for_another_first_fill(broker: RunningBroker) -> None:
    with (
        producer(broker.address, "migrate:1") as fill,
        producer(broker.address, "migrate:2") as another,
        producer(broker.address, "sync:3") as capture,
    ):
        fill.connect(0, 0, owner="a", gives_way=True)
        with speaking(fill), pytest.raises(Held, match="migrate:1"):
            another.connect(0, 0, owner="b", gives_way=True)
        capture.connect(0, 0, owner="c")
        with pytest.raises(Fenced):
            fill.wait_until_decided(1)


def test_of_many_concurrent_producers_exactly_one_is_admitted(broker: RunningBroker) -> None:
    outcomes: list[str] = []
    done = threading.Event()

    def connect_producer(name: str) -> None:
        with producer(broker.address, name) as one:
            try:
                one.connect(0, 0, owner=name)
            except VenusError as error:
                outcomes.append(type(error).__name__)
                return
            outcomes.append("in")
            with speaking(one):
                done.wait(SOON_S)

    threads = [threading.Thread(target=connect_producer, args=(f"p:{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(outcomes) == len(threads))
    done.set()
    for thread in threads:
        thread.join(SOON_S)
    assert sorted(outcomes) == ["Held"] * 5 + ["in"]


def test_a_client_of_several_brokers_sends_frequent_keepalive_pings(tmp_path: Path) -> None:
    """GRPC takes pings as a flood if they come more often than the server has agreed to, and ends the connection."""
    running = start_in_thread(settings(tmp_path / "broker"))
    try:
        fill(running.address, 1, 1)
        reach = f"{running.address},{running.address}"
        with Subscriber(reach, BUSINESS, "g", credit_bytes=1 << 20, keepalive_s=CLUSTER_KEEPALIVE_S / 1.8) as reader:
            reader.open(1, 0)
            assert list(reader.increments(PINGS * CLUSTER_KEEPALIVE_S / 1.8)) == []
    finally:
        running.stop()
