"""Clusters of real broker processes with a real etcd; a broker that is killed keeps its data directory."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.brokers.certificates import EVERYTHING, HOSTS, Authority
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BUSINESS, BrokerProcess, settings, take
from tests.support.engines.batches import half
from tests.support.processes import forked
from venus.codec.stored_rows import RowTotals
from venus.config.sections import MatchingSettings
from venus.coordination.etcd import EtcdCoordinator
from venus.errors import VenusError
from venus.model import Verdict
from venus.replication.records import Leadership
from venus.rpc.producer import Producer
from venus.rpc.snapshots import SnapshotClient
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

FAIL_OVER_S = 30.0


class BrokerCluster:
    """Brokers a, b, c of one cluster."""

    def __init__(
        self,
        folder: Path,
        etcd: EtcdCluster,
        names: str = "abc",
        *,
        authority: Authority | None = None,
        broker: Mapping[str, Any] | None = None,
        listen: Mapping[str, int] | None = None,
        matching: MatchingSettings | None = None,
        **cluster: Any,
    ) -> None:
        self.folder, self.etcd, self.name, self._authority = folder, etcd, etcd.new_name(), authority
        if authority is not None:
            authority.issue("member", "broker", hosts=HOSTS)
        self._matching = matching or MatchingSettings()
        self._listen = listen or {}  # ports that stay the same when a broker is started again
        self._options, self._broker = cluster, {"free_bytes_min": 1 << 20, **(broker or {})}
        self.brokers: dict[str, BrokerProcess] = {}
        for name in names:
            self.start(name)

    def start(self, name: str) -> BrokerProcess:
        """Start a broker, or start it again."""
        cluster = {"name": self.name, "broker_id": name, "etcd": self.etcd.addresses, "lease_s": 2.0, **self._options}
        own = {**self._broker, **({"listen": f"127.0.0.1:{self._listen[name]}"} if name in self._listen else {})}
        chosen = settings(self.folder / name, **own).model_copy(
            update={"cluster": type(settings(self.folder).cluster)(**cluster), "matching": self._matching}
        )
        if self._authority is not None:
            chosen = chosen.model_copy(update={"security": self._authority.security("member")})
        self.brokers[name] = BrokerProcess(chosen)
        return self.brokers[name]

    def configure(self, **cluster: Any) -> None:
        """Have other options of [cluster] from the next start of a broker on."""
        self._options |= cluster

    def reconfigure(self, **broker: Any) -> None:
        """Have other options of [broker] from the next start of a broker on."""
        self._broker |= broker

    def config(self, of: str = "x") -> Path:
        """Return a configuration for commands, with id and data directory of one broker."""
        file = self.folder / "venus.toml"
        reach = json.dumps([broker.address for broker in self.brokers.values()])
        file.write_text(
            f'[cluster]\nname = "{self.name}"\nbroker_id = "{of}"\netcd = {json.dumps(self.etcd.addresses)}\n'
            f'[broker]\naddresses = {reach}\ndata_dir = "{self.folder / of}"\n'
        )
        return file

    def venus(self, *arguments: str, code: int | None = 0, timeout_s: float = 120, of: str = "x") -> tuple[str, str]:
        """Run a command as an operator does; return what it says."""
        return self.venus_at(self.config(of), *arguments, code=code, timeout_s=timeout_s)

    def venus_at(self, config: Path, *arguments: str, code: int | None = 0, timeout_s: float = 120) -> tuple[str, str]:
        """Run a command with another configuration."""
        command = [sys.executable, "-m", "venus.cli", *arguments, "-c", str(config)]
        done = forked.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=dict(os.environ))
        assert code in (None, done.returncode), f"{arguments}: {done.returncode}, {done.stdout}{done.stderr}"
        return done.stdout, done.stderr

    def record(self, business: str = BUSINESS) -> Leadership:
        """Return what etcd has of a business."""
        with contextlib.closing(EtcdCoordinator(self.etcd.addresses, self.name, timeout_s=10.0)) as coordinator:
            found = coordinator.read(business)
        assert found is not None
        return found

    def in_sync(self) -> set[str]:
        """Return the brokers that have everything."""
        return {member.broker for member in self.record().in_sync}

    def address(self, name: str) -> str:
        """Return where a client who may do everything finds a broker."""
        return self.reach([self.brokers[name].address])

    def reach(self, addresses: Iterable[str]) -> str:
        """Return where such a client finds several brokers."""
        text = ",".join(addresses)
        return text if self._authority is None else self._authority.address(text, "all", *EVERYTHING)

    def connect_producer(self, last_batch: int = 0) -> tuple[str, Producer, broker_pb2.InitAck]:
        """Return the leader's name and a producer there, as soon as one lets it in."""
        end, error = time.monotonic() + FAIL_OVER_S, ""
        while time.monotonic() < end:
            names = {broker.address: name for name, broker in self.brokers.items() if broker.alive}
            with contextlib.ExitStack() as stack:
                try:
                    producer = Producer(self.reach(names), BUSINESS, "test", window_bytes_max=8 << 20)
                    stack.enter_context(producer)
                    ack = producer.connect(0, last_batch, owner="test", take_over=True)
                except VenusError as found:
                    error = str(found)
                    time.sleep(0.05)
                    continue
                stack.pop_all()
                return names[producer.address], producer, ack
        raise AssertionError(f"no broker lets a producer in: {error}")

    def contents(self, until: int) -> dict[str, list[bytes]]:
        """Return the bodies of every living broker's queue up to an offset."""
        return self.contents_at((name for name, broker in self.brokers.items() if broker.alive), until)

    def contents_at(self, names: Iterable[str], until: int) -> dict[str, list[bytes]]:
        """Return the bodies of some brokers' queues up to an offset."""
        found = {}
        for name in names:
            with Subscriber(self.address(name), BUSINESS, "look", credit_bytes=8 << 20, transient=True) as subscriber:
                subscriber.open(0, 0)
                found[name] = [increment.body for increment in take(subscriber, until)]
        return found

    def __enter__(self) -> BrokerCluster:
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            broker.kill()


