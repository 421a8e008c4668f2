"""Consumers over a real socket: increments from any offset, credit, filters."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.integration.service.conftest import each_transport
from tests.support.brokers.consumers import (
    RawConsumer,
    subscriber,
)
from tests.support.brokers.servers import BUSINESS, commit, data, fill, take
from tests.support.engines.batches import ITEMS, half, other_table
from tests.support.waiting import eventually
from venus.broker.pipeline.subscriptions import Subscriptions
from venus.broker.queue.reader import ReadResult
from venus.broker.replicas.gate import StandaloneGate
from venus.broker.service import shared_frames
from venus.broker.service.process import RunningBroker
from venus.broker.service.shared_frames import Turnstile
from venus.errors import DigestMismatch, Diverged, OffsetDiverged, ProtocolError, Unavailable
from venus.rpc.channel import open_channel
from venus.rpc.compression import cost
from venus.rpc.producer import Producer
from venus.rpc.sealed import subscribe
from venus.rpc.subscriber import ACKNOWLEDGE_EVERY_S, STARVED_S, Subscriber
from venus.wire import broker_pb2, change_pb2

pytestmark = [pytest.mark.integration, each_transport]


@pytest.mark.parametrize("stop_after", [1, 7, 19])
def test_a_subscriber_that_returns_continues_exactly(broker: RunningBroker, stop_after: int) -> None:
    halves = fill(broker.address, 1, 20, rows=5)
    taken: list[broker_pb2.Increment] = []
    with subscriber(broker, credit_bytes=600) as reader:
        reader.open(0, 0)
        while len(taken) < stop_after:
            taken += reader.increments(5.0)
    last = taken[-1]
    with subscriber(broker) as reader:
        opened = reader.open(last.base_offset + last.count, last.epoch)
        assert opened.next_offset == 100
        taken += take(reader, 100)
    assert data(taken) == [message.body for message in halves]


def test_a_commit_wakes_only_subscribers_of_its_business(broker: RunningBroker) -> None:
    fill(broker.address, 1, 1, business="other")
    with subscriber(broker) as reader, Subscriber(broker.address, "other", "g", credit_bytes=1 << 20) as other:
        fill(broker.address, 1, 1)
        reader.open(0, 0)
        other.open(1, 0)
        take(reader, 1)
        fill(broker.address, 2, 3)
        assert len(take(reader, 3)) == 2
        assert other.increments(0.1) == []


def test_many_consumers_wait_for_their_turn_before_each_frame(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[Turnstile] = []
    enter = Turnstile.enter

    async def record_call(self: Turnstile) -> None:
        passed.append(self)
        await enter(self)

    monkeypatch.setattr(Turnstile, "enter", record_call)
    monkeypatch.setattr(shared_frames, "PACED_MIN", 2)
    fill(broker.address, 1, 1)
    with subscriber(broker) as one:
        one.open(0, 0)
        take(one, 1)
        assert not passed, "one alone is no crowd"
        with Subscriber(broker.address, BUSINESS, "other", credit_bytes=1 << 20) as other:
            other.open(1, 0)
            fill(broker.address, 2, 2)
            take(one, 2)
            take(other, 2)
            assert len(passed) >= 2


def test_the_broker_never_sends_more_than_the_credit(broker: RunningBroker) -> None:
    halves = fill(broker.address, 1, 30)
    each = cost(broker_pb2.Increment(body=halves[0].body))
    with RawConsumer(broker.address, credit_bytes=3 * each + 10) as raw:
        eventually(lambda: len(raw.received) == 3)
        threading.Event().wait(0.3)
        assert len(raw.received) == 3
        raw.grant(2 * each)
        eventually(lambda: len(raw.received) == 5)
        threading.Event().wait(0.3)
        assert len(raw.received) == 5
    assert data(raw.received) == [message.body for message in halves[:5]]


def test_an_increment_larger_than_the_credit_still_arrives(broker: RunningBroker) -> None:
    halves = [half(1), half(2, payload="x" * 100_000), half(3)]
    with Producer(broker.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender:
        sender.connect(0, 0)
        commit(sender, halves)
    with subscriber(broker, credit_bytes=1000) as reader:
        reader.open(0, 0)
        assert data(take(reader, 3)) == [message.body for message in halves]


def test_a_body_that_differs_from_the_producers_is_never_delivered(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker.address, 1, 3)
    read = Subscriptions.read

    def read_damaged(*arguments: Any) -> ReadResult:
        result = read(*arguments)
        for increment in result.increments:
            increment.body = increment.body[:-1] + b"?"
        return result

    monkeypatch.setattr(Subscriptions, "read", read_damaged)
    with subscriber(broker) as reader:
        reader.open(0, 0)
        with pytest.raises(DigestMismatch):
            reader.increments(30.0)
        assert reader.digest_mismatches == 1


def test_tables_outside_the_filter_are_skipped_and_the_position_advances(broker: RunningBroker) -> None:
    halves = [half(n, table=ITEMS if n % 10 == 0 else other_table(2)) for n in range(1, 36)]
    with Producer(broker.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender:
        sender.connect(0, 0)
        commit(sender, halves)
    with subscriber(broker) as reader:
        reader.open(0, 0, table_ids=[ITEMS.table_id])
        taken = take(reader, 35)
        assert reader.position == 35
    wanted = [t for i in taken for t in change_pb2.BatchBody.FromString(i.body).tables if t.table_id == ITEMS.table_id]
    assert len(wanted) == 3


def test_a_diverged_consumer_gets_the_reason_and_is_never_served(broker: RunningBroker) -> None:
    fill(broker.address, 1, 3)
    with subscriber(broker) as reader, pytest.raises(OffsetDiverged):
        reader.open(1000, 1)


@pytest.mark.parametrize("is_certain", [False, True])
def test_only_a_broker_that_certainly_leads_reports_divergence(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, is_certain: bool
) -> None:
    """A consumer that gets this error ends, and is loaded again; so are a producer's tables."""
    asked: list[tuple[str, int]] = []

    async def lead_in_term(_: StandaloneGate, business: str, term: int) -> None:
        asked.append((business, term))
        if not is_certain:
            raise Unavailable("another broker leads by now")

    fill(broker.address, 1, 3)
    monkeypatch.setattr(StandaloneGate, "term", lambda *_: 7)
    monkeypatch.setattr(StandaloneGate, "confirm_leadership", lead_in_term)
    kind = Diverged if is_certain else Unavailable
    with subscriber(broker) as reader, pytest.raises(kind):
        reader.open(1000, 1)
    with Producer(broker.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender, pytest.raises(kind):
        sender.connect(0, 9)
    assert asked == [(BUSINESS, 7)] * 2
    with subscriber(broker) as reader:
        assert reader.open(3, 0).next_offset == 3


@pytest.mark.parametrize("fields", [{}, {"acknowledge": 3}, {"open": broker_pb2.Open(business=BUSINESS)}])
def test_a_stream_must_start_with_open(broker: RunningBroker, fields: dict[str, Any]) -> None:
    from grpc import RpcError

    from venus.rpc.errors import from_rpc_error

    channel = open_channel(broker.address)
    with pytest.raises(RpcError) as caught:
        list(subscribe(channel, [broker_pb2.ConsumerFrame(**fields)]))
    assert isinstance(from_rpc_error(caught.value), ProtocolError)
    channel.close()


def test_a_slow_trickle_costs_the_consumer_a_few_frames_a_second(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credit is sent with acknowledgements, which are sent no more often than the broker logs them."""
    frames: list[broker_pb2.ConsumerFrame] = []
    take_frame = Subscriber._take_frame

    def record_frame(self: Subscriber) -> tuple[broker_pb2.ConsumerFrame | None, float | None]:
        frame, pause_s = take_frame(self)
        if frame is not None:
            frames.append(frame)
        return frame, pause_s

    monkeypatch.setattr(Subscriber, "_take_frame", record_frame)
    with Producer(broker.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender, subscriber(broker) as reader:
        sender.connect(0, 0)
        reader.open(0, 0)
        began, owed = time.monotonic(), 0
        for n in range(1, 31):
            commit(sender, [half(n)])
            (increment,) = reader.increments(60.0)
            owed += cost(increment)
            reader.acknowledge(increment.base_offset + increment.count)
            assert reader.increments(2 * STARVED_S) == []
        passed_s = time.monotonic() - began
        assert len(frames) <= passed_s / ACKNOWLEDGE_EVERY_S + 2
        eventually(lambda: sum(frame.credit_bytes for frame in frames) == owed)
