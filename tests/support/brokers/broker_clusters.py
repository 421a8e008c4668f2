"""Clusters of real broker processes with a real etcd; a broker that is killed keeps its data directory."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.brokers.certificates import EVERYTHING, HOSTS, Authority
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BUSINESS, BrokerProcess, settings, take
from tests.support.engines.batches import half
from tests.support.processes import forked
from tests.support.waiting import eventually
from venus.codec.stored_rows import RowTotals
from venus.config import Settings
from venus.config.cluster import ClusterSettings
from venus.config.sections import MatchingSettings
from venus.coordination.etcd import EtcdCoordinator
from venus.coordination.etcd_client import EtcdClient
from venus.errors import VenusError
from venus.model import Verdict
from venus.replication.records import Leadership
from venus.rpc.producer import Producer
from venus.rpc.snapshots import SnapshotClient
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

FAIL_OVER_S = 60.0
#: What brokers and commands say of an etcd that waits for the machine; it is asked again.
SILENT_ETCD = "etcd does not answer within"
#: A broker that waits for the machine keeps its lease, and is no silent follower. A test of either chooses its own.
PATIENT: Mapping[str, Any] = {"lease_s": 60.0, "silence_s": 60.0}
#: Nor has it trouble: what is slow or full on this machine does not choose the leaders.
CAREFREE: Mapping[str, Any] = {
    "free_bytes_min": 1 << 20,
    "degrade": dict.fromkeys(("cpu_percent", "memory_percent", "lag_ms"), 0),
    "health": dict.fromkeys(
        ("silent_s", "heartbeat_missed_s", "latency_s", "memory_percent", "cpu_percent", "disk_percent"), 0
    ),
}


class ClusterMember(BrokerProcess):
    """A broker of a cluster; `on_kill` follows its death."""

    def __init__(self, chosen: Settings, on_kill: Callable[[], None]) -> None:
        self._on_kill = on_kill
        super().__init__(chosen)

    def kill(self) -> None:
        """Send SIGKILL."""
        has_ended = self.process.returncode is not None
        super().kill()
        if not has_ended:
            self._on_kill()


class BrokerCluster:
    """Brokers a, b and c of one cluster.

    The lease of a broker that is killed ends at once, unless the test chooses how long leases last.
    """

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
        self._listen = listen or {}  # ports that stay the same when a broker is restarted
        self._options, self._broker = cluster, {**CAREFREE, **(broker or {})}
        self._ends_leases = "lease_s" not in cluster
        self.brokers: dict[str, BrokerProcess] = {}
        for name in names:
            self.start(name)

    def start(self, name: str) -> BrokerProcess:
        """Start or restart a broker."""
        own = {**self._broker, **({"listen": f"127.0.0.1:{self._listen[name]}"} if name in self._listen else {})}
        chosen = settings(self.folder / name, **own).model_copy(update={"matching": self._matching})
        if self._authority is not None:
            chosen = chosen.model_copy(update={"security": self._authority.security("member")})
        return self.start_with(name, chosen)

    def start_with(self, name: str, chosen: Settings) -> BrokerProcess:
        """Start a broker of this cluster with other settings of its own."""
        place = {"name": self.name, "broker_id": name, "etcd": self.etcd.addresses, **PATIENT, **self._options}
        chosen = chosen.model_copy(update={"cluster": ClusterSettings(**place)})
        end = time.monotonic() + FAIL_OVER_S
        while True:
            try:
                self.brokers[name] = ClusterMember(chosen, partial(self._end_lease, name))
                return self.brokers[name]
            except AssertionError as error:  # a supervisor starts it again, too
                if SILENT_ETCD not in str(error) or time.monotonic() > end:
                    raise

    def _end_lease(self, name: str) -> None:
        """End a killed broker's lease at once, unless the test has chosen how long leases last."""
        if not self._ends_leases:
            return
        with contextlib.closing(EtcdClient(self.etcd.addresses, timeout_s=60.0, login=self.etcd.login)) as client:
            if (found := client.read(f"/venus/{self.name}/brokers/{name}")) is not None:
                client.revoke(found.lease)

    def configure(self, **cluster: Any) -> None:
        """Use other options of [cluster] from the next start of a broker on."""
        self._options |= cluster

    def reconfigure(self, **broker: Any) -> None:
        """Use other options of [broker] from the next start of a broker on."""
        self._broker |= broker

    def config(self, of: str = "x") -> Path:
        """Write a configuration for commands, with id and data directory of one broker."""
        file = self.folder / "venus.toml"
        reach = json.dumps([broker.address for broker in self.brokers.values()])
        file.write_text(
            f'[cluster]\nname = "{self.name}"\nbroker_id = "{of}"\netcd = {json.dumps(self.etcd.addresses)}\n'
            f'[broker]\naddresses = {reach}\ndata_dir = "{self.folder / of}"\n'
        )
        return file

    def venus(self, *arguments: str, code: int | None = 0, timeout_s: float = 120, of: str = "x") -> tuple[str, str]:
        """Run a command as an operator does; return its output."""
        return self.venus_at(self.config(of), *arguments, code=code, timeout_s=timeout_s)

    def venus_at(self, config: Path, *arguments: str, code: int | None = 0, timeout_s: float = 120) -> tuple[str, str]:
        """Run a command with another configuration."""
        command = [sys.executable, "-m", "venus.cli", *arguments, "-c", str(config)]
        end = time.monotonic() + timeout_s
        while True:
            done = forked.run(
                command, capture_output=True, text=True, timeout=timeout_s, check=False, env=dict(os.environ)
            )
            if SILENT_ETCD not in done.stderr or time.monotonic() > end:
                break
        assert code in (None, done.returncode), f"{arguments}: {done.returncode}, {done.stdout}{done.stderr}"
        return done.stdout, done.stderr

    def record(self, business: str = BUSINESS) -> Leadership:
        """Return the record of a business in etcd."""
        with contextlib.closing(EtcdCoordinator(self.etcd.addresses, self.name, timeout_s=60.0)) as coordinator:
            found = coordinator.read(business)
        assert found is not None
        return found

    def in_sync(self) -> set[str]:
        """Return the names of the brokers that are in sync."""
        return {member.broker for member in self.record().in_sync}

    def address(self, name: str) -> str:
        """Return the address of a broker for a client with all roles."""
        return self.reach([self.brokers[name].address])

    def reach(self, addresses: Iterable[str]) -> str:
        """Return the addresses of several brokers for such a client."""
        text = ",".join(addresses)
        return text if self._authority is None else self._authority.address(text, "all", *EVERYTHING)

    def connect_producer(self, last_batch: int = 0) -> tuple[str, Producer, broker_pb2.InitAck]:
        """Return the leader's name and a connected producer, as soon as it admits one."""
        end, error = time.monotonic() + FAIL_OVER_S, ""
        while time.monotonic() < end:
            names = {broker.address: name for name, broker in self.brokers.items() if broker.is_alive}
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
        return self.contents_at((name for name, broker in self.brokers.items() if broker.is_alive), until)

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
        self._ends_leases = False  # no other broker need notice
        for broker in self.brokers.values():
            broker.kill()