class Writer:
    """Commits batch after batch with the leader, and knows what was acknowledged."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self.cluster = cluster
        self.acknowledged = 0
        self.errors: list[str] = []
        self.leader, self.producer, _ = cluster.connect_producer()

    def reconnect(self) -> None:
        """Find the leader, and decide what is undecided, as the upper adapter does: again if the leader moves again."""
        end = time.monotonic() + FAIL_OVER_S
        while True:
            try:
                self._reconnect()
            except VenusError as error:
                if not error.retryable or time.monotonic() > end:
                    raise
                self.errors.append(str(error))
            else:
                return

    def _reconnect(self) -> None:
        with contextlib.suppress(VenusError):
            self.producer.close()
        self.leader, self.producer, ack = self.cluster.connect_producer(self.acknowledged)
        assert ack.last_batch >= self.acknowledged, "an acknowledged batch is gone"
        for found in ack.undecided:
            self.producer.decide(found.batch_no, found.digest, Verdict.COMMIT)
            self.producer.wait_until_decided(found.batch_no)
        self.acknowledged = max([ack.last_batch, *(found.batch_no for found in ack.undecided)])

    def write(self, batches: int, rows: int = 10) -> None:
        """Commit so many batches."""
        last = self.acknowledged + batches
        while self.acknowledged < last:
            message = half(self.acknowledged + 1, rows=rows)
            try:
                self.producer.send_half(message)
                self.producer.wait_until_persisted(message.batch_no)
                self.producer.decide(message.batch_no, message.digest, Verdict.COMMIT)
                self.producer.wait_until_decided(message.batch_no)
                self.acknowledged = message.batch_no
            except VenusError as error:
                self.errors.append(str(error))
                self.reconnect()


class SteadyWriter:
    """Writes batch after batch in a thread, and knows how long each took; the writer must not be used meanwhile."""

    def __init__(self, writer: Writer, rows: int = 10) -> None:
        self._writer, self._rows = writer, rows
        self._stop = threading.Event()
        self.took_s: list[float] = []
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def refusals(self) -> list[str]:
        """Return the errors that say that too few replicas are in sync."""
        return [error for error in self._writer.errors if "are needed" in error]

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                self._writer.write(1, self._rows)
                self.took_s.append(time.monotonic() - began)
        except BaseException as error:
            self.failure = error

    def __enter__(self) -> SteadyWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(FAIL_OVER_S)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure


def bodies(last: int, rows: int) -> list[bytes]:
    """Return the bodies that a writer's batches 1 to ``last`` have."""
    return [half(n, rows=rows).body for n in range(1, last + 1)]


def totals(address: str) -> dict[int, RowTotals]:
    """Return the broker's own account of its full data."""
    with SnapshotClient(address) as snapshots:
        return snapshots.totals(snapshots.open(BUSINESS).snapshot_id)
