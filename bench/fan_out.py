"""Tools of the figures about many subscribers: a broker process, a producer of small messages, and their CPU time.

A message is a committed batch of ten rows of 100 bytes each: 1 KB.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.processes import peak_rss_bytes
from bench.venus_transmission import BUSINESS, make_half
from tests.support.brokers.servers import BrokerProcess, settings
from venus.model import Verdict
from venus.rpc.producer import Producer
from venus.wire import broker_pb2

MESSAGE_ROWS = 10
#: How often a producer at a steady rate checks whether its messages are durable.
LOOK_S = 0.002


class Messages:
    """Producer that commits messages of `rows` rows each; `end` is the offset after the last message."""

    def __init__(
        self, address: str, rows: int = MESSAGE_ROWS, make: Callable[[int, int, int], broker_pb2.Half] = make_half
    ) -> None:
        self._producer = Producer(address, BUSINESS, "bench", window_bytes_max=32 << 20)
        self._producer.connect(0, 0)
        self._make = make
        self.rows = rows
        self.count = self.end = 0

    def commit_one(self) -> None:
        """Commit one message, and wait for the broker's answer."""
        self.commit_many(1)

    def commit_many(self, count: int) -> None:
        """Commit this number of messages as fast as the broker makes them durable."""
        producer = self._producer
        halves = [self._make_next() for _ in range(count)]
        first, last = halves[0].batch_no, halves[-1].batch_no
        decided = first - 1
        for half in halves:
            producer.send_half(half)
        while decided < last:
            producer.wait_until_persisted(decided + 1)
            decided = producer.persisted_through
            producer.decide(decided, halves[decided - first].digest, Verdict.COMMIT)
        producer.wait_until_decided(last)

    def send_steadily(self, rate: float, seconds: float) -> dict[int, float]:
        """Send messages at this rate, and commit them; return when each was sent, by the offset after it."""
        producer, begun, digests = self._producer, dict[int, float](), dict[int, int]()
        decided, start = self.count, time.monotonic()
        for n in range(int(rate * seconds)):
            while (left_s := start + n / rate - time.monotonic()) > 0:
                decided = self._decide_durable(decided, digests)
                time.sleep(min(left_s, LOOK_S))
            half = self._make_next()
            begun[self.end] = time.monotonic()
            digests[self.count] = half.digest
            producer.send_half(half)
            decided = self._decide_durable(decided, digests)
        producer.wait_until_persisted(self.count)
        producer.decide(self.count, digests[self.count], Verdict.COMMIT)
        producer.wait_until_decided(self.count)
        return begun

    def _decide_durable(self, decided: int, digests: dict[int, int]) -> int:
        """Commit the messages that became durable since message `decided`; return the last committed number."""
        through = self._producer.persisted_through
        if through > decided:
            self._producer.decide(through, digests[through], Verdict.COMMIT)
        return max(through, decided)

    def _make_next(self) -> broker_pb2.Half:
        """Return the next half message."""
        half = self._make(self.count + 1, self.end + 1, self.rows)
        self.count += 1
        self.end += self.rows
        return half

    def close(self) -> None:
        """End the stream."""
        self._producer.close()


class ProcessUsage:
    """Processor time and memory of a process since this object was created."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began = _cpu_s(pid)

    @property
    def cpu_s(self) -> float:
        """The seconds of user and system time since this object was created."""
        return _cpu_s(self._pid) - self._began

    @property
    def peak_mib(self) -> float:
        """The peak of the process's resident memory."""
        return peak_rss_bytes(self._pid) / 2**20


@contextmanager
def one_broker() -> Iterator[BrokerProcess]:
    """Start a broker in an interpreter of its own."""
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as folder:
        broker = BrokerProcess(settings(Path(folder) / "b"), new_interpreter=True)
        try:
            yield broker
        finally:
            broker.stop()


def _cpu_s(pid: int) -> float:
    found = psutil.Process(pid).cpu_times()
    return float(found.user + found.system)
