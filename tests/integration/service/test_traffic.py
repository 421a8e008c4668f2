"""Rate limits at a real broker: a throttled client is named and continues by itself, and nothing is lost."""

from __future__ import annotations

import threading
import time
from itertools import count, islice
from typing import Any

import pytest

from tests.integration.service.conftest import StartBroker, each_transport, find_limiter, open_producer, time_commit
from tests.support.brokers.servers import BUSINESS, commit
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.broker.service.traffic import BEHIND_EVERY_S
from venus.broker.snapshot.step import MaterialiserStep
from venus.config import LimitsSettings
from venus.errors import Unavailable
from venus.flow import admission
from venus.model import Verdict
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
from venus.wire import broker_pb2

pytestmark = [pytest.mark.integration, each_transport]


def test_a_business_over_its_rate_is_named_and_throttled_and_no_other_is(start_broker: StartBroker) -> None:
    broker = start_broker(limits=LimitsSettings(rows_per_s=200, burst_s=1))
    with open_producer(broker, name="flood:1") as flood, open_producer(broker, "other") as other:
        began, numbers = time.monotonic(), count(1)
        for n in islice(numbers, 60):
            time_commit(flood, n, rows=10)  # each half message is a frame of its own
        time_commit(other, 1)
        assert other.throttles == 0, "it has a bucket of its own"
        newest = next(numbers)
        time_commit(flood, newest, rows=10)
        took = time.monotonic() - began
        assert 1.1 * 200 * took >= 610 - 200 - 20, "200 at once, then 200 a second, 10 % more at most"

        def read_limiter() -> broker_pb2.BrakeStatus | None:
            nonlocal newest
            newest = next(numbers)
            time_commit(flood, newest, rows=10)
            found = find_limiter(broker, "rows")
            return found if found is not None and found.on else None

        found = eventually(read_limiter)
        assert found.who == "flood:1"
        assert found.times >= 1
        assert find_limiter(broker, "rows", "other") is None
    with AdminClient(broker.address) as admin:
        rows = {b.business: b.next_offset for b in admin.status().businesses}
    assert rows == {BUSINESS: 10 * newest, "other": 1}


def test_a_producer_that_does_not_pause_is_refused_and_loses_nothing(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer of an older version resends the refused messages, or continues to send at once."""
    taken = Producer.on_frame

    def receive_without_delay(self: Producer, frame: broker_pb2.BrokerFrame) -> None:
        if frame.HasField("throttle") and frame.throttle.taken:
            frame.throttle.retry_after_ms = 0
        taken(self, frame)

    monkeypatch.setattr(Producer, "on_frame", receive_without_delay)
    broker = start_broker(limits=LimitsSettings(bytes_per_s=200_000, burst_s=0.1))
    with open_producer(broker) as sender:
        for n in range(1, 51):
            sender.send_half(half(n, payload="x" * 4000))
        assert commit(sender, [half(51)]).next_offset == 51
        assert sender.throttles >= 2


def test_decisions_continue_while_half_messages_pause(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "PAUSE_MAX_S", 3600.0)
    broker = start_broker(limits=LimitsSettings(bytes_per_s=100, burst_s=0.01))
    with open_producer(broker) as sender:
        first = half(1, payload="x" * 300_000)
        sender.send_half(first)
        sender.wait_until_persisted(1)
        eventually(lambda: sender.throttles >= 1)
        sender.send_half(half(2))
        sender.decide(1, first.digest, Verdict.COMMIT)
        assert sender.wait_until_decided(1).next_offset == 1
        with pytest.raises(Unavailable, match="half message 2 is not acknowledged"):
            sender.wait_until_persisted(2, 0.5)


def test_lagging_full_data_slows_its_producer_and_no_decision(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, take = threading.Event(), MaterialiserStep.take

    def step_if_allowed(self: MaterialiserStep, *arguments: Any, **options: Any) -> bool:
        return go.is_set() and take(self, *arguments, **options)

    monkeypatch.setattr(MaterialiserStep, "take", step_if_allowed)
    broker = start_broker(buffer_bytes_max=200_000)
    with open_producer(broker) as flood, open_producer(broker, "other") as other:
        for n in range(1, 6):
            time_commit(flood, n, payload="x" * 50_000)
        before = flood.throttles
        time.sleep(BEHIND_EVERY_S)  # the lag of the full data is not summed for every frame
        numbers = count(6)

        def is_slowed() -> bool:
            flood.send_half(half(next(numbers)))
            found = find_limiter(broker, "full data behind")
            return flood.throttles > before and found is not None and found.on

        eventually(is_slowed)
        for n in range(1, 4):
            time_commit(other, n)
        assert other.throttles == 0, "its own full data is hardly behind"
        go.set()
        commit(flood, [half(next(numbers))])
