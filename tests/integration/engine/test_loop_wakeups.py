"""A command group wakes the service's event loop once, because each wake-up costs both threads time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, WAIT_S, Producer
from venus.broker.core import Core
from venus.broker.service.delivery import DeliveryService
from venus.model import Verdict
from venus.rpc.event_loop import LoopBridge


class Loop:
    """Event loop that runs a callback at once, before the thread that schedules it continues."""

    def __init__(self) -> None:
        self.wakes = 0

    def call_soon_threadsafe(self, call: Callable[[], object]) -> None:
        """Run the callback at once."""
        self.wakes += 1
        call()


def test_one_wakeup_notifies_consumers_and_the_producer_of_a_commit(home: Core) -> None:
    loop = Loop()
    fake: Any = loop
    nothing: Any = None
    bridge = LoopBridge(fake)
    delivery = DeliveryService(home, bridge, nothing, nothing, nothing)
    producer = Producer(home)
    message = producer.next_half(engines.rows(0, 1, b"x"))
    home.producers.take_halves(BUSINESS, producer.epoch, [message]).result(WAIT_S)
    woken: list[str] = []
    home.publisher.add_listener(lambda business, _: woken.append(business))
    before, listening = loop.wakes, threading.Event()
    home.commits.submit(lambda _: listening.wait(WAIT_S))
    answer = home.producers.decide(BUSINESS, producer.epoch, message.batch_no, message.digest, Verdict.COMMIT)
    bridge.call_when_done(answer, lambda _: woken.append("the producer"))
    listening.set()
    answer.result(WAIT_S)
    home.producers.take_halves(BUSINESS, producer.epoch, [producer.next_half(engines.rows(1, 1, b"x"))]).result(WAIT_S)
    assert sorted(woken) == [BUSINESS, "the producer"]
    assert loop.wakes - before == 1
    assert delivery.bridge is bridge
