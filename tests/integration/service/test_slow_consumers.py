"""A consumer that stops reading gets a smaller window at a real broker, and loses nothing."""

from __future__ import annotations

import time

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


def window(broker: RunningBroker, group: str) -> broker_pb2.ConsumerStatus:
    with AdminClient(broker.address) as admin:
        (found,) = (c for b in admin.status().businesses for c in b.consumers if c.group == group)
    return found


def test_a_consumer_that_takes_nothing_gets_a_smaller_window_by_name_and_then_a_larger_one(
    start_broker: StartBroker,
) -> None:
    broker = start_broker(limits=LimitsSettings(slow_consumer_s=0.3))
    with open_producer(broker) as sender:
        for n in range(1, 41):
            sender.send_half(half(n, payload="x" * 100_000))
        commit(sender, [half(41)])
    with (
        Subscriber(broker.address, BUSINESS, "stopped", credit_bytes=MIB) as stopped,
        Subscriber(broker.address, BUSINESS, "quick", credit_bytes=MIB) as quick,
    ):
        stopped.open(0, 0)
        quick.open(0, 0)
        assert len(take(quick, 41)) == 41

        def stopped_is_slow() -> bool:
            quick.increments(0.05)  # a consumer that asks for nothing gives no credit back
            return window(broker, "stopped").window_bytes == WINDOW_STEP_BYTES

        eventually(stopped_is_slow)
        slow = window(broker, "stopped")
        assert slow.slow_since_us > 0
        assert (window(broker, "quick").window_bytes, window(broker, "quick").slow_since_us) == (MIB, 0)
        found = find_limiter(broker, "slow consumer")
        assert found is not None
        assert found.who == "stopped"
        assert len(take(stopped, 41)) == 41, "nothing is lost, nothing stands still"
        eventually(lambda: window(broker, "stopped").slow_since_us == 0)
        assert window(broker, "stopped").window_bytes > WINDOW_STEP_BYTES


def test_one_that_polls_without_ever_waiting_is_not_taken_for_slow(start_broker: StartBroker) -> None:
    broker = start_broker(limits=LimitsSettings(slow_consumer_s=1.5))
    with open_producer(broker) as sender, Subscriber(broker.address, BUSINESS, "g", credit_bytes=16 * MIB) as reader:
        time_commit(sender, 1)
        reader.open(0, 0)
        end, n, got = time.monotonic() + 5, 1, 0
        while time.monotonic() < end:
            n += 1
            time_commit(sender, n)
            got += len(reader.increments(0.001))
            time.sleep(0.05)
        assert window(broker, "g").window_bytes == 16 * MIB
        assert got > 0
