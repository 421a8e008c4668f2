"""Producers and consumers in the broker's process use no connection, and the same protocol as over gRPC.

Behaviour that all transports share is tested in test_ingest.py, test_delivery.py and similar files, over each of them.
"""

from __future__ import annotations

import asyncio
import threading
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.integration.service.conftest import StartBroker, each_transport, is_probing, producer
from tests.support.brokers.consumers import subscriber
from tests.support.brokers.servers import BUSINESS, commit, fill, settings, take
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.broker.pipeline.producer_commands import Producers
from venus.broker.service import in_process as service
from venus.broker.service import process
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.config import LimitsSettings
from venus.errors import DigestMismatch, Fenced, Unavailable
from venus.flow.precedence import SMALL_BYTES
from venus.model import Verdict
from venus.rpc import connection, in_process
from venus.rpc.channel import open_channel
from venus.rpc.compression import LARGE_BYTES, BodyCompressor, cost
from venus.rpc.event_loop import LoopBridge
from venus.rpc.producer import Producer
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration

IN_PROCESS = pytest.mark.parametrize("transport", ["in process"], indirect=True)


@IN_PROCESS
def test_no_connection_is_opened_and_nothing_is_compressed(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        if is_probing():
            return open_channel(*args, **options)
        raise AssertionError("a stream of this process has opened a connection")

    monkeypatch.setattr(connection, "open_channel", refuse)
    monkeypatch.setattr(BodyCompressor, "_compress", refuse)
    large = half(2, payload="x" * (LARGE_BYTES + 1))
    with producer(broker) as sender, subscriber(broker, credit_bytes=16 << 20) as reader:
        sender.connect(0, 0)
        reader.open(0, 0)
        commit(sender, [half(1)])
        commit(sender, [large])
        assert [increment.body for increment in take(reader, 2)] == [half(1).body, large.body]
        assert sender.address == reader.address == broker.address


@IN_PROCESS
def test_streams_need_no_thread_of_their_own(broker: RunningBroker) -> None:
    with producer(broker) as sender, subscriber(broker) as reader:
        sender.connect(0, 0)
        reader.open(0, 0)
        commit(sender, [half(1)])
        take(reader, 1)
        names = {thread.name for thread in threading.enumerate()}
        assert not {name for name in names if name in (sender.thread_name, reader.thread_name)}


def test_a_broker_is_used_in_process_only_while_it_serves(tmp_path: Path) -> None:
    chosen = settings(tmp_path / "broker")
    running = start_in_thread(chosen, in_process=True)
    assert in_process.find_broker(chosen.broker.reach) is not None
    found = in_process.find_broker(running.address)
    running.stop()
    assert in_process.find_broker(chosen.broker.reach) is None

    with pytest.raises(Unavailable):
        Producer(running.address, BUSINESS, "p", window_bytes_max=1 << 20)
    assert found is not None
    with in_process.register_broker(running.address, found):
        late = Producer(running.address, BUSINESS, "p", window_bytes_max=1 << 20)
        with late, pytest.raises(Unavailable, match="is starting or stopping"):
            late.connect(0, 0)


@each_transport
def test_a_consumer_that_reads_nothing_is_sent_no_more_than_its_credit(broker: RunningBroker) -> None:
    halves = fill(broker.address, 1, 30)
    each = cost(broker_pb2.Increment(body=halves[0].body))
    with subscriber(broker, credit_bytes=3 * each + 10) as reader:
        reader.open(0, 0)
        eventually(lambda: len(reader._arrived) == 3)
        threading.Event().wait(0.3)
        assert len(reader._arrived) == 3
        assert len(take(reader, 30)) == 30


@each_transport
def test_a_decision_of_an_older_epoch_is_fenced(broker: RunningBroker) -> None:
    with producer(broker) as sender:
        epoch = sender.connect(0, 0).epoch
        sender.send_half(half(1))
        sender.wait_until_persisted(1)
        assert sender._ack is not None
        sender._ack.epoch = epoch - 1
        sender.decide(1, half(1).digest, Verdict.COMMIT)
        with pytest.raises(Fenced):
            sender.wait_until_decided(1, 30)


@IN_PROCESS
def test_a_stream_whose_handler_hangs_is_cancelled_when_its_client_closes(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost connection would end the call; a client in this process must end it as well."""
    hangs, cancelled = threading.Event(), threading.Event()
    read = service.InProcessContext.read

    async def hang(self: service.InProcessContext) -> Any:
        frame = await read(self)
        if frame is grpc.aio.EOF:
            hangs.set()
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                cancelled.set()
                raise
        return frame

    close = in_process.InProcessStream.close

    def close_hanging_stream(self: Any, _: float) -> None:
        """Close a stream whose handler hangs until the time for an orderly end is over."""
        assert hangs.wait(60)
        close(self, 0.2)

    monkeypatch.setattr(service.InProcessContext, "read", hang)
    monkeypatch.setattr(in_process.InProcessStream, "close", close_hanging_stream)
    sender = producer(broker)
    sender.connect(0, 0)
    sender.close()
    assert cancelled.wait(60)
    monkeypatch.undo()
    with producer(broker) as another:
        assert another.connect(0, 0).epoch > 0


@IN_PROCESS
def test_a_stopping_broker_ends_a_stream_that_does_not_end_itself(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "STOP_GRACE_S", 0.2)
    monkeypatch.setattr("venus.broker.service.ingest.IngestService.end_all", lambda _: None)
    broker = start_broker()
    with producer(broker) as sender:
        sender.connect(0, 0)
        broker.stop()
        with pytest.raises(Unavailable):
            sender.wait_until_persisted(1, 30)


def test_an_error_that_ends_the_broker_while_it_serves_is_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise capture and apply in the same process would try to reach it for ever."""
    fails, fatal = threading.Event(), list[BaseException]()

    async def serve(_: Any, __: Any, ___: Any, ready: Any, *____: Any, **_____: Any) -> None:
        ready(process.Addresses(grpc="127.0.0.1:1", http=""))
        await asyncio.get_running_loop().run_in_executor(None, fails.wait)
        raise RuntimeError("broken")

    monkeypatch.setattr(process, "run", serve)
    running = start_in_thread(settings(tmp_path / "broker"), on_fatal=fatal.append)
    assert not fatal
    fails.set()
    eventually(lambda: fatal)
    assert str(fatal[0]) == "broken"
    running.stop()


@IN_PROCESS
def test_a_client_that_refuses_a_frame_leaves_no_stream_in_the_broker(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker.address, 1, 1)
    server: Any = in_process.find_broker(broker.address)

    def refuse(*_: Any) -> None:
        raise DigestMismatch("damaged")

    with subscriber(broker) as reader:
        monkeypatch.setattr(reader, "on_frame", refuse)
        with pytest.raises(DigestMismatch, match="damaged"):
            reader.open(0, 0)
        eventually(lambda: not server._tasks)


@pytest.fixture
def record_wakeups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Add a number to a list each time that a call wakes the broker's event loop."""
    found: list[int] = []
    wake = LoopBridge._wake

    def record(self: LoopBridge) -> None:
        found.append(len(found))
        wake(self)

    monkeypatch.setattr(LoopBridge, "_wake", record)
    return found


@IN_PROCESS
def test_a_small_half_message_does_not_wake_the_event_loop(broker: RunningBroker, record_wakeups: list[int]) -> None:
    with producer(broker) as sender:
        sender.connect(0, 0)
        commit(sender, [half(1)])  # the first half message of a business also raises the epoch
        numbers, woken = count(2), set[bool]()

        def wakes_nothing() -> bool:
            """Send one half message; the broker's own work may wake the loop at the same time."""
            number = next(numbers)
            record_wakeups.clear()
            sender.send_half(half(number))
            sender.wait_until_persisted(number)
            found = not record_wakeups
            sender.decide(number, half(number).digest, Verdict.COMMIT)
            sender.wait_until_decided(number)
            woken.add(bool(record_wakeups))
            return found

        for _ in range(4):
            eventually(wakes_nothing)
        assert True in woken, "a commit wakes it"
        large = next(numbers)
        sender.send_half(half(large, payload="x" * SMALL_BYTES))
        sender.wait_until_persisted(large)
        assert sender.persisted_through == large


@IN_PROCESS
def test_concurrent_half_messages_keep_their_order(broker: RunningBroker) -> None:
    with producer(broker) as sender:
        sender.connect(0, 0)
        for number in range(1, 31):
            sender.send_half(half(number))
        sender.wait_until_persisted(30)
        assert sender.resends == 0
        sender.decide(30, half(30).digest, Verdict.COMMIT)
        assert sender.wait_until_decided(30).batch_no == 30


@IN_PROCESS
def test_a_half_message_is_acknowledged_even_if_the_commit_thread_is_faster_than_its_sender(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result exists before the sender adds its callback, and the sender holds its own lock."""
    take_halves = Producers.take_halves

    def take_and_wait(*arguments: Any, **_: Any) -> Any:
        answer = take_halves(*arguments)
        answer.exception(30)
        return answer

    with producer(broker) as sender:
        sender.connect(0, 0)
        monkeypatch.setattr(Producers, "take_halves", take_and_wait)
        sender.send_half(half(1))
        sender.wait_until_persisted(1, 30)


@IN_PROCESS
def test_a_commit_is_executed_although_its_producer_leaves_at_once(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("venus.rpc.duplex.CLOSE_TIMEOUT_S", 60.0)
    with producer(broker) as sender:
        sender.connect(0, 0)
        sender.send_half(half(1))
        sender.wait_until_persisted(1)
        sender.decide(1, half(1).digest, Verdict.COMMIT)
    with producer(broker) as another:
        assert another.connect(0, 1).last_batch == 1


@IN_PROCESS
def test_a_cancelled_stream_takes_no_more_frames(broker: RunningBroker) -> None:
    """Its business is released, and may be forgotten."""
    with producer(broker) as sender:
        ack = sender.connect(0, 0)
        commit(sender, [half(1)])
        assert isinstance(sender._stream, in_process.InProcessStream)
        served: Any = sender._stream._served
        served.cancel()
        eventually(lambda: served.task.done())
        assert not served.send_half(half(2))
        assert not served.commit(broker_pb2.Decision(epoch=ack.epoch, batch_no=1, verdict=broker_pb2.COMMIT))


@IN_PROCESS
def test_a_limit_applies_to_small_half_messages(start_broker: StartBroker) -> None:
    broker = start_broker(limits=LimitsSettings(rows_per_s=5.0, burst_s=1.0))
    with producer(broker) as sender:
        sender.connect(0, 0)
        for number in range(1, 5):
            commit(sender, [half(number, rows=4)])
        assert sender.throttles
