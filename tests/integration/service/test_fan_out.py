"""Many consumers of one business share encoded frames, and each one gets no more than its credit."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from queue import SimpleQueue
from typing import Any
from urllib.request import urlopen

import grpc
import pytest

from tests.integration.service.conftest import StartBroker, producer
from tests.support.brokers.servers import BUSINESS, commit, data, fill, traffic
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.broker.service import shared_frames
from venus.broker.service.process import RunningBroker
from venus.rpc import sealed
from venus.rpc.channel import open_channel
from venus.rpc.compression import cost
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration

MANY = 20


class BytesConsumer:
    """A consumer's stream that keeps each frame's bytes, and returns their credit if `gives_back`."""

    def __init__(self, address: str, group: str, *, gives_back: bool = True, **fields: Any) -> None:
        self._channel = open_channel(address)
        self._frames: SimpleQueue[broker_pb2.ConsumerFrame | None] = SimpleQueue()
        opening = broker_pb2.Open(**{"business": BUSINESS, "group": group, "credit_bytes": 1 << 20, **fields})
        self._gives_back = gives_back
        self.frames: list[bytes] = []
        self.received: list[broker_pb2.Increment] = []
        self.opened = threading.Event()
        self.outstanding = self.outstanding_most = 0
        self._frames.put(broker_pb2.ConsumerFrame(open=opening))
        call: Any = self._channel.stream_stream(
            sealed.SUBSCRIBE, request_serializer=sealed.seal, response_deserializer=None
        )
        self._thread = threading.Thread(target=self._read, args=(call(iter(self._frames.get, None)),), daemon=True)
        self._thread.start()

    def _read(self, frames: Iterator[bytes]) -> None:
        try:
            for content in frames:
                frame = sealed.unseal(broker_pb2.DeliveryFrame, content, "a frame")
                if frame.HasField("opened"):
                    self.opened.set()
                    continue
                price = sum(map(cost, frame.increments))
                self.outstanding += price
                self.outstanding_most = max(self.outstanding_most, self.outstanding)
                self.frames.append(content)
                self.received.extend(frame.increments)
                if self._gives_back:
                    self.grant(price)
        except grpc.RpcError:
            pass

    def grant(self, nbytes: int) -> None:
        self.outstanding -= nbytes
        self._frames.put(broker_pb2.ConsumerFrame(credit_bytes=nbytes))

    @property
    def position(self) -> int:
        return self.received[-1].base_offset + self.received[-1].count if self.received else 0

    def __enter__(self) -> BytesConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self._frames.put(None)
        self._thread.join(10)
        self._channel.close()


def have_all_reached(consumers: Sequence[BytesConsumer], position: int) -> bool:
    return all(each.position == position for each in consumers)


class EncodingCounter:
    """Counter of the frames with increments that are serialised."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        original = sealed.seal

        def count_and_seal(message: Any) -> bytes:
            self.count += isinstance(message, broker_pb2.DeliveryFrame) and bool(message.increments)
            return original(message)

        monkeypatch.setattr(sealed, "seal", count_and_seal)
        monkeypatch.setattr(shared_frames, "seal", count_and_seal)