class Writer:
    """Commits batch after batch at the leader, and records the acknowledged ones."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self.cluster = cluster
        self.acknowledged = 0
        self.errors: list[str] = []
        self.leader, self.producer, _ = cluster.connect_producer()

    def reconnect(self) -> None:
        """Find the leader and decide undecided batches, as the upper adapter does; retry if the leader changes."""
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
        """Connect to the leader once, and commit the undecided batches."""
        with contextlib.suppress(VenusError):
            self.producer.close()
        self.leader, self.producer, ack = self.cluster.connect_producer(self.acknowledged)
        assert ack.last_batch >= self.acknowledged, "an acknowledged batch is gone"
        for found in ack.undecided:
            self.producer.decide(found.batch_no, found.digest, Verdict.COMMIT)
            self.producer.wait_until_decided(found.batch_no)
        self.acknowledged = max([ack.last_batch, *(found.batch_no for found in ack.undecided)])

    def write(self, batches: int, rows: int = 10) -> None:
        """Commit this many batches."""
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
    """Writes batch after batch in a thread and records the time of each; the writer must not be used meanwhile."""

    def __init__(self, writer: Writer, rows: int = 10) -> None:
        self._writer, self._rows = writer, rows
        self._stop = threading.Event()
        self.took_s: list[float] = []
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def refusals(self) -> list[str]:
        """Return the errors about too few replicas in sync."""
        return [error for error in self._writer.errors if "are needed" in error]

    def longest_s(self, first: int) -> float:
        """Return the duration of the longest write from number `first` on; a write still in progress counts too."""
        present = len(self.took_s)
        eventually(lambda: self.failure is not None or len(self.took_s) > present, "the present write")
        return max(self.took_s[first:], default=0.0)

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
    """Return the bodies of a writer's batches 1 to ``last``."""
    return [half(n, rows=rows).body for n in range(1, last + 1)]


def totals(address: str) -> dict[int, RowTotals]:
    """Return the broker's own totals of its full data."""
    with SnapshotClient(address) as snapshots:
        return snapshots.totals(snapshots.open(BUSINESS).snapshot_id)
