"""Three replicated brokers on this machine, with etcd: real processes with default settings."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.processes import free_port, peak_rss_bytes
from bench.venus_transmission import BUSINESS, WINDOW_BYTES, make_half
from tests.support.brokers.broker_clusters import BrokerCluster
from tests.support.brokers.etcd import running_etcd
from venus.errors import VenusError
from venus.model import Verdict
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
from venus.wire import broker_pb2

NAMES = "abc"
WAIT_S = 300.0
ANSWER_S = 30.0
MIB = 1 << 20


class Brokers:
    """The three brokers of the cluster, with the operations that figures need."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self._cluster = cluster
        self.reach = cluster.reach(broker.address for broker in cluster.brokers.values())
        self._peaks: dict[str, int] = {}

    def kill(self, name: str) -> None:
        """Kill a broker, as kill -9 does."""
        self._note_peak(name)
        self._cluster.brokers[name].kill()

    def stop(self, name: str) -> None:
        """Stop a broker by SIGTERM, and wait for its end."""
        self._note_peak(name)
        self._cluster.brokers[name].stop()

    def start(self, name: str) -> None:
        """Start a broker, or start it again."""
        self._cluster.start(name)

    def data(self, name: str) -> Path:
        """Return a broker's data directory."""
        return self._cluster.folder / name

    def pids(self) -> list[int]:
        """Return the process ids of the brokers that run."""
        return [broker.process.pid for broker in self._cluster.brokers.values() if broker.is_alive]

    def running_names(self) -> list[str]:
        """Return the names of the brokers that run."""
        return [name for name, broker in self._cluster.brokers.items() if broker.is_alive]

    def status(self, name: str) -> broker_pb2.BusinessStatus | None:
        """Return the state of the business at a broker, or None if the broker does not have it."""
        with contextlib.suppress(VenusError), AdminClient(self._cluster.brokers[name].address) as admin:
            return next(iter(admin.status(BUSINESS).businesses), None)
        return None

    def leader(self) -> str:
        """Wait for a leader and return its name."""

        def find_leader() -> str:
            for name in self.running_names():
                status = self.status(name)
                if status is not None and status.replication.leader == name:
                    return name
            return ""

        return str(wait_for(find_leader))

    def followers(self) -> list[str]:
        """Return the brokers that run, without the leader."""
        leader = self.leader()
        return [name for name in self.running_names() if name != leader]

    def wait_in_sync(self) -> None:
        """Wait until all replicas are in sync."""

        def is_in_sync() -> bool:
            status = self.status(self.leader())
            return status is not None and sum(r.in_sync for r in status.replication.replicas) == len(NAMES)

        wait_for(is_in_sync, every_s=0.01)

    def peak_rss_bytes(self) -> int:
        """Return the largest resident memory that any broker ever had."""
        for name in self.running_names():
            self._note_peak(name)
        return max(self._peaks.values())

    def _note_peak(self, name: str) -> None:
        """Record the peak memory of a broker's process."""
        broker = self._cluster.brokers[name]
        if broker.is_alive:
            self._peaks[name] = max(self._peaks.get(name, 0), peak_rss_bytes(broker.process.pid))


@contextmanager
def run_brokers(*, broker: Mapping[str, Any] | None = None, **cluster: Any) -> Iterator[Brokers]:
    """Start three brokers on empty directories; `broker` and `cluster` are options of [broker] and [cluster]."""
    folder, ports = Path(tempfile.mkdtemp(prefix="venus-bench-")), {name: free_port() for name in NAMES}
    try:
        with (
            running_etcd() as etcd,
            BrokerCluster(
                folder, etcd, broker={"http": "", **(broker or {})}, listen=ports, **{"lease_s": 3.0, **cluster}
            ) as started,
        ):
            yield Brokers(started)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Writer:
    """Client that commits at the leader, as an upper adapter does, and remembers what was acknowledged."""

    def __init__(self, reach: str) -> None:
        self._reach = reach
        self.committed = 0
        self._rows = 0
        self._producer: Producer | None = None

    def commit(self, rows: int = 1) -> float:
        """Commit one batch; return the time of the answer. Raises VenusError if the commit fails."""
        producer = self._connect()
        try:
            half = make_half(self.committed + 1, self._rows + 1, rows)
            producer.send_half(half, timeout_s=ANSWER_S)
            producer.wait_until_persisted(half.batch_no, ANSWER_S)
            producer.decide(half.batch_no, half.digest, Verdict.COMMIT)
            producer.wait_until_decided(half.batch_no, ANSWER_S)
        except VenusError:
            self.close()
            raise
        self.committed, self._rows = half.batch_no, self._rows + rows
        return time.monotonic()

    def commit_until_done(self, rows: int = 1) -> float:
        """Try until a batch is committed; return the time of its answer."""
        end = time.monotonic() + WAIT_S
        while True:
            try:
                return self.commit(rows)
            except VenusError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)

    def stream(self, batches: int, rows: int) -> None:
        """Commit many batches with several in flight; if the leader is lost, continue at the next one."""
        last, end = self.committed + batches, time.monotonic() + WAIT_S
        while self.committed < last:
            try:
                producer = self._connect()  # connecting finds out what is committed
                if self.committed < last:
                    self._send_all(producer, last - self.committed, rows)
            except VenusError:
                self.close()
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)

    def _send_all(self, producer: Producer, batches: int, rows: int) -> None:
        """Send these batches over one connection, and commit each when it is durable."""
        first = self.committed + 1
        halves = [make_half(first + n, self._rows + n * rows + 1, rows) for n in range(batches)]
        decided = first - 1
        for half in halves:
            producer.send_half(half)
            if (through := producer.persisted_through) > decided:
                decided = through
                producer.decide(decided, halves[decided - first].digest, Verdict.COMMIT)
        last = halves[-1]
        producer.wait_until_persisted(last.batch_no)
        producer.decide(last.batch_no, last.digest, Verdict.COMMIT)
        producer.wait_until_decided(last.batch_no)
        self.committed, self._rows = last.batch_no, self._rows + batches * rows

    def _connect(self) -> Producer:
        """Return the open producer, or connect one to the leader."""
        if self._producer is None:
            producer = Producer(self._reach, BUSINESS, "bench", window_bytes_max=WINDOW_BYTES)
            try:
                self._open_producer(producer)
            except BaseException:
                producer.close()
                raise
            self._producer = producer
        return self._producer

    def _open_producer(self, producer: Producer) -> None:
        """Open the stream, and commit undecided half messages. Raises RuntimeError if acknowledged batches are lost."""
        ack = producer.connect(0, self.committed, owner="bench", take_over=True)
        if ack.last_batch < self.committed:
            raise RuntimeError(f"batch {self.committed} was acknowledged, {ack.last_batch} is the last one")
        self.committed, self._rows = ack.last_batch, ack.last_sequence
        for ref in ack.undecided:
            producer.decide(ref.batch_no, ref.digest, Verdict.COMMIT)
            producer.wait_until_decided(ref.batch_no, ANSWER_S)
            self.committed, self._rows = ref.batch_no, ref.first_sequence + ref.count - 1

    def close(self) -> None:
        """End the stream; the next commit opens another."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None


def wait_for(condition: Callable[[], Any], every_s: float = 0.02) -> Any:
    """Wait until a condition returns a true value, and return that value."""
    end = time.monotonic() + WAIT_S
    while not (said := condition()):
        if time.monotonic() > end:
            raise TimeoutError("waited in vain")
        time.sleep(every_s)
    return said
