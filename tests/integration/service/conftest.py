"""A broker in a thread, on free ports of the loopback interface."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.support.brokers.page_brokers import PageBroker
from tests.support.brokers.servers import BUSINESS, commit, settings, traffic
from tests.support.browsers import run_browser
from tests.support.engines.batches import half
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.config import Settings
from venus.rpc.address import BrokerAddress
from venus.rpc.producer import Producer
from venus.wire import broker_pb2

StartBroker = Callable[..., RunningBroker]


def producer(broker: RunningBroker, name: str = "test", **options: Any) -> Producer:
    return Producer(broker.address, BUSINESS, name, **{"window_bytes_max": 8 << 20, **options})


@contextmanager
def open_producer(broker: RunningBroker, business: str = BUSINESS, name: str = "test") -> Iterator[Producer]:
    with Producer(broker.address, business, name, window_bytes_max=8 << 20) as sender:
        sender.connect(0, 0)
        yield sender


def find_limiter(broker: RunningBroker, name: str, business: str = BUSINESS) -> broker_pb2.BrakeStatus | None:
    found = (b for b in traffic(broker.address).brakes if (b.brake, b.business) == (name, business))
    return next(found, None)


def time_commit(sender: Producer, number: int, **options: Any) -> float:
    """Commit a batch; return how long that took."""
    began = time.monotonic()
    commit(sender, [half(number, **options)])
    return time.monotonic() - began


def is_probing() -> bool:
    """Return whether this thread probes nearer sets, for a connection that an earlier test of this process has left."""
    return threading.current_thread().name == "venus-look"


#: Transport by which a producer or consumer reaches the broker; for `each_transport`.
TRANSPORTS = ("grpc", "local socket", "in process")
#: Mark that runs the tests of a module over each transport.
each_transport = pytest.mark.parametrize("transport", TRANSPORTS, indirect=True)


@pytest.fixture(autouse=True)
def transport(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", TRANSPORTS[0]))


def local_address(broker: RunningBroker) -> BrokerAddress:
    """Return the broker's address as clients on its machine get it from their configuration."""
    address = BrokerAddress(broker.address)
    address.may_be_local = True
    return address


def refuse_nothing_late(chosen: Settings) -> Settings:
    """Let half messages wait for the disk without a limit: refused ones would be resent, and tests count messages."""
    limits = chosen.broker.limits
    if "slow_request_ms" in limits.model_fields_set:
        return chosen
    patient = limits.model_copy(update={"slow_request_ms": 0.0})
    return chosen.model_copy(update={"broker": chosen.broker.model_copy(update={"limits": patient})})


@pytest.fixture
def start_broker(tmp_path: Path, transport: str) -> Iterator[StartBroker]:
    running: list[RunningBroker] = []
    fatal: list[BaseException] = []

    def start(**options: Any) -> RunningBroker:
        chosen = refuse_nothing_late(settings(tmp_path / "data", **options))
        running.append(start_in_thread(chosen, on_fatal=fatal.append, in_process=transport == "in process"))
        running[-1].address = local_address(running[-1]) if transport == "local socket" else running[-1].address
        return running[-1]

    yield start
    for broker in running:
        broker.stop()
    assert not fatal


@pytest.fixture
def broker(start_broker: StartBroker) -> RunningBroker:
    return start_broker()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with run_browser() as found:
        yield found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageBroker]:
    monkeypatch.setattr("venus.broker.status.history.STEP_S", 0.2)
    made = PageBroker(tmp_path)
    yield made
    made.close()
