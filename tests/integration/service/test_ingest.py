"""Producers over a real socket: half messages, decisions, reviews, fencing."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from tests.integration.service.conftest import StartBroker, each_transport, producer
from tests.support.brokers.servers import BUSINESS, business_status, commit, data, take
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.broker.pipeline.producer_commands import Producers
from venus.broker.service import producer_stream
from venus.broker.service.process import RunningBroker
from venus.errors import Fenced, Overloaded, ProtocolError, Unavailable
from venus.model import Verdict
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

pytestmark = [pytest.mark.integration, each_transport]


def test_committed_half_messages_are_delivered_unchanged(broker: RunningBroker) -> None:
    halves = [half(n, rows=3) for n in range(1, 51)]
    with (
        producer(broker) as sender,
        Subscriber(broker.address, BUSINESS, "g", credit_bytes=1 << 20) as reader,
    ):
        sender.connect(0, 0)
        assert reader.open(0, 0).next_offset == 0
        assert commit(sender, halves).next_offset == 150
        assert sender.decided_through == 50
        taken = take(reader, 150)
    assert data(taken) == [message.body for message in halves]
    assert [increment.base_offset for increment in taken] == list(range(0, 150, 3))


def test_a_half_message_is_invisible_until_it_is_committed(broker: RunningBroker) -> None:
    with (
        producer(broker) as sender,
        Subscriber(broker.address, BUSINESS, "g", credit_bytes=1 << 20) as reader,
    ):
        sender.connect(0, 0)
        commit(sender, [half(1)])
        reader.open(0, 0)
        sender.send_half(half(2))
        sender.wait_until_persisted(2)
        assert len(take(reader, 1)) == 1
        assert reader.increments(0.1) == []
        sender.decide(2, half(2).digest, Verdict.COMMIT)
        assert len(take(reader, 2)) == 1


def test_a_rolled_back_batch_number_is_used_again(broker: RunningBroker) -> None:
    with (
        producer(broker) as sender,
        Subscriber(broker.address, BUSINESS, "g", credit_bytes=1 << 20) as reader,
    ):
        sender.connect(0, 0)
        for n in (1, 2, 3):
            sender.send_half(half(n))
        sender.wait_until_persisted(3)
        sender.decide(1, half(1).digest, Verdict.COMMIT)
        sender.decide(2, half(2).digest, Verdict.ROLLBACK)
        assert sender.wait_until_decided(2).verdict == broker_pb2.ROLLBACK
        other = half(2, payload="second try ")
        assert commit(sender, [other]).verdict == broker_pb2.COMMIT
        reader.open(0, 0)
        assert data(take(reader, 2)) == [half(1).body, other.body]


def test_a_batch_number_is_not_reused_before_its_rollback_is_answered(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer: Future[Any] = Future()
    decide, arrived = Producers.decide, threading.Event()

    def hold_answer(*arguments: Any) -> Future[Any]:
        decide(*arguments).add_done_callback(lambda _: arrived.set())
        return answer

    with producer(broker) as sender:
        sender.connect(0, 0)
        sender.send_half(half(1))
        sender.wait_until_persisted(1)
        monkeypatch.setattr(Producers, "decide", hold_answer)
        sender.decide(1, half(1).digest, Verdict.ROLLBACK)
        assert arrived.wait(60)
        with pytest.raises(Overloaded):
            sender.send_half(half(1, payload="again"), timeout_s=0.1)
        monkeypatch.undo()
        answer.set_result(broker_pb2.Decided(verdict=broker_pb2.ROLLBACK, batch_no=1))
        assert commit(sender, [half(1, payload="again")]).next_offset == 1


def test_answers_to_small_batches_are_coalesced(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[int] = []
    take_frame = Producer.on_frame

    def count_frame(self: Producer, frame: broker_pb2.BrokerFrame) -> None:
        frames.append(1)
        take_frame(self, frame)

    monkeypatch.setattr(Producer, "on_frame", count_frame)
    with producer(broker) as sender:
        sender.connect(0, 0)
        commit(sender, [half(n) for n in range(1, 2001)])
    assert len(frames) < 1000


def test_the_next_connection_gets_the_undecided_half_messages(broker: RunningBroker) -> None:
    with producer(broker) as sender:
        first = sender.connect(0, 0)
        commit(sender, [half(1)])
        sender.send_half(half(2))
        sender.wait_until_persisted(2)
    with producer(broker) as sender:
        ack = sender.connect(0, 0)
        assert ack.epoch > first.epoch
        assert (ack.last_batch, ack.next_offset) == (1, 1)
        assert [(ref.batch_no, ref.digest) for ref in ack.undecided] == [(2, half(2).digest)]
        assert sender.decided_through == 1
        sender.decide(2, half(2).digest, Verdict.COMMIT)
        assert sender.wait_until_decided(2).next_offset == 2


def test_a_newer_producer_fences_the_older(broker: RunningBroker) -> None:
    with producer(broker, "older") as older, producer(broker, "newer") as newer:
        older.connect(0, 0)
        older.send_half(half(1))
        older.wait_until_persisted(1)
        newer.connect(0, 0, take_over=True)
        with pytest.raises(Fenced, match="newer has taken over"):
            older.wait_until_decided(1, timeout_s=30)
        for call in (
            lambda: older.send_half(half(2)),
            lambda: older.decide(1, half(1).digest, Verdict.COMMIT),
            lambda: older.wait_until_persisted(1),
            older.take_reviews,
        ):
            with pytest.raises(Fenced):
                call()
        newer.decide(1, half(1).digest, Verdict.COMMIT)
        assert newer.wait_until_decided(1).next_offset == 1
        assert business_status(broker.address).producer == "newer"
    eventually(lambda: business_status(broker.address).producer == "")


def test_an_undecided_half_message_is_reviewed_until_it_is_answered(start_broker: StartBroker) -> None:
    broker = start_broker(review_after_s=0.1)
    with producer(broker) as sender:
        sender.connect(0, 0)
        sender.send_half(half(1))
        reviews = eventually(sender.take_reviews)
        assert [(ref.batch_no, ref.digest) for ref in reviews] == [(1, half(1).digest)]
        sender.decide(1, half(1).digest, Verdict.UNKNOWN)
        assert eventually(sender.take_reviews)[0].batch_no == 1
        sender.decide(1, half(1).digest, Verdict.COMMIT)
        assert sender.wait_until_decided(1).next_offset == 1
        assert business_status(broker.address).counters["reviews_sent"] >= 2


def test_reviews_are_not_counted_without_a_producer(start_broker: StartBroker) -> None:
    broker = start_broker(review_after_s=0.1)
    with producer(broker) as sender:
        sender.connect(0, 0)
        sender.send_half(half(1))
        sender.wait_until_persisted(1)
    eventually(lambda: not business_status(broker.address).producer)  # a review may be on its way until then
    counted = business_status(broker.address).halves[0].reviews
    threading.Event().wait(1.0)
    assert [ref.reviews for ref in business_status(broker.address).halves] == [counted]


def test_an_operator_decides_and_the_producer_must_reconnect(broker: RunningBroker) -> None:
    with producer(broker) as sender, AdminClient(broker.address) as admin:
        sender.connect(0, 0)
        sender.send_half(half(1))
        sender.wait_until_persisted(1)
        assert admin.decide(BUSINESS, 1, Verdict.COMMIT).next_offset == 1
        with pytest.raises(Unavailable, match="an operator has decided"):
            sender.wait_until_decided(1, 30)
        with pytest.raises(ProtocolError):
            admin.decide(BUSINESS, 2, Verdict.UNKNOWN)


def test_a_half_message_that_crosses_an_operators_decision_fences_no_producer(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided, answer, decide = threading.Event(), Future[Any](), Producers.operator_decide

    def delay_commit(*arguments: Any) -> Future[Any]:
        decide(*arguments).add_done_callback(lambda _: decided.set())
        return answer

    monkeypatch.setattr(Producers, "operator_decide", delay_commit)
    with producer(broker) as sender, AdminClient(broker.address) as admin:
        sender.connect(0, 0)
        sender.send_half(half(1))
        sender.wait_until_persisted(1)
        operator = threading.Thread(target=admin.decide, args=(BUSINESS, 1, Verdict.COMMIT))
        operator.start()
        assert decided.wait(60)
        sender.send_half(half(2))
        with pytest.raises(Unavailable, match="an operator has decided"):
            sender.wait_until_persisted(2, 30)
        answer.set_result(broker_pb2.Decided(verdict=broker_pb2.COMMIT, batch_no=1, next_offset=1))
        operator.join(30)


def test_an_answer_that_no_caller_waits_for_is_sent_with_the_next(
    broker: RunningBroker, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a process an answer costs no frame, so it is sent at once."""
    is_direct = transport == "in process"
    frames: list[broker_pb2.BrokerFrame] = []
    take_frame = Producer.on_frame

    def keep_frame(self: Producer, frame: broker_pb2.BrokerFrame) -> None:
        frames.append(frame)
        take_frame(self, frame)

    monkeypatch.setattr(Producer, "on_frame", keep_frame)
    monkeypatch.setattr(producer_stream, "ANSWER_WITHIN_S", 60.0)  # only the next frame carries the answer
    with producer(broker) as sender, Subscriber(broker.address, BUSINESS, "g", credit_bytes=1 << 20) as reader:
        sender.connect(0, 0)
        reader.open(0, 0)
        for n in range(1, 11):
            sender.send_half(half(n))
            sender.wait_until_persisted(n)
            sender.decide(n, half(n).digest, Verdict.COMMIT, can_wait=True)
            take(reader, n)
        if is_direct:
            eventually(lambda: sender.decided_through == 10)
        assert sender.decided_through == (10 if is_direct else 9)
        assert len(frames) == (21 if is_direct else 11)  # InitAck, one frame for each half message and each decision
        monkeypatch.setattr(producer_stream, "ANSWER_WITHIN_S", 0.01)
        sender.send_half(half(11))
        sender.wait_until_persisted(11)
        assert sender.decided_through == 10


def test_an_answer_that_no_caller_waits_for_is_sent_after_a_while(broker: RunningBroker) -> None:
    with producer(broker) as sender:
        sender.connect(0, 0)
        sender.send_half(half(1))
        sender.wait_until_persisted(1)
        sender.decide(1, half(1).digest, Verdict.COMMIT, can_wait=True)
        assert sender.wait_until_decided(1).next_offset == 1
        sender.send_half(half(2))
        sender.wait_until_persisted(2)
        sender.decide(2, half(2).digest, Verdict.ROLLBACK, can_wait=True)
        assert sender.wait_until_decided(2).verdict == broker_pb2.ROLLBACK
