"""The committing thread sends a commit to the only consumer of a business; otherwise the event loop sends it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from venus.broker.service.delivery import DeliveryService, StreamIndex

BUSINESS = "main"


class Consumer:
    """A consumer's stream of the business."""

    business, group, is_transient = BUSINESS, "g", False

    def __init__(self, send_at_once: Callable[[int], bool], *, is_in_process: bool) -> None:
        self.send_at_once, self.is_in_process = send_at_once, is_in_process


class SoleConsumerSetup:
    """A Delivery service that records its sends and its calls into the event loop."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, int]] = []
        self.sent: list[int] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.can_send = True
        self.service: Any = object.__new__(DeliveryService)
        self.service._sole = {}
        self.service.streams = StreamIndex()
        bridge: Any = SimpleNamespace(post=lambda _, *arguments: self.posted.append(arguments))
        self.service.bridge = bridge

    def add(self, *, is_in_process: bool = True) -> Any:
        """Add a consumer."""
        stream = Consumer(self._send, is_in_process=is_in_process)
        self.service.streams.add(stream)
        self.service._find_sole(BUSINESS)
        return stream

    def remove(self, stream: Any) -> None:
        self.service.streams.remove(stream)
        self.service._find_sole(BUSINESS)

    def _send(self, next_offset: int) -> bool:
        self.sent.append(next_offset)
        self.meanwhile()
        return self.can_send

    def publish(self, next_offset: int) -> None:
        self.service._on_published(BUSINESS, next_offset)


@pytest.fixture
def place() -> SoleConsumerSetup:
    return SoleConsumerSetup()


def test_the_only_consumer_gets_a_commit_without_the_event_loop(place: SoleConsumerSetup) -> None:
    place.add()
    place.publish(1)
    assert (place.sent, place.posted) == ([1], [])


def test_the_event_loop_serves_other_processes_and_several_consumers(place: SoleConsumerSetup) -> None:
    place.publish(1)
    remote = place.add(is_in_process=False)
    place.publish(2)
    second = place.add()
    place.publish(3)
    assert (place.sent, place.posted) == ([], [(BUSINESS, 1), (BUSINESS, 2), (BUSINESS, 3)])
    place.remove(remote)
    place.publish(4)
    assert place.sent == [4]
    place.remove(second)
    place.publish(5)
    assert place.posted[-1] == (BUSINESS, 5)


def test_the_event_loop_sends_the_rest_that_the_consumer_could_not_take(place: SoleConsumerSetup) -> None:
    place.add()
    place.can_send = False
    place.publish(1)
    assert place.posted == [(BUSINESS, 1)]


def test_a_consumer_that_attaches_meanwhile_is_notified_of_the_commit(place: SoleConsumerSetup) -> None:
    """It may have read the end of the queue before the commit was visible."""
    place.add()
    place.meanwhile = lambda: place.add()
    place.publish(1)
    assert place.posted == [(BUSINESS, 1)]
