"""Producers over a real socket: half messages, decisions, reviews, fencing, resending, back-pressure."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Literal

import grpc
import pytest

from tests.integration.service.conftest import StartBroker
from tests.support.batches import half
from tests.support.brokers import BUSINESS, business_status, commit, data, fill, take, wait_for
from venus.broker.pipeline.producers import Producers
from venus.broker.service.ingest import MISMATCHES_MAX
from venus.broker.service.process import RunningBroker
from venus.errors import DigestMismatch, Fenced, Overloaded, ProtocolError, StoreFull, Unavailable, VenusError
from venus.model import Verdict
from venus.rpc.admin import Admin
from venus.rpc.channel import FRAME_BYTES, open_channel
from venus.rpc.errors import from_rpc_error
from venus.rpc.producer import Producer
from venus.rpc.sealed import produce
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration


def producer(broker: RunningBroker, name: str = "test", **options: Any) -> Producer:
    return Producer(broker.address, BUSINESS, name, **{"window_bytes_max": 8 << 20, **options})


class RawStream:
    """A producer's stream without the client's own resending."""

    def __init__(self, address: str) -> None:
        self._channel = open_channel(address)
        self._frames: SimpleQueue[broker_pb2.ProducerFrame | None] = SimpleQueue()
        self.answers = produce(self._channel, iter(self._frames.get, None))

    def send(self, **fields: Any) -> None:
        self._frames.put(broker_pb2.ProducerFrame(**fields))

    def init(self) -> broker_pb2.InitAck:
        self.send(init=broker_pb2.Init(business=BUSINESS, producer="raw"))
        return next(self.answers).init_ack

    def until(self, field: Literal["resend", "throttle"]) -> broker_pb2.BrokerFrame:
        return next(frame for frame in self.answers if frame.HasField(field))

    def error(self) -> VenusError:
        with pytest.raises(grpc.RpcError) as caught:
            for _ in self.answers:
                pass
        return from_rpc_error(caught.value)

    def __enter__(self) -> RawStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._frames.put(None)
        self._channel.close()


def damaged(batch_no: int) -> broker_pb2.Half:
    message = half(batch_no)
    message.digest ^= 1
    return message


def test_committed_half_messages_are_delivered_untouched(broker: RunningBroker) -> None:
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
        sender.wait_persisted(2)
        assert len(take(reader, 1)) == 1
        assert reader.increments(0.1) == []
        sender.decide(2, half(2).digest, Verdict.COMMIT)
        assert len(take(reader, 2)) == 1


def test_a_rolled_back_number_is_used_again(broker: RunningBroker) -> None:
    with (
        producer(broker) as sender,
        Subscriber(broker.address, BUSINESS, "g", credit_bytes=1 << 20) as reader,
    ):
        sender.connect(0, 0)
        for n in (1, 2, 3):
            sender.send_half(half(n))
        sender.wait_persisted(3)
        sender.decide(1, half(1).digest, Verdict.COMMIT)
        sender.decide(2, half(2).digest, Verdict.ROLLBACK)
        assert sender.wait_decided(2).verdict == broker_pb2.ROLLBACK
        other = half(2, payload="second try ")
        assert commit(sender, [other]).verdict == broker_pb2.COMMIT
        reader.open(0, 0)
        assert data(take(reader, 2)) == [half(1).body, other.body]


def test_a_number_is_not_used_again_before_its_rollback_is_answered(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer: Future[Any] = Future()
    decide, arrived = Producers.decide, threading.Event()

    def held(*arguments: Any) -> Future[Any]:
        decide(*arguments).add_done_callback(lambda _: arrived.set())
        return answer

    with producer(broker) as sender:
        sender.connect(0, 0)
        sender.send_half(half(1))
        sender.wait_persisted(1)
        monkeypatch.setattr(Producers, "decide", held)
        sender.decide(1, half(1).digest, Verdict.ROLLBACK)
        assert arrived.wait(30)
        with pytest.raises(Overloaded):
            sender.send_half(half(1, payload="again"), timeout_s=0.1)
        monkeypatch.undo()
        answer.set_result(broker_pb2.Decided(verdict=broker_pb2.ROLLBACK, batch_no=1))
        assert commit(sender, [half(1, payload="again")]).next_offset == 1


def test_answers_to_small_batches_are_coalesced(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[int] = []
    take_frame = Producer._take

    def counted(self: Producer, frame: broker_pb2.BrokerFrame) -> None:
        frames.append(1)
        take_frame(self, frame)

    monkeypatch.setattr(Producer, "_take", counted)
    with producer(broker) as sender:
        sender.connect(0, 0)
        commit(sender, [half(n) for n in range(1, 2001)])
    assert len(frames) < 1000


def test_the_next_connection_learns_what_is_undecided(broker: RunningBroker) -> None:
    with producer(broker) as sender:
        first = sender.connect(0, 0)
        commit(sender, [half(1)])
        sender.send_half(half(2))
        sender.wait_persisted(2)
    with producer(broker) as sender:
        ack = sender.connect(0, 0)
        assert ack.epoch > first.epoch
        assert (ack.last_batch, ack.next_offset) == (1, 1)
        assert [(ref.batch_no, ref.digest) for ref in ack.undecided] == [(2, half(2).digest)]
        assert sender.decided_through == 1
        sender.decide(2, half(2).digest, Verdict.COMMIT)
        assert sender.wait_decided(2).next_offset == 2


def test_a_newer_producer_fences_the_older(broker: RunningBroker) -> None:
    with producer(broker, "older") as older, producer(broker, "newer") as newer:
        older.connect(0, 0)
        older.send_half(half(1))
        older.wait_persisted(1)
        newer.connect(0, 0, take_over=True)
        with pytest.raises(Fenced, match="newer has taken over"):
            older.wait_decided(1, timeout_s=30)
        for call in (
            lambda: older.send_half(half(2)),
            lambda: older.decide(1, half(1).digest, Verdict.COMMIT),
            lambda: older.wait_persisted(1),
            older.take_reviews,
        ):
            with pytest.raises(Fenced):
                call()
        newer.decide(1, half(1).digest, Verdict.COMMIT)
        assert newer.wait_decided(1).next_offset == 1
        assert business_status(broker.address).producer == "newer"
    wait_for(lambda: business_status(broker.address).producer == "")


def test_an_undecided_half_message_is_reviewed_until_it_is_answered(start_broker: StartBroker) -> None:
    broker = start_broker(review_after_s=0.1)
    with producer(broker) as sender:
        sender.connect(0, 0)
        sender.send_half(half(1))
        reviews = wait_for(sender.take_reviews)
        assert [(ref.batch_no, ref.digest) for ref in reviews] == [(1, half(1).digest)]
        sender.decide(1, half(1).digest, Verdict.UNKNOWN)
        assert wait_for(sender.take_reviews)[0].batch_no == 1
        sender.decide(1, half(1).digest, Verdict.COMMIT)
        assert sender.wait_decided(1).next_offset == 1
        assert business_status(broker.address).counters["reviews_sent"] >= 2


def test_without_a_producer_no_review_is_counted(start_broker: StartBroker) -> None:
    broker = start_broker(review_after_s=0.1)
    with producer(broker) as sender:
        sender.connect(0, 0)
        sender.send_half(half(1))
        sender.wait_persisted(1)
    counted = business_status(broker.address).halves[0].reviews
    threading.Event().wait(1.0)
    assert [ref.reviews for ref in business_status(broker.address).halves] == [counted]


def test_an_operator_decides_and_the_producer_has_to_connect_again(broker: RunningBroker) -> None:
    with producer(broker) as sender, Admin(broker.address) as admin:
        sender.connect(0, 0)
        sender.send_half(half(1))
        sender.wait_persisted(1)
        assert admin.decide(BUSINESS, 1, Verdict.COMMIT).next_offset == 1
        with pytest.raises(Unavailable, match="an operator has decided"):
            sender.wait_decided(1, 30)
        with pytest.raises(ProtocolError):
            admin.decide(BUSINESS, 2, Verdict.UNKNOWN)


def test_a_half_message_that_crosses_an_operators_decision_fences_nobody(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided, answer, decide = threading.Event(), Future[Any](), Producers.operator_decide

    def slow(*arguments: Any) -> Future[Any]:
        decide(*arguments).add_done_callback(lambda _: decided.set())
        return answer

    monkeypatch.setattr(Producers, "operator_decide", slow)
    with producer(broker) as sender, Admin(broker.address) as admin:
        sender.connect(0, 0)
        sender.send_half(half(1))
        sender.wait_persisted(1)
        operator = threading.Thread(target=admin.decide, args=(BUSINESS, 1, Verdict.COMMIT))
        operator.start()
        assert decided.wait(30)
        sender.send_half(half(2))
        with pytest.raises(Unavailable, match="an operator has decided"):
            sender.wait_persisted(2, 30)
        answer.set_result(broker_pb2.Decided(verdict=broker_pb2.COMMIT, batch_no=1, next_offset=1))
        operator.join(30)


def test_a_gap_is_asked_for_again(broker: RunningBroker) -> None:
    with RawStream(broker.address) as raw:
        raw.init()
        raw.send(halves=[half(1)])
        raw.send(halves=[half(3)])
        assert raw.until("resend").resend.batch_no == 2
        raw.send(halves=[half(3)])  # still on its way when the broker asked: not a second gap
        raw.send(halves=[half(2), half(3)])
        assert next(frame for frame in raw.answers if frame.halves_through == 3).resend.batch_no == 0


def test_a_damaged_half_message_is_asked_for_again_and_what_follows_it_waits(broker: RunningBroker) -> None:
    with RawStream(broker.address) as raw:
        raw.init()
        raw.send(halves=[half(1), damaged(2), half(3)])
        assert raw.until("resend").resend.batch_no == 2
        raw.send(halves=[half(4)])
        raw.send(halves=[half(2), half(3), half(4)])
        assert any(frame.halves_through == 4 for frame in raw.answers)
        counters = business_status(broker.address).counters
        assert counters["digest_mismatches"] == 1
        assert counters["resends"] == 1


def test_three_damaged_half_messages_in_a_row_end_the_stream_and_raise_an_alarm(broker: RunningBroker) -> None:
    fill(broker.address, 1, 1)
    with RawStream(broker.address) as raw:
        raw.init()
        for _ in range(MISMATCHES_MAX):
            raw.send(halves=[damaged(2)])
        error = raw.error()
    assert isinstance(error, DigestMismatch)
    assert "network" in error.hint
    status = business_status(broker.address)
    assert status.counters["digest_mismatches"] == MISMATCHES_MAX
    assert any("damaged" in alarm for alarm in status.alarms)
    fill(broker.address, 2, 2)
    assert business_status(broker.address).alarms == []


def test_the_alarm_of_a_producer_that_never_shipped_anything_whole_is_the_brokers(broker: RunningBroker) -> None:
    with RawStream(broker.address) as raw:
        raw.init()
        for _ in range(MISMATCHES_MAX):
            raw.send(halves=[damaged(1)])
        raw.error()
    with Admin(broker.address) as admin:
        wait_for(lambda: not admin.status().businesses)
        (alarm,) = admin.status().alarms
        assert alarm.startswith(f"{BUSINESS}: ")
        assert "damaged" in alarm
        fill(broker.address, 1, 1)
        assert not admin.status().alarms


@pytest.mark.parametrize("fields", [{}, {"init": broker_pb2.Init()}, {"halves": [half(1)]}])
def test_a_stream_must_start_with_init(broker: RunningBroker, fields: dict[str, Any]) -> None:
    with RawStream(broker.address) as raw:
        raw.send(**fields)
        assert isinstance(raw.error(), ProtocolError)


def test_a_second_init_is_refused(broker: RunningBroker) -> None:
    with RawStream(broker.address) as raw:
        raw.init()
        raw.send(init=broker_pb2.Init(business=BUSINESS))
        assert isinstance(raw.error(), ProtocolError)


def test_a_full_store_throttles_and_nothing_is_lost(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = iter(range(3))
    accept = Producers.halves

    def halves(self: Producers, business: str, epoch: int, messages: list[broker_pb2.Half]) -> Future[Any]:
        if next(refusals, None) is None:
            return accept(self, business, epoch, messages)
        refused: Future[Any] = Future()
        refused.set_exception(StoreFull("no space"))
        return refused

    monkeypatch.setattr(Producers, "halves", halves)
    monkeypatch.setattr("venus.broker.service.ingest.STORE_FULL_RETRY_MS", 20)
    with producer(broker) as sender:
        sender.connect(0, 0)
        for n in range(1, 101):
            sender.send_half(half(n))
        assert commit(sender, [half(101)]).next_offset == 101
        assert sender.throttles >= 1
    assert business_status(broker.address).counters["throttles"] >= 1


class SlowDisk:
    """Holds half messages back until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._accept, self._lock, self._open = Producers.halves, threading.Lock(), False
        self._held: list[tuple[Future[Any], tuple[Any, ...]]] = []
        monkeypatch.setattr(Producers, "halves", lambda *arguments: self._halves(*arguments))

    @property
    def nbytes(self) -> int:
        return sum(len(message.body) for _, arguments in self._held for message in arguments[-1])

    def _halves(self, *arguments: Any) -> Future[Any]:
        with self._lock:
            if self._open:
                return self._accept(*arguments)
            answer: Future[Any] = Future()
            self._held.append((answer, arguments))
            return answer

    def release(self) -> None:
        with self._lock:
            self._open = True
            for answer, arguments in self._held:
                answer.set_result(self._accept(*arguments).result(30))


