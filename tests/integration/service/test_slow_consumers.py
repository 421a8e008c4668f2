"""A consumer that stops reading gets a smaller window at a real broker, and loses no change."""

from __future__ import annotations

import time
from itertools import count

import pytest

from tests.integration.service.conftest import StartBroker, each_transport, find_limiter, open_producer, time_commit
from tests.support.brokers.servers import BUSINESS, commit, take
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker
from venus.config import LimitsSettings
from venus.flow.admission import WINDOW_STEP_BYTES
from venus.rpc.admin import AdminClient
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

pytestmark = [pytest.mark.integration, each_transport]

MIB = 1 << 20


def consumer_status(broker: RunningBroker, group: str) -> broker_pb2.ConsumerStatus:
    with AdminClient(broker.address) as admin:
        (found,) = (c for b in admin.status().businesses for c in b.consumers if c.group == group)
    return found


def test_a_consumer_that_stops_reading_is_named_and_gets_a_smaller_window_until_it_reads(
    start_broker: StartBroker,
) -> None:
    broker = start_broker(limits=LimitsSettings(slow_consumer_s=0.3))
    with (
        open_producer(broker) as sender,
        Subscriber(broker.address, BUSINESS, "stopped", credit_bytes=MIB) as stopped,
        Subscriber(broker.address, BUSINESS, "quick", credit_bytes=MIB) as quick,
    ):
        for n in range(1, 41):
            sender.send_half(half(n, payload="x" * 100_000))
        commit(sender, [half(41)])
        stopped.open(0, 0)
        quick.open(0, 0)
        assert len(take(quick, 41)) == 41

        def is_marked_slow() -> bool:
            quick.increments(0.05)  # a consumer that polls nothing returns no credit
            return consumer_status(broker, "stopped").window_bytes == WINDOW_STEP_BYTES

        eventually(is_marked_slow)
        slow = consumer_status(broker, "stopped")
        assert slow.slow_since_us > 0
        newest = 41

        def quick_consumer_has_whole_window() -> bool:
            """Take one more change: a pause of the machine also shrinks the window, which then grows again."""
            nonlocal newest
            newest += 1
            commit(sender, [half(newest)])
            take(quick, newest)
            found = consumer_status(broker, "quick")
            return (found.window_bytes, found.slow_since_us) == (MIB, 0)

        eventually(quick_consumer_has_whole_window)
        eventually(lambda: (found := find_limiter(broker, "slow consumer")) is not None and found.who == "stopped")
        assert len(take(stopped, newest)) == newest, "nothing is lost, nothing stands still"

        def stopped_consumer_recovers() -> bool:
            found = consumer_status(broker, "stopped")
            return found.slow_since_us == 0 and found.window_bytes > WINDOW_STEP_BYTES

        eventually(stopped_consumer_recovers)


def test_a_consumer_that_polls_without_waiting_is_not_taken_as_slow(start_broker: StartBroker) -> None:
    broker = start_broker(limits=LimitsSettings(slow_consumer_s=1.5))
    with open_producer(broker) as sender, Subscriber(broker.address, BUSINESS, "g", credit_bytes=16 * MIB) as reader:
        time_commit(sender, 1)
        reader.open(0, 0)
        numbers = count(2)

        def keeps_its_window() -> bool:
            """Poll for three times as long as makes a consumer slow; the machine itself may pause for as long."""
            before, end, got = find_limiter(broker, "slow consumer"), time.monotonic() + 5, 0
            while time.monotonic() < end:
                time_commit(sender, next(numbers))
                got += len(reader.increments(0.001))
                time.sleep(0.05)
            return got > 0 and find_limiter(broker, "slow consumer") == before

        eventually(keeps_its_window, timeout_s=120)