def test_many_consumers_at_the_tail_share_one_encoding(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(broker.address, 1, 1)
    encodings = EncodingCounter(monkeypatch)
    with ExitStack() as stack, producer(broker) as sender:
        sender.connect(0, 0)
        many = [stack.enter_context(BytesConsumer(broker.address, f"g{n}")) for n in range(MANY)]
        eventually(lambda: all(each.position == 1 for each in many))
        encodings.count = 0
        commits = [half(n) for n in range(2, 12)]
        for n, each in enumerate(commits, 2):
            commit(sender, [each])
            eventually(partial(have_all_reached, many, n))
        assert encodings.count == len(commits)
        assert all(each.frames[-len(commits) :] == many[0].frames[-len(commits) :] for each in many)
        assert all(data(each.received[1:]) == [each.body for each in commits] for each in many)


def test_many_consumers_that_catch_up_share_encodings(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    halves = fill(broker.address, 1, 60, rows=2000)
    encodings = EncodingCounter(monkeypatch)
    with ExitStack() as stack:
        first = stack.enter_context(BytesConsumer(broker.address, "first", gives_back=False, offset=60 * 2000))
        assert first.opened.wait(60)  # with this consumer, each of the others is one of several
        many = [stack.enter_context(BytesConsumer(broker.address, f"g{n}", credit_bytes=8 << 20)) for n in range(MANY)]
        eventually(lambda: all(each.position == 60 * 2000 for each in many))
    assert all(data(each.received) == [each.body for each in halves] for each in many)
    assert all(each.frames == many[0].frames for each in many)
    assert encodings.count == len(many[0].frames)
    assert len(many[0].frames) > 1


def test_one_of_many_consumers_gets_no_more_than_its_credit(broker: RunningBroker) -> None:
    halves = fill(broker.address, 1, 30)
    each = cost(broker_pb2.Increment(body=halves[0].body))
    credits = [3 * each + 10, 1 << 20, 5 * each, each // 2, 3 * each + 10]
    with ExitStack() as stack:
        many = [
            stack.enter_context(BytesConsumer(broker.address, f"g{n}", gives_back=False, credit_bytes=credit))
            for n, credit in enumerate(credits)
        ]
        counts = [3, 30, 5, 1, 3]
        eventually(lambda: [len(one.received) for one in many] == counts)
        threading.Event().wait(0.3)
        assert [len(one.received) for one in many] == counts
        many[0].grant(2 * each)
        eventually(lambda: len(many[0].received) == 5)
        threading.Event().wait(0.3)
        assert [len(one.received) for one in many] == [5, *counts[1:]]
    for one in many:
        assert data(one.received) == [message.body for message in halves[: len(one.received)]]


def test_consumers_with_other_filters_get_their_own_frames(broker: RunningBroker) -> None:
    fill(broker.address, 1, 3)
    with ExitStack() as stack:
        everything = [stack.enter_context(BytesConsumer(broker.address, f"all{n}")) for n in range(2)]
        nothing = [stack.enter_context(BytesConsumer(broker.address, f"none{n}", only=["none"])) for n in range(2)]
        eventually(lambda: all(each.position == 3 for each in everything) and all(each.frames for each in nothing))
        fill(broker.address, 4, 4)
        eventually(lambda: all(each.position == 4 for each in everything))
    assert not any(each.received for each in nothing)


def test_a_lagging_consumer_gets_the_rest_in_one_frame(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    fill(broker.address, 1, 1)
    with ExitStack() as stack, producer(broker) as sender:
        sender.connect(0, 0)
        fast = [stack.enter_context(BytesConsumer(broker.address, f"g{n}")) for n in range(3)]
        for n in range(2, 12):
            commit(sender, [half(n)])
            eventually(partial(have_all_reached, fast, n))
        late = stack.enter_context(BytesConsumer(broker.address, "late", offset=1))
        eventually(lambda: late.position == 11)
        assert len(late.frames) == 1


def test_status_and_metrics_show_the_consumers_and_the_shared_frames(broker: RunningBroker) -> None:
    fill(broker.address, 1, 1)
    with ExitStack() as stack:
        many = [stack.enter_context(BytesConsumer(broker.address, f"g{n}")) for n in range(5)]
        eventually(partial(have_all_reached, many, 1))
        fill(broker.address, 2, 2)
        eventually(partial(have_all_reached, many, 2))
        gauges = {gauge.name: gauge.value for gauge in traffic(broker.address).gauges}
        with urlopen(f"http://{broker.http_address}/metrics", timeout=30) as answer:
            metrics = answer.read().decode()
    assert gauges["subscribers"] == 5
    assert gauges["shared frames sent"] >= 5
    assert 1 <= gauges["shared frames encoded"] < gauges["shared frames sent"]
    assert gauges["shared frames kept"] > 0
    assert "venus_subscribers 5.0" in metrics
    assert "venus_shared_frames_sent_total" in metrics
