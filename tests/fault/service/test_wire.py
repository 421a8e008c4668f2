"""Network faults: damaged bytes, cut and silent connections. Nothing is lost, doubled or stored damaged."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.brokers.servers import BUSINESS, business_status, commit, data, fill, settings, take
from tests.support.engines.batches import half
from tests.support.faults.proxy import Direction, Proxy
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.broker.service.server import Keepalive
from venus.config import LimitsSettings
from venus.errors import DigestMismatch, Unavailable
from venus.model import Verdict
from venus.rpc.producer import Producer
from venus.rpc.sealed import seal
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

pytestmark = [pytest.mark.fault, pytest.mark.integration]

KEEPALIVE_S = 1.0
#: A flipped length makes gRPC wait for bytes that never come: a test waits at most this long for the answer.
ANSWER_S = 5.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    # a slow disk refuses nothing, which would come again and be counted
    running = start_in_thread(settings(tmp_path / "data", limits=LimitsSettings(slow_request_ms=0)))
    yield running
    running.stop()


@pytest.fixture
def quick_broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """Start a broker that notices a silent client soon."""
    keepalive = Keepalive(every_s=KEEPALIVE_S, timeout_s=KEEPALIVE_S)
    running = start_in_thread(settings(tmp_path / "data"), keepalive=keepalive)
    yield running
    running.stop()


def marked_half(batch_no: int) -> broker_pb2.Half:
    return half(batch_no, payload=f"<marked {batch_no}>" + "m" * 200)


def commit_in_time(sender: Producer, message: broker_pb2.Half) -> int:
    """Commit one batch; without an answer, expect `Unavailable` soon and not after a minute."""
    sender.send_half(message)
    sender.wait_until_persisted(message.batch_no, ANSWER_S)
    sender.decide(message.batch_no, message.digest, Verdict.COMMIT)
    return sender.wait_until_decided(message.batch_no, ANSWER_S).batch_no


def read_bodies(broker: RunningBroker, until: int) -> list[bytes]:
    with Subscriber(broker.address, BUSINESS, "check", credit_bytes=8 << 20, transient=True) as reader:
        reader.open(0, 0)
        return data(take(reader, until))


def test_a_bit_flipped_on_the_way_to_the_broker_is_counted_and_resent(broker: RunningBroker) -> None:
    halves = [marked_half(n) for n in range(1, 41)]
    with (
        Proxy(broker.address) as proxy,
        Producer(proxy.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender,
    ):
        sender.connect(0, 0)
        commit(sender, halves[:10])
        proxy.flip_in(Direction.UP, b"<marked 20>mmmm")
        commit(sender, halves[10:])
        assert proxy.flipped == 1
        assert sender.resends == 1
    assert business_status(broker.address).counters["digest_mismatches"] == 1
    assert read_bodies(broker, 40) == [message.body for message in halves]


def test_a_bit_flipped_in_a_decision_decides_nothing_else(broker: RunningBroker) -> None:
    with (
        Proxy(broker.address) as proxy,
        Producer(proxy.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender,
    ):
        sender.connect(0, 0)
        sender.send_half(marked_half(1))
        sender.wait_until_persisted(1)
        proxy.flip_in(Direction.UP, marked_half(1).digest.to_bytes(8, "little"))
        sender.decide(1, marked_half(1).digest, Verdict.COMMIT)
        assert sender.wait_until_decided(1).next_offset == 1
        assert proxy.flipped == 1
    assert business_status(broker.address).counters["digest_mismatches"] == 1


def test_a_bit_flipped_in_an_acknowledgement_is_not_believed(broker: RunningBroker) -> None:
    fill(broker.address, 1, 5)
    with (
        Proxy(broker.address) as proxy,
        Subscriber(proxy.address, BUSINESS, "g", credit_bytes=1 << 20) as reader,
    ):
        reader.open(0, 0)
        take(reader, 5)
        proxy.flip_in(Direction.UP, b"\x10\x01")  # ConsumerFrame.acknowledge = 1
        reader.acknowledge(1)
        with pytest.raises(DigestMismatch):
            reader.increments(60.0)
        assert proxy.flipped == 1
    assert business_status(broker.address).consumers[0].acknowledged == 0


def test_a_flip_anywhere_in_a_stream_never_stores_other_bytes(broker: RunningBroker) -> None:
    halves = [marked_half(n) for n in range(1, 61)]
    with Proxy(broker.address) as proxy:
        done, flips = 0, 0
        while done < len(halves):
            with Producer(proxy.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender:
                try:
                    ack = sender.connect(0, 0, timeout_s=ANSWER_S)
                    done = ack.last_batch
                    for ref in ack.undecided:
                        assert ref.digest == halves[ref.batch_no - 1].digest
                    if ack.undecided:
                        last = ack.undecided[-1]
                        sender.decide(last.batch_no, last.digest, Verdict.COMMIT)
                        done = sender.wait_until_decided(last.batch_no, ANSWER_S).batch_no
                    while done < len(halves):
                        proxy.flip_at(Direction.UP, (89 * flips) % 400)
                        flips += 1
                        done = commit_in_time(sender, halves[done])
                except Unavailable:
                    continue  # the flip hit gRPC's own bytes and ended the connection
                except DigestMismatch:
                    continue
    assert proxy.flipped > 20
    assert read_bodies(broker, 60) == [message.body for message in halves]


def test_a_flipped_length_holds_no_stream_for_long_and_stores_nothing(broker: RunningBroker) -> None:
    length = len(seal(broker_pb2.ProducerFrame(halves=[marked_half(1)])))
    with Proxy(broker.address) as proxy:
        with Producer(proxy.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender:
            sender.connect(0, 0)
            proxy.flip_in(Direction.UP, b"\x00" + length.to_bytes(4, "big"))
            began = time.monotonic()
            with pytest.raises(Unavailable, match="half message 1 is not acknowledged"):
                commit_in_time(sender, marked_half(1))
            assert time.monotonic() - began < 55
        assert proxy.flipped == 1
    assert [message.body for message in fill(broker.address, 1, 1)] == read_bodies(broker, 1), "and nothing before it"


def test_a_bit_flipped_on_the_way_to_a_consumer_is_counted_and_never_delivered(broker: RunningBroker) -> None:
    with Producer(broker.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender:
        sender.connect(0, 0)
        halves = [marked_half(n) for n in range(1, 31)]
        commit(sender, halves)
    with Proxy(broker.address) as proxy:
        proxy.flip_in(Direction.DOWN, b"<marked 20>mmmm")
        taken: list[broker_pb2.Increment] = []
        with Subscriber(proxy.address, BUSINESS, "g", credit_bytes=2000) as reader:
            reader.open(0, 0)
            with pytest.raises(DigestMismatch):
                taken.extend(increment for batch in iter(partial(reader.increments, 60.0), None) for increment in batch)
            assert reader.digest_mismatches == 1
        assert len(taken) < 20
        with Subscriber(proxy.address, BUSINESS, "g", credit_bytes=2000) as reader:
            reader.open(len(taken), taken[-1].epoch)
            taken += take(reader, 30)
    assert data(taken) == [message.body for message in halves]


def test_a_cut_connection_loses_and_doubles_nothing(broker: RunningBroker) -> None:
    halves = [half(n) for n in range(1, 201)]
    with Proxy(broker.address) as proxy:
        done, cuts = 0, 0
        while done < len(halves):
            with Producer(proxy.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender:
                try:
                    ack = sender.connect(0, 0)
                    done = ack.last_batch
                    newest = max([done, *(ref.batch_no for ref in ack.undecided)])
                    for message in halves[newest:]:
                        sender.send_half(message)
                        if message.batch_no == newest + 20 and cuts < 5:
                            proxy.cut()
                            cuts += 1
                    done = commit_through(sender, halves)
                except Unavailable:
                    continue
    assert cuts == 5
    assert read_bodies(broker, 200) == [message.body for message in halves]


def commit_through(sender: Producer, halves: list[broker_pb2.Half]) -> int:
    sender.wait_until_persisted(len(halves))
    sender.decide(len(halves), halves[-1].digest, Verdict.COMMIT)
    return sender.wait_until_decided(len(halves)).batch_no


def test_a_silent_peer_is_noticed_on_both_sides(quick_broker: RunningBroker) -> None:
    broker = quick_broker
    fill(broker.address, 1, 1)
    with (
        Proxy(broker.address) as proxy,
        Producer(proxy.address, BUSINESS, "p", window_bytes_max=1 << 20, keepalive_s=KEEPALIVE_S) as sender,
        Subscriber(proxy.address, BUSINESS, "g", credit_bytes=1 << 20, keepalive_s=KEEPALIVE_S) as reader,
    ):
        sender.connect(0, 0)
        reader.open(0, 0)
        take(reader, 1)
        assert eventually(lambda: business_status(broker.address).producer == "p")
        proxy.silence()
        with pytest.raises(Unavailable):
            sender.wait_until_persisted(2, timeout_s=30)
        with pytest.raises(Unavailable):
            reader.increments(30.0)

        def is_disconnected() -> bool:
            status = business_status(broker.address)
            return not status.producer and not status.consumers[0].connected

        eventually(is_disconnected)


def test_a_client_that_ends_its_direction_is_disconnected(broker: RunningBroker) -> None:
    with (
        Proxy(broker.address) as proxy,
        Producer(proxy.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender,
    ):
        sender.connect(0, 0)
        commit(sender, [half(1)])
        proxy.half_close(Direction.UP)
        eventually(lambda: not business_status(broker.address).producer)
        with pytest.raises(Unavailable):
            sender.wait_until_persisted(2, timeout_s=30)


def test_a_slow_line_only_delays(broker: RunningBroker) -> None:
    before = threading.active_count()
    with Proxy(broker.address) as proxy:
        proxy.delay_s = 0.02
        with Producer(proxy.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender:
            sender.connect(0, 0)
            assert commit(sender, [half(n) for n in range(1, 301)]).next_offset == 300
    assert threading.active_count() < before + 30


def test_a_bit_flipped_in_a_compressed_object_is_counted_and_resent(broker: RunningBroker) -> None:
    large = "".join(random.Random(1).choices("0123456789abcdef", k=3 << 20))
    halves = [half(n, payload=large) for n in range(1, 5)]
    with (
        Proxy(broker.address) as proxy,
        Producer(proxy.address, BUSINESS, "p", window_bytes_max=64 << 20) as sender,
    ):
        sender.connect(0, 0)
        commit(sender, halves[:1])
        proxy.flip_at(Direction.UP, 200)
        commit(sender, halves[1:])
        assert proxy.flipped == 1
        assert sender.resends == 1
    assert business_status(broker.address).counters["digest_mismatches"] == 1
    assert read_bodies(broker, 4) == [message.body for message in halves]
