"""Progress reports to a reader need no credit, and only the newest is kept if the reader does not take them."""

from __future__ import annotations

import threading
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

from venus.codec.batch import digest
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2


def _subscriber() -> Any:
    subscriber = cast(Any, Subscriber.__new__(Subscriber))
    subscriber._lock = threading.Lock()
    subscriber._arrived = deque()
    subscriber._news = SimpleNamespace(notify_all=lambda: None)
    return subscriber


def _increment(offset: int) -> broker_pb2.Increment:
    return broker_pb2.Increment(
        base_offset=offset, count=1, epoch=1, body=b"x", digest=digest(b"x"), state=broker_pb2.COMMITTED
    )


def test_of_unread_progress_reports_the_newest_is_kept() -> None:
    subscriber = _subscriber()
    for n in range(1, 10_000):
        subscriber.on_frame(broker_pb2.DeliveryFrame(progress=n))

    assert list(subscriber._arrived) == [9_999]


def test_progress_keeps_its_place_between_increments() -> None:
    subscriber = _subscriber()
    for n in (1, 2):
        subscriber.on_frame(broker_pb2.DeliveryFrame(progress=n))
    subscriber.on_frame(broker_pb2.DeliveryFrame(increments=[_increment(2)], progress=3))
    for n in (4, 5):
        subscriber.on_frame(broker_pb2.DeliveryFrame(progress=n))
    subscriber.on_frame(broker_pb2.DeliveryFrame(increments=[_increment(5)]))

    found = [one if isinstance(one, int) else one.base_offset for one in subscriber._arrived]
    assert found == [2, 2, 5, 5]
