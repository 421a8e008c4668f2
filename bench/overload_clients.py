"""The clients of bench/overload.py: floods, readers, the timed trickle, and an echo to compare with."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from urllib.request import urlopen

from bench.venus_transmission import make_half
from venus.model import Verdict
from venus.rpc.producer import Producer
from venus.rpc.snapshots import SnapshotClient

BATCH_ROWS = 1000
#: How often a flood without due batches checks what is on the broker's disk.
LOOK_S = 0.002
spawn = multiprocessing.get_context("spawn")


class FloodSource:
    """Source of a flood: sends batch after batch, and commits each that is on the broker's disk."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._digests: dict[int, int] = {}
        self._sent = self._decided = 0
        #: Seconds of waiting for room in the producer's window.
        self.waited_s = 0.0

    def send(self) -> None:
        """Send the next batch; wait while the broker accepts none."""
        self._sent += 1
        half = make_half(self._sent, (self._sent - 1) * BATCH_ROWS + 1, BATCH_ROWS)
        self._digests[self._sent] = half.digest
        asked = time.monotonic()
        self._producer.send_half(half)
        self.waited_s += time.monotonic() - asked
        self.decide()

    def decide(self) -> None:
        """Commit the batches that are on the broker's disk."""
        through = self._producer.persisted_through
        if through > self._decided:
            self._decided = through
            self._producer.decide(through, self._digests[through], Verdict.COMMIT)

    @property
    def committed_batches(self) -> int:
        """How many batches are committed."""
        return self._producer.decided_through

    def finish(self) -> None:
        """Commit everything that was sent."""
        self._producer.wait_until_persisted(self._sent)
        self._producer.decide(self._sent, self._digests[self._sent], Verdict.COMMIT)
        self._producer.wait_until_decided(self._sent, 120)


def flood(address: str, business: str, pace: float, stop: Event, said: Queue[float]) -> None:
    """Send and commit batches until `stop`; report the ratio of offered to accepted load.

    `pace` is in rows a second; 0 = as fast as the broker takes them.
    """
    with Producer(address, business, business, window_bytes_max=32 << 20) as producer:
        producer.connect(0, 0)
        source = FloodSource(producer)
        offered = keep_pace(source, pace, stop) if pace else send_all(source, stop)
        source.finish()
    said.put(offered)


def send_all(source: FloodSource, stop: Event) -> float:
    """Send batches as fast as the broker accepts them; return the ratio of offered to accepted load."""
    began = time.monotonic()
    while not stop.is_set():
        source.send()
    took_s = time.monotonic() - began
    return took_s / max(0.001, took_s - source.waited_s)


def keep_pace(source: FloodSource, rows_per_s: float, stop: Event) -> float:
    """Offer rows at this rate, whether or not they are accepted; return the ratio of offered to accepted load.

    Rows for which the broker has no room stay at the source, like changes in a log table, and are sent later.
    """
    began, taken = time.monotonic(), source.committed_batches
    due, sent = 0.0, 0
    while not stop.is_set():
        due = (time.monotonic() - began) * rows_per_s / BATCH_ROWS
        if sent < due:
            source.send()
            sent += 1
        else:
            time.sleep(LOOK_S)
            source.decide()
    return due / max(1, source.committed_batches - taken)


def read(address: str, business: str, stop: Event) -> None:
    """Read a business's full data repeatedly until `stop` is set."""
    with SnapshotClient(address) as snapshots:
        while not stop.is_set():
            snapshot = snapshots.open(business, splits=4, holder="bench")
            for split in snapshot.splits:
                for _ in snapshots.read_split(snapshot.snapshot_id, split):
                    if stop.is_set():
                        break
            snapshots.close(snapshot.snapshot_id)


def echo(said: Queue[tuple[str, int]]) -> None:
    """Run a server that sends each byte back; its latency is what the machine alone causes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        said.put(server.getsockname())
        while True:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(connection.recv(1))


@contextmanager
def run_echo() -> Iterator[tuple[str, int]]:
    """Run the echo; yield its address."""
    said: Queue[tuple[str, int]] = spawn.Queue()
    process = spawn.Process(target=echo, args=(said,))
    process.start()
    try:
        yield said.get(timeout=60)
    finally:
        process.terminate()
        process.join()


@contextmanager
def use_cores(cores: set[int]) -> Iterator[None]:
    """Run this process, and those that it starts within the block, on these cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def split_cores() -> tuple[set[int], set[int]]:
    """Return the cores of the broker and those of its clients; both are the same if there is only one core."""
    cores = sorted(os.sched_getaffinity(0))
    middle = (len(cores) + 1) // 2
    return set(cores[:middle]), set(cores[middle:] or cores)


@dataclass(slots=True)
class Latencies:
    """Durations of the trickle's requests in milliseconds, by kind of request."""

    health: list[float] = field(default_factory=list)
    half: list[float] = field(default_factory=list)
    decision: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)
    echo: list[float] = field(default_factory=list)


class Trickle:
    """Client that commits one row, asks for health and calls the echo server, one request at a time."""

    def __init__(self, address: str, http: str, echo_address: tuple[str, int]) -> None:
        self._http, self._echo = http, echo_address
        self._producer = Producer(address, "trickle", "trickle", window_bytes_max=1 << 20)
        self._producer.connect(0, 0)
        self.rows = 0

    def run(self, seconds: float, found: Latencies) -> None:
        """Send requests for this many seconds, and record their durations."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._commit(found)
            time.sleep(0.005)
            found.health.append(_measure_time(self._ask_for_health))
            found.echo.append(_measure_time(self._ask_the_echo))
            time.sleep(0.005)

    def _commit(self, found: Latencies) -> None:
        """Commit one row, and record how long each step takes."""
        self.rows += 1
        half = make_half(self.rows, self.rows, 1)
        began = time.monotonic()
        self._producer.send_half(half)
        self._producer.wait_until_persisted(self.rows)
        persisted = time.monotonic()
        self._producer.decide(self.rows, half.digest, Verdict.COMMIT)
        self._producer.wait_until_decided(self.rows)
        decided = time.monotonic()
        found.half.append((persisted - began) * 1000)
        found.decision.append((decided - persisted) * 1000)
        found.commit.append((decided - began) * 1000)

    def _ask_for_health(self) -> None:
        with urlopen(f"http://{self._http}/health", timeout=30) as answer:
            answer.read()

    def _ask_the_echo(self) -> None:
        with socket.create_connection(self._echo, timeout=30) as connection:
            connection.sendall(b"?")
            connection.recv(1)

    def close(self) -> None:
        """End the streams."""
        self._producer.close()


def _measure_time(ask: Callable[[], None]) -> float:
    began = time.monotonic()
    ask()
    return (time.monotonic() - began) * 1000
