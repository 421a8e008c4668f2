"""Brokers for tests: in a thread of the test, or in processes of their own that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.support.engines.batches import half
from tests.support.ports import free_port
from tests.support.processes import forked
from venus.config import BrokerSettings, ClusterSettings, Settings
from venus.errors import NotLeader
from venus.model import Verdict
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

BUSINESS = "main"
START_TIMEOUT_S = 60.0


def settings(data_dir: Path, *, cluster: dict[str, Any] | None = None, **options: Any) -> Settings:
    """Return settings of a broker on free ports; `cluster` has its options of [cluster]."""
    chosen: dict[str, Any] = {"listen": f"127.0.0.1:{free_port()}", "http": "127.0.0.1:0", "data_dir": data_dir}
    return Settings(broker=BrokerSettings(**(chosen | options)), cluster=ClusterSettings(**(cluster or {})))


class BrokerProcess:
    """`serve` in a process; in a new interpreter if its total memory is measured."""

    def __init__(
        self, chosen: Settings, *, descriptors: tuple[int, int] | None = None, new_interpreter: bool = False
    ) -> None:
        limits = () if descriptors is None else map(str, descriptors)
        self.process = (subprocess.Popen if new_interpreter else forked.popen)(
            [sys.executable, "-m", "tests.support.brokers.serving", chosen.model_dump_json(), *limits],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=forked.ROOT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        if not self.line:
            _, complaint = self.process.communicate(timeout=START_TIMEOUT_S)
            raise AssertionError(f"the broker did not start: {complaint}")
        self.address = self.line.split()[3].rstrip(",")
        self.http_address = self.line.partition("http://")[2].partition("/")[0]

    @property
    def rss_bytes(self) -> int:
        """Return its current resident memory."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    @property
    def is_alive(self) -> bool:
        """Return whether its process is there."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=START_TIMEOUT_S)
        return self.process.returncode

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class RssWatch:
    """The largest resident memory of a process while it is watched."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.peak_bytes = broker.rss_bytes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.peak_bytes = max(self.peak_bytes, self._broker.rss_bytes)

    def __enter__(self) -> RssWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def commit(producer: Producer, halves: list[broker_pb2.Half]) -> broker_pb2.Decided:
    """Send a batch, wait until it is durable, commit it, and wait for the answer."""
    for message in halves:
        producer.send_half(message)
    producer.wait_until_persisted(halves[-1].batch_no)
    producer.decide(halves[-1].batch_no, halves[-1].digest, Verdict.COMMIT)
    return producer.wait_until_decided(halves[-1].batch_no)


def _decide_rest(producer: Producer, ack: Any, halves: list[broker_pb2.Half]) -> list[broker_pb2.Half]:
    """Commit batches that an earlier connection left undecided; return the batches that the broker lacks."""
    for found in ack.undecided:
        producer.decide(found.batch_no, found.digest, Verdict.COMMIT)
        producer.wait_until_decided(found.batch_no)
    there = max([ack.last_batch, *(found.batch_no for found in ack.undecided)])
    return [message for message in halves if message.batch_no > there]


def fill(address: str, first: int, last: int, *, rows: int = 1, business: str = BUSINESS) -> list[broker_pb2.Half]:
    """Commit batches `first` to `last` with a producer of its own; retry if another broker becomes the leader."""
    halves = [half(n, rows=rows) for n in range(first, last + 1)]
    left, end = halves, time.monotonic() + 60.0
    while left:
        try:
            with Producer(address, business, "fill", window_bytes_max=8 << 20) as producer:
                ack = producer.connect(0, 0)
                if left is not halves:
                    left = _decide_rest(producer, ack, halves)
                if left:
                    commit(producer, left)
            return halves
        except NotLeader:
            if time.monotonic() > end:
                raise
            left = halves[:]  # a new list, because some batches may already be there
    return halves


def take(subscriber: Subscriber, until: int, timeout_s: float = 60.0) -> list[broker_pb2.Increment]:
    """Take increments up to offset `until`, and return them."""
    taken: list[broker_pb2.Increment] = []
    end = time.monotonic() + timeout_s
    while subscriber.position < until:
        assert time.monotonic() < end, f"only {subscriber.position} of {until} arrived"
        taken += subscriber.increments(1.0)
    return taken


def traffic(address: str) -> broker_pb2.TrafficStatus:
    """Return the throttled clients and the degraded lanes."""
    with AdminClient(address) as admin:
        return admin.status().traffic


def business_status(address: str, business: str = BUSINESS) -> broker_pb2.BusinessStatus:
    """Return the status of one business."""
    with AdminClient(address) as admin:
        return next(entry for entry in admin.status(business).businesses if entry.business == business)


def data(increments: Iterator[broker_pb2.Increment] | list[broker_pb2.Increment]) -> list[bytes]:
    """Return the bodies of batches."""
    return [increment.body for increment in increments]