def test_the_stream_is_not_read_while_the_buffer_is_full(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, disk = 4 << 20, SlowDisk(monkeypatch)
    broker = start_broker(buffer_bytes_max=limit)
    with producer(broker, window_bytes_max=64 << 20) as sender:
        sender.connect(0, 0)
        for n in range(1, 33):
            sender.send_half(half(n, payload="x" * FRAME_BYTES))
        wait_for(lambda: disk.nbytes >= limit)
        threading.Event().wait(0.5)
        assert limit <= disk.nbytes <= limit + 2 * FRAME_BYTES
        disk.release()
        sender.wait_persisted(32)


def test_the_window_of_a_producer_is_bounded(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    with producer(broker, window_bytes_max=1000) as sender:
        sender.connect(0, 0)
        sender.send_half(half(1, payload="x" * 2000))
        with pytest.raises(Overloaded, match="persisting anything"):
            sender.send_half(half(2), timeout_s=0.1)
        disk.release()
        sender.send_half(half(2))
        sender.wait_persisted(2)


def test_close_leaves_no_thread_and_a_closed_producer_says_so(broker: RunningBroker) -> None:
    def ours() -> set[str]:
        return {t.name for t in threading.enumerate() if t.name.startswith(("venus-producer", "Thread-"))}

    before = ours()
    for _ in range(3):
        sender = producer(broker)
        sender.connect(0, 0)
        sender.send_half(half(1))
        sender.close()
        with pytest.raises(VenusError):
            sender.send_half(half(2))
    wait_for(lambda: ours() <= before)


def test_close_sends_what_is_queued(broker: RunningBroker) -> None:
    with producer(broker) as sender:
        sender.connect(0, 0)
        for n in range(1, 101):
            sender.send_half(half(n))
    assert len(business_status(broker.address).halves) == 100


def test_a_stopped_broker_is_said_by_every_call(start_broker: StartBroker) -> None:
    broker = start_broker()
    with producer(broker) as sender:
        sender.connect(0, 0)
        broker.stop()
        for call in (
            lambda: sender.wait_persisted(1, 30),
            lambda: sender.send_half(half(1)),
            lambda: sender.decide(1, 1, Verdict.COMMIT),
            lambda: sender.wait_decided(1),
            sender.take_reviews,
        ):
            with pytest.raises(Unavailable):
                call()


def test_a_wait_ends(broker: RunningBroker) -> None:
    with producer(broker) as sender:
        sender.connect(0, 0)
        with pytest.raises(Unavailable, match="not acknowledged after"):
            sender.wait_persisted(1, timeout_s=0.05)
        with pytest.raises(Unavailable, match="not decided after"):
            sender.wait_decided(1, timeout_s=0.05)
