"""A broker in a thread, on free ports of the loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import BUSINESS, settings
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.rpc.producer import Producer

StartBroker = Callable[..., RunningBroker]


def producer(broker: RunningBroker, name: str = "test", **options: Any) -> Producer:
    return Producer(broker.address, BUSINESS, name, **{"window_bytes_max": 8 << 20, **options})


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    running: list[RunningBroker] = []
    fatal: list[BaseException] = []

    def start(**options: Any) -> RunningBroker:
        running.append(start_in_thread(settings(tmp_path / "data", **options), on_fatal=fatal.append))
        return running[-1]

    yield start
    for broker in running:
        broker.stop()
    assert not fatal


@pytest.fixture
def broker(start_broker: StartBroker) -> RunningBroker:
    return start_broker()
