"""Small commits of `venus run` reach the broker's disk and the consumer without the event loop.

test_in_process.py tests the hand-over; engine/test_commands_in_client_threads.py tests that the two threads never run
at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.service.conftest import producer
from tests.support.brokers.consumers import subscriber
from tests.support.brokers.servers import commit, take
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.broker.pipeline.group_writer import GroupWriter
from venus.broker.service.consumer_stream import ConsumerStream
from venus.broker.service.in_process import InProcessContext
from venus.broker.service.process import RunningBroker
from venus.errors import DigestMismatch
from venus.rpc.compression import cost
from venus.rpc.event_loop import LoopBridge
from venus.rpc.in_process import find_broker
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("transport", ["in process"], indirect=True)]


class ThreadCounts:
    """Producer that commits consecutively numbered batches."""

    def __init__(self, sender: Producer) -> None:
        self._sender, self.newest = sender, 0

    def commit(self) -> None:
        """Commit the next batch."""
        self.newest += 1
        commit(self._sender, [half(self.newest)])


@pytest.fixture
def numbers(broker: RunningBroker) -> Iterator[ThreadCounts]:
    with producer(broker) as sender:
        sender.connect(0, 0)
        yield ThreadCounts(sender)


@pytest.fixture
def reader(broker: RunningBroker, numbers: ThreadCounts) -> Iterator[Subscriber]:
    with subscriber(broker) as found:
        found.open(0, 0)
        yield found


@pytest.fixture
def record_wakeups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the thread of each call that wakes the broker's event loop."""
    found: list[int] = []
    wake = LoopBridge._wake

    def record(self: LoopBridge) -> None:
        found.append(threading.get_ident())
        wake(self)

    monkeypatch.setattr(LoopBridge, "_wake", record)
    return found


def commit_until_direct(numbers: ThreadCounts, reader: Subscriber, wakes: list[int]) -> None:
    """Commit until the committing thread itself delivers, once the event loop is idle after earlier commits."""

    def is_direct() -> bool:
        wakes.clear()
        numbers.commit()
        take(reader, numbers.newest)
        return not wakes

    eventually(is_direct)


def test_the_senders_thread_writes_a_small_half_message(
    broker: RunningBroker, numbers: ThreadCounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    write = GroupWriter.write

    def record(self: GroupWriter, commands: Any) -> Any:
        if commands:
            threads.append(threading.get_ident())
        return write(self, commands)

    monkeypatch.setattr(GroupWriter, "write", record)

    def is_carried_out_here() -> bool:
        threads.clear()
        numbers.commit()
        return threading.get_ident() in threads

    eventually(is_carried_out_here)


def test_a_commit_reaches_the_consumer_without_the_event_loop(
    numbers: ThreadCounts, reader: Subscriber, record_wakeups: list[int]
) -> None:
    commit_until_direct(numbers, reader, record_wakeups)
    for _ in range(5):
        commit_until_direct(numbers, reader, record_wakeups)


def test_commits_keep_their_order_whichever_thread_sends_them(numbers: ThreadCounts, reader: Subscriber) -> None:
    """Acknowledgements and credit wake the event loop in between."""
    found: list[broker_pb2.Increment] = []
    for _ in range(300):
        numbers.commit()
        found += reader.increments(0.0)
        reader.acknowledge(reader.position)
    found += take(reader, numbers.newest)
    assert [increment.base_offset for increment in found] == list(range(numbers.newest))


def test_a_commit_waits_for_the_one_that_the_event_loop_is_sending(
    numbers: ThreadCounts, reader: Subscriber, record_wakeups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_until_direct(numbers, reader, record_wakeups)
    begun, may_continue = threading.Event(), threading.Event()
    send, write = ConsumerStream.send_at_once, InProcessContext.write

    async def write_late(self: InProcessContext, frame: Any) -> None:
        begun.set()
        while isinstance(frame, broker_pb2.DeliveryFrame) and not may_continue.is_set():
            await asyncio.sleep(0.005)
        await write(self, frame)

    monkeypatch.setattr(InProcessContext, "write", write_late)
    monkeypatch.setattr(ConsumerStream, "send_at_once", lambda *_: False)
    first = numbers.newest
    numbers.commit()
    assert begun.wait(60)
    monkeypatch.setattr(ConsumerStream, "send_at_once", send)
    numbers.commit()
    may_continue.set()
    assert [increment.base_offset for increment in take(reader, numbers.newest)] == [first, first + 1]


def test_a_consumer_gets_no_more_than_its_credit_from_either_thread(
    broker: RunningBroker, numbers: ThreadCounts
) -> None:
    each = cost(broker_pb2.Increment(body=half(1).body))
    with subscriber(broker, credit_bytes=3 * each + 10) as found:
        found.open(0, 0)
        for _ in range(10):
            numbers.commit()
        eventually(lambda: len(found._arrived) == 3)
        threading.Event().wait(0.2)
        assert len(found._arrived) == 3
        assert len(take(found, 10)) == 10


def test_a_second_consumer_gets_every_commit_too(
    broker: RunningBroker, numbers: ThreadCounts, reader: Subscriber, record_wakeups: list[int]
) -> None:
    commit_until_direct(numbers, reader, record_wakeups)
    with Subscriber(broker.address, "main", "another", credit_bytes=1 << 20) as second:
        second.open(0, 0)
        for _ in range(20):
            numbers.commit()
        assert len(take(second, numbers.newest)) == numbers.newest
        take(reader, numbers.newest)
    eventually(lambda: broker_streams(broker) == 2)
    commit_until_direct(numbers, reader, record_wakeups)


def broker_streams(broker: RunningBroker) -> int:
    server: Any = find_broker(broker.address)
    return len(server._tasks)


def test_a_consumer_that_refuses_a_commit_leaves_no_stream(
    broker: RunningBroker,
    numbers: ThreadCounts,
    reader: Subscriber,
    record_wakeups: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit_until_direct(numbers, reader, record_wakeups)

    def refuse(*_: Any) -> None:
        raise DigestMismatch("damaged")

    monkeypatch.setattr(reader, "on_frame", refuse)
    numbers.commit()
    eventually(lambda: broker_streams(broker) == 1)
    with pytest.raises(DigestMismatch, match="damaged"):
        reader.increments(60.0)
    numbers.commit()


def test_a_consumer_that_has_left_is_sent_nothing(
    broker: RunningBroker, numbers: ThreadCounts, reader: Subscriber, record_wakeups: list[int]
) -> None:
    commit_until_direct(numbers, reader, record_wakeups)
    reader.close()
    eventually(lambda: broker_streams(broker) == 1)
    numbers.commit()
    assert record_wakeups
    with subscriber(broker) as another:
        another.open(numbers.newest - 1, 0)
        assert len(take(another, numbers.newest)) == 1
