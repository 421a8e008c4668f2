"""Positions that a consumer acknowledges and reports, and what the broker keeps of them as streams open and close."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.service.conftest import StartBroker, each_transport
from tests.support.brokers.consumers import (
    RawConsumer,
    consumer_status,
    subscriber,
)
from tests.support.brokers.servers import BUSINESS, business_status, fill, take
from tests.support.waiting import eventually
from venus.broker.pipeline.subscriptions import Subscriptions
from venus.broker.service.consumer_stream import ConsumerStream
from venus.broker.service.process import RunningBroker
from venus.errors import OffsetDiverged, Unavailable, VenusError
from venus.rpc import subscriber as subscribers
from venus.rpc.admin import AdminClient
from venus.wire import broker_pb2

pytestmark = [pytest.mark.integration, each_transport]


def test_acknowledgements_and_connections_show_in_the_status(broker: RunningBroker) -> None:
    fill(broker.address, 1, 10)
    with subscriber(broker) as reader:
        reader.open(0, 0)
        take(reader, 10)
        reader.acknowledge(4)

        def entry() -> broker_pb2.ConsumerStatus:
            return business_status(broker.address).consumers[0]

        eventually(lambda: entry().acknowledged == 4)
        assert entry().connected
        assert entry().backlog_rows == 6
    eventually(lambda: not entry().connected)
    with AdminClient(broker.address) as admin:
        admin.forget(BUSINESS, "g")
    assert not business_status(broker.address).consumers


def test_the_end_of_an_older_stream_leaves_the_newer_one_connected(broker: RunningBroker) -> None:
    fill(broker.address, 1, 10)
    with subscriber(broker) as newer:
        with subscriber(broker) as older:
            older.open(0, 0)
            newer.open(0, 0)
            older.acknowledge(9)
            take(older, 10)
        newer.acknowledge(6, kept=4)
        eventually(lambda: consumer_status(broker).acknowledged == 6)
        time.sleep(0.3)  # the older stream's detachment follows its end
        found = consumer_status(broker)
        assert (found.acknowledged, found.kept, found.connected) == (6, 4, True)
    eventually(lambda: not consumer_status(broker).connected)


def test_a_consumer_that_leaves_during_its_attachment_is_detached(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker.address, 1, 3)
    entered, has_left, attach = threading.Event(), threading.Event(), Subscriptions.attach

    def delay_answer(self: Subscriptions, *args: Any, **options: Any) -> int:
        entered.set()
        assert has_left.wait(60)
        return attach(self, *args, **options)

    monkeypatch.setattr(Subscriptions, "attach", delay_answer)
    monkeypatch.setattr("venus.rpc.duplex.CLOSE_TIMEOUT_S", 0.1)  # so that the call is cancelled, not ended
    with ThreadPoolExecutor(1) as pool:
        with subscriber(broker) as reader:
            opening = pool.submit(reader.open, 0, 0)
            assert entered.wait(60)
        has_left.set()
        with pytest.raises(Unavailable):
            opening.result(60)
    eventually(lambda: any(c.group == "g" for c in business_status(broker.address).consumers))
    eventually(lambda: not consumer_status(broker).connected)


def test_a_consumer_of_a_forgotten_business_gets_no_data_of_its_namesake(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The business is forgotten and created again between the check of the position and the stream's attachment."""
    fill(broker.address, 1, 5)
    attach = Subscriptions.attach

    def answer_late(self: Subscriptions, *args: Any, **options: Any) -> int:
        monkeypatch.undo()
        with AdminClient(broker.address) as admin:
            admin.forget_business(BUSINESS)
        fill(broker.address, 1, 10, rows=2)
        return attach(self, *args, **options)

    monkeypatch.setattr(Subscriptions, "attach", answer_late)
    with subscriber(broker) as reader:
        epoch = business_status(broker.address).epoch
        reader.open(5, epoch)
        with pytest.raises(Unavailable, match="removed and created again"):
            take(reader, 10)
    with subscriber(broker) as again, pytest.raises(OffsetDiverged):
        again.open(5, epoch)


def test_an_older_consumer_reports_one_position_and_keeps_its_kept_offset(broker: RunningBroker) -> None:
    """It reports the smaller of both positions as applied, and opens its stream at its applied offset."""
    fill(broker.address, 1, 10)
    with RawConsumer(broker.address, group="g", credit_bytes=1 << 20) as raw:
        raw.send(broker_pb2.ConsumerFrame(acknowledge=4))
        eventually(lambda: consumer_status(broker).acknowledged == 4)
        assert consumer_status(broker).kept == 4
    with subscriber(broker) as reader:
        opened = reader.open(8, 0)
        assert opened.kept == 4
        assert (consumer_status(broker).acknowledged, consumer_status(broker).kept) == (8, 4)
        reader.acknowledge(8)
        eventually(lambda: consumer_status(broker).kept == 8)


def test_acknowledgements_are_coalesced_and_the_last_one_arrives(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[int] = []
    take_frame = ConsumerStream._on_frame

    def keep_acknowledgement(self: ConsumerStream, frame: broker_pb2.ConsumerFrame) -> None:
        if frame.acknowledge:
            heard.append(frame.acknowledge)
        take_frame(self, frame)

    monkeypatch.setattr(ConsumerStream, "_on_frame", keep_acknowledgement)
    monkeypatch.setattr(subscribers, "ACKNOWLEDGE_EVERY_S", 0.5)
    fill(broker.address, 1, 200)
    with subscriber(broker) as reader:
        reader.open(0, 0)
        began = time.monotonic()
        reader.acknowledge(1)
        eventually(lambda: heard == [1])  # the first acknowledgement is sent at once
        for offset in range(2, 100):
            reader.acknowledge(offset)
            time.sleep(0.001)
        eventually(lambda: heard and heard[-1] == 99)
        assert len(heard) <= 2 + (time.monotonic() - began) / 0.5
        reader.acknowledge(200)
    eventually(lambda: heard[-1] == 200)  # closing sends the waiting acknowledgement


def test_a_consumers_report_does_not_wait_for_its_acknowledgement(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribers, "ACKNOWLEDGE_EVERY_S", 60.0)
    fill(broker.address, 1, 20)
    with subscriber(broker) as reader:
        reader.open(0, 0)
        reader.acknowledge(5)
        reader.acknowledge(10)
        reader.acknowledge(20, unaccounted=3)
        eventually(lambda: business_status(broker.address).consumers[0].acknowledged == 20)


def test_close_ends_all_threads_and_a_closed_subscriber_reports_it(broker: RunningBroker) -> None:
    def client_threads() -> set[str]:
        return {t.name for t in threading.enumerate() if t.name.startswith(("venus-subscriber", "Thread-"))}

    fill(broker.address, 1, 1)
    before = client_threads()
    for _ in range(3):
        reader = subscriber(broker)
        reader.open(0, 0)
        reader.close()
        with pytest.raises(VenusError):
            reader.increments(1.0)
    eventually(lambda: client_threads() <= before)


def test_every_call_reports_a_stopped_broker(start_broker: StartBroker) -> None:
    broker = start_broker()
    fill(broker.address, 1, 1)
    with subscriber(broker) as reader:
        reader.open(1, 0)
        broker.stop()
        for _ in range(2):
            with pytest.raises(Unavailable):
                reader.increments(30.0)
        with pytest.raises(Unavailable):
            reader.acknowledge(1)
