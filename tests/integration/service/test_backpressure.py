"""Producers that are too fast or leave, and a broker that is full, slow or gone, over a real socket."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest

from tests.integration.service.conftest import StartBroker, each_transport, producer
from tests.support.brokers.servers import BUSINESS, business_status, commit, traffic
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.broker.pipeline.producer_commands import Producers
from venus.broker.service.process import RunningBroker
from venus.broker.service.unsaved import UnsavedBytes
from venus.config import LimitsSettings
from venus.errors import Overloaded, StoreFull, Unavailable, VenusError
from venus.flow.precedence import SMALL_BYTES
from venus.flow.write_queue import START_BYTES
from venus.model import Verdict
from venus.rpc import duplex
from venus.rpc.channel import FRAME_BYTES
from venus.rpc.producer import Producer
from venus.wire import broker_pb2

pytestmark = [pytest.mark.integration, each_transport]


def test_a_full_store_throttles_and_nothing_is_lost(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = iter(range(3))
    accept = Producers.take_halves

    def halves(
        self: Producers, business: str, epoch: int, messages: list[broker_pb2.Half], *, wakes: bool = True
    ) -> Future[Any]:
        if next(refusals, None) is None:
            return accept(self, business, epoch, messages, wakes=wakes)
        refused: Future[Any] = Future()
        refused.set_exception(StoreFull("no space"))
        return refused

    monkeypatch.setattr(Producers, "take_halves", halves)
    monkeypatch.setattr("venus.broker.service.traffic.STORE_FULL_RETRY_MS", 20)
    with producer(broker) as sender:
        sender.connect(0, 0)
        for n in range(1, 101):
            sender.send_half(half(n))
        assert commit(sender, [half(101)]).next_offset == 101
        assert sender.throttles >= 1
    assert business_status(broker.address).counters["throttles"] >= 1


def gauge(broker: RunningBroker, name: str) -> float:
    (found,) = (gauge.value for gauge in traffic(broker.address).gauges if gauge.name == name)
    return found


#: Number of acknowledged frames after which a frame may have its maximum size.
GROWN = 5


class SlowDisk:
    """Holds half messages back until the test releases it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._accept, self._lock, self._open = Producers.take_halves, threading.Lock(), False
        self._held: list[tuple[Future[Any], tuple[Any, ...]]] = []
        monkeypatch.setattr(Producers, "take_halves", lambda *arguments, **_: self._halves(*arguments))

    @property
    def nbytes(self) -> int:
        return sum(len(message.body) for _, arguments in self._held for message in arguments[-1])

    def count(self, business: str) -> int:
        return sum(arguments[1] == business for _, arguments in self._held)

    def numbers(self, business: str) -> list[int]:
        return [half.batch_no for _, found in self._held if found[1] == business for half in found[-1]]

    def _halves(self, *arguments: Any) -> Future[Any]:
        with self._lock:
            if self._open:
                return self._accept(*arguments)
            answer: Future[Any] = Future()
            self._held.append((answer, arguments))
            return answer

    def hold(self) -> None:
        """Hold back the half messages that arrive from now on."""
        with self._lock:
            self._open, self._held = False, []

    def release(self) -> None:
        """Accept the half messages that were held back, and all later ones."""
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
        disk.release()
        for n in range(1, GROWN + 1):  # small frames wait to be sent together
            sender.send_half(half(n))
            sender.wait_until_persisted(n)
        disk.hold()
        for n in range(GROWN + 1, GROWN + 33):
            sender.send_half(half(n, payload="x" * FRAME_BYTES))
        alone = limit // 2  # the other half of the buffer is for the next sender
        eventually(lambda: disk.nbytes >= alone)
        threading.Event().wait(0.5)
        assert alone <= disk.nbytes <= alone + 2 * FRAME_BYTES
        with Producer(broker.address, "other", "test", window_bytes_max=1 << 20) as other:
            other.connect(0, 0)
            other.send_half(half(1))
            eventually(lambda: disk.count("other") == 1)
            disk.release()
        sender.wait_until_persisted(GROWN + 32)
        found = [b for b in traffic(broker.address).brakes if b.brake == "memory"]
        assert [(b.business, b.who) for b in found] == [(BUSINESS, "test")]


