"""No thread of an idle broker or of its clients wakes without a reason: each sleeps until its event arrives."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest

from tests.integration.service.conftest import open_producer, time_commit
from tests.support.brokers.servers import BUSINESS
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker
from venus.rpc.subscriber import Subscriber

pytestmark = pytest.mark.integration

#: Names of threads, and how often each may wake in `WATCHED_S` seconds.
MOST = {"venus-commit": 4, "venus-materialise": 3, "venus-producer": 3, "venus-subscriber": 3}
WATCHED_S = 2.5
_SLEPT = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)


def count_wakeups() -> dict[str, int]:
    """Return how often each of these threads has slept so far."""
    ids = {thread.name: thread.native_id for thread in threading.enumerate() if thread.name in MOST}
    statuses = {name: Path(f"/proc/self/task/{number}/status").read_text() for name, number in ids.items()}
    return {name: int(_SLEPT.findall(text)[0]) for name, text in statuses.items()}


def count_wakes() -> dict[str, int]:
    """Return how often each thread wakes during a time without work."""
    before = count_wakeups()
    time.sleep(WATCHED_S)
    return {name: count - before[name] for name, count in count_wakeups().items()}


def is_idle() -> bool:
    found = count_wakes()
    assert found.keys() == MOST.keys()
    return all(count <= MOST[name] for name, count in found.items())


def test_threads_of_an_idle_broker_and_of_its_clients_sleep(broker: RunningBroker) -> None:
    with open_producer(broker) as sender, Subscriber(broker.address, BUSINESS, "test", credit_bytes=1 << 20) as reader:
        time_commit(sender, 1)
        reader.open(0, 0)
        increment, *_ = reader.increments(60.0)
        reader.acknowledge(increment.base_offset + increment.count)
        eventually(is_idle)  # upkeep, credit and acknowledgements follow the work