def test_all_businesses_share_one_window_and_a_small_one_does_not_wait_for_it(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    # so that a slow machine does not refuse half messages that have waited long
    broker = start_broker(buffer_bytes_max=32 << 20, limits=LimitsSettings(slow_request_ms=60_000))
    with ExitStack() as streams:
        senders = []
        for n in range(10):
            sender = streams.enter_context(Producer(broker.address, f"b{n}", "test", window_bytes_max=8 << 20))
            sender.connect(0, 0)
            sender.send_half(half(1, payload="x" * FRAME_BYTES))
            senders.append(sender)
        eventually(lambda: gauge(broker, "waiting for a turn") == 7)
        assert 2 * FRAME_BYTES < disk.nbytes < START_BYTES
        with Producer(broker.address, "small", "test", window_bytes_max=1 << 20) as small:
            small.connect(0, 0)
            small.send_half(half(1))
            eventually(lambda: disk.count("small") == 1)
            disk.release()
            small.wait_until_persisted(1)
        for sender in senders:
            sender.wait_until_persisted(1)
            assert sender.throttles == 0, "no sender was refused"
        braked = {b.business for b in traffic(broker.address).brakes if b.brake == "turn"}
    assert len(braked) == 7
    eventually(lambda: (gauge(broker, "under way to the disk"), gauge(broker, "waiting for a turn")) == (0, 0))


def test_decisions_do_not_wait_for_the_half_messages_in_their_frame(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker()
    stopped, turn = threading.Event(), UnsavedBytes.wait_for_slot

    async def hold_bytes(self: UnsavedBytes, nbytes: int) -> Any:
        stopped.set()
        while disk_is_busy.is_set():
            await asyncio.sleep(0.01)
        return await turn(self, nbytes)

    disk_is_busy = threading.Event()
    with producer(broker) as sender:
        epoch = sender.connect(0, 0).epoch
        sender.send_half(half(1))
        sender.wait_until_persisted(1)
        monkeypatch.setattr(UnsavedBytes, "wait_for_slot", hold_bytes)
        disk_is_busy.set()
        with sender._lock:  # so that both are sent in one frame
            sender._outgoing.add_half(half(2))
            sender._outgoing.add_decision(
                broker_pb2.Decision(epoch=epoch, batch_no=1, digest=half(1).digest, verdict=broker_pb2.COMMIT)
            )
            sender._wake()
        assert sender.wait_until_decided(1).next_offset == 1
        assert stopped.wait(30)
        assert sender.persisted_through == 1
        disk_is_busy.clear()
        sender.wait_until_persisted(2)


def test_the_window_of_a_producer_is_limited(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    with producer(broker, window_bytes_max=1000) as sender:
        sender.connect(0, 0)
        sender.send_half(half(1, payload="x" * 2000))
        with pytest.raises(Overloaded, match="persisting anything"):
            sender.send_half(half(2), timeout_s=0.1)
        disk.release()
        sender.send_half(half(2))
        sender.wait_until_persisted(2)


def test_close_ends_all_threads_and_a_closed_producer_reports_it(broker: RunningBroker) -> None:
    def client_threads() -> set[str]:
        return {t.name for t in threading.enumerate() if t.name.startswith(("venus-producer", "Thread-"))}

    before = client_threads()
    for _ in range(3):
        sender = producer(broker)
        sender.connect(0, 0)
        sender.send_half(half(1))
        sender.close()
        with pytest.raises(VenusError):
            sender.send_half(half(2))
    eventually(lambda: client_threads() <= before)


def test_close_sends_what_is_queued(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplex, "CLOSE_TIMEOUT_S", 60.0)
    with producer(broker) as sender:
        sender.connect(0, 0)
        for n in range(1, 101):
            sender.send_half(half(n))
    eventually(lambda: len(business_status(broker.address).halves) == 100)


def test_every_call_reports_a_stopped_broker(start_broker: StartBroker) -> None:
    broker = start_broker()
    with producer(broker) as sender:
        sender.connect(0, 0)
        broker.stop()
        for call in (
            lambda: sender.wait_until_persisted(1, 30),
            lambda: sender.send_half(half(1)),
            lambda: sender.decide(1, 1, Verdict.COMMIT),
            lambda: sender.wait_until_decided(1),
            sender.take_reviews,
        ):
            with pytest.raises(Unavailable):
                call()


def test_waiting_for_an_answer_has_a_limit(broker: RunningBroker) -> None:
    with producer(broker) as sender:
        sender.connect(0, 0)
        with pytest.raises(Unavailable, match="not acknowledged after"):
            sender.wait_until_persisted(1, timeout_s=0.05)
        with pytest.raises(Unavailable, match="not decided after"):
            sender.wait_until_decided(1, timeout_s=0.05)


def test_small_frames_are_sent_at_once_when_the_stream_ends(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    monkeypatch.setattr(duplex, "CLOSE_TIMEOUT_S", 60.0)
    broker = start_broker()
    with producer(broker) as sender:
        sender.connect(0, 0)
        for n in range(1, 4):
            sender.send_half(half(n, payload="x" * SMALL_BYTES))
        eventually(lambda: disk.count(BUSINESS) == 1)
        threading.Event().wait(0.2)
        assert disk.count(BUSINESS) == 1, "the others wait for it"
        closing = threading.Thread(target=sender.close)
        closing.start()
        eventually(lambda: disk.numbers(BUSINESS) == [1, 2, 3])
        disk.release()
        closing.join(60)
        assert not closing.is_alive()
