"""A whole pipeline over three replicated brokers, in which each part can be made to fail.

Brokers are processes behind relays; etcd has three nodes, and each broker its own connection to each of them. Source
and target are PostgreSQL; capture and apply are threads of the test. The target logs every row that it receives, and
the producer's side every acknowledged batch.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from tests.support.brokers.certificates import EVERYTHING, HOSTS, Authority
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.forked_brokers import DidNotStart, ForkedBroker, start_supervised
from tests.support.brokers.ledger import Ledger, read_ledger
from tests.support.brokers.servers import business_status, settings
from tests.support.databases.postgres import Server
from tests.support.faults.links import Links
from tests.support.faults.proxy import Proxy
from tests.support.pipelines.end_to_end import Loop, run_at
from tests.support.processes.wall_clock import WallClock
from tests.support.waiting import eventually
from venus.adapters.dialects.registry import open_source
from venus.adapters.targets.relational.apply_session import run_apply
from venus.adapters.targets.relational.control import read_progress
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.upper.capture import CaptureDependencies, connect_producer, run_capture, run_capture_fill
from venus.adapters.upper.ingest import IngestClient
from venus.config import (
    BrokerSettings,
    CaptureSettings,
    ClusterSettings,
    SecuritySettings,
    Settings,
    SourceSettings,
    TargetSettings,
)
from venus.errors import Unavailable, VenusError
from venus.wire import broker_pb2

NAMES = "abc"
LEASE_S = 2.0
#: Longest time until everything has recovered after a fault, on a busy machine.
HEALED_S = 120.0
_TABLES = "CREATE TABLE item (id integer PRIMARY KEY, v text)"
#: Log of the target: the source writes each value once, so a row that arrives twice is in it twice.
_WITNESS = """
CREATE TABLE written (id integer, v text);
CREATE FUNCTION note_written() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN INSERT INTO written VALUES (NEW.id, NEW.v); RETURN NULL; END';
CREATE TRIGGER note_written AFTER INSERT OR UPDATE ON item FOR EACH ROW EXECUTE FUNCTION note_written();
ALTER TABLE item ENABLE ALWAYS TRIGGER note_written
"""


class AcknowledgedBatches:
    """The digest of each batch that brokers reported as committed."""

    def __init__(self) -> None:
        self.digests: dict[int, int] = {}
        self._sent: dict[int, int] = {}

    def watch(self, producer: IngestClient) -> IngestClient:
        """Return a producer whose acknowledgements are recorded."""
        return cast(IngestClient, _WatchedClient(producer, self))

    def record_sent(self, half: broker_pb2.Half) -> None:
        """Record a sent half message."""
        self._sent[half.batch_no] = half.digest

    def through(self, batch_no: int) -> None:
        """Record that every batch up to this one was reported as committed."""
        for number in range(max(self.digests, default=0) + 1, batch_no + 1):
            if number in self._sent:
                self.digests[number] = self._sent[number]


class _WatchedClient:
    """A producer's client that records sent half messages and acknowledged batches."""

    def __init__(self, inner: IngestClient, noted: AcknowledgedBatches) -> None:
        self._inner, self._noted = inner, noted

    def send_half(self, half: broker_pb2.Half, **options: Any) -> None:
        self._noted.record_sent(half)
        self._inner.send_half(half, **options)

    def wait_until_decided(self, batch_no: int, *args: Any, **options: Any) -> broker_pb2.Decided:
        found = self._inner.wait_until_decided(batch_no, *args, **options)
        self._noted.through(self._inner.decided_through)
        return found

    @property
    def decided_through(self) -> int:
        found = self._inner.decided_through
        self._noted.through(found)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class FaultCluster:
    """Three brokers between a source and a target."""

    def __init__(
        self, folder: Path, etcd: EtcdCluster, source: str, target: str, authority: Authority | None = None
    ) -> None:
        self.folder, self.etcd, self._name = folder, etcd, etcd.new_name()
        self._authority = authority
        if authority is not None:
            authority.issue("member", "broker", hosts=HOSTS, replace=True)
            authority.proof("all", *EVERYTHING)
        self.source, self.target = source, target
        self.brokers: dict[str, ForkedBroker] = {}
        self._pids: dict[str, int] = {}
        self.links = Links(lambda: self._pids)
        self.to_etcd = {name: [Proxy(node.address) for node in etcd.nodes] for name in NAMES}
        self.clocks = {name: WallClock(folder / f"{name}.clock") for name in NAMES}
        for name in NAMES:
            self.links.relay(name)
        for name in NAMES:
            self.start(name)
        self.acknowledged = AcknowledgedBatches()
        self._owed: dict[int, int] = {}
        self.settings = Settings(
            source=SourceSettings.model_validate({"url": source}),
            targets={"main": TargetSettings.model_validate({"url": target})},
            broker=BrokerSettings(addresses=tuple(relay.address for relay in self.links.relays.values())),
            capture=CaptureSettings(heartbeat_s=1.0),
            security=self._security("all"),
        )
        self._loops: list[Loop] = []
        self._damaged = ""

    # -- brokers -------------------------------------------------------------------------------------------------

    def start(self, name: str) -> ForkedBroker:
        """Start or restart a broker."""
        cluster = ClusterSettings(
            name=self._name,
            broker_id=name,
            etcd=tuple(p.address for p in self.to_etcd[name]),
            lease_s=LEASE_S,
            etcd_ca=self.etcd.login.ca,
            etcd_certificate=self.etcd.login.certificate,
            etcd_key=self.etcd.login.key,
        )
        relay = self.links.relays[name]
        chosen = settings(self.data(name), address=relay.address, http="", free_bytes_min=1 << 20, cache_bytes=16 << 20)
        chosen = chosen.model_copy(update={"cluster": cluster, "security": self._security("member")})
        follow, begun = self.clocks[name].follow, partial(self._on_start, name)
        broker = start_supervised(chosen, self.folder / f"{name}.log", [follow], begun)
        relay.target = broker.address
        self.brokers[name] = broker
        return broker

    def _security(self, name: str) -> SecuritySettings:
        return SecuritySettings() if self._authority is None else self._authority.security(name)

    def address(self, name: str) -> str:
        """Return a broker's own address, behind its relay, for a client with all roles."""
        text = self.brokers[name].address
        return text if self._authority is None else self._authority.address(text, "all", *EVERYTHING)

    def _on_start(self, name: str, pid: int) -> None:
        self._pids[name] = pid

    def refusal_of(self, name: str) -> str:
        """Start a broker; return its output if it refuses to serve."""
        try:
            self.start(name)
        except DidNotStart as refused:
            return str(refused)
        return ""

    def data(self, name: str) -> Path:
        """Return a broker's data directory."""
        return self.folder / name

    def lose_disk(self, name: str) -> None:
        """Remove a broker's data."""
        shutil.rmtree(self.data(name))

    def start_all(self) -> None:
        """Start the brokers that are not running."""
        for name in NAMES:
            if not self.brokers[name].is_alive:
                self.start(name)

    def watch_damaged(self, name: str) -> None:
        """Read all data of a broker with a damaged file: it must find the damage and exit, or serve correct data."""
        self._damaged = name

    def replace_damaged(self) -> None:
        """Give an empty disk to a broker that exited because of its damaged store, as an operator does."""
        name, self._damaged = self._damaged, ""
        if not name or self._is_unharmed(name):
            return
        broker = self.brokers[name]
        self.until(lambda: not broker.is_alive, f"{name}, whose store is damaged, to end itself")
        assert broker.exit_code == 12, broker.output()
        self.lose_disk(name)
        self.start(name)

    def _is_unharmed(self, name: str) -> bool:
        """Return whether a broker serves all of its data correctly; False if it exits instead."""
        broker = self.brokers[name]
        end = time.monotonic() + HEALED_S
        while broker.is_alive:
            assert time.monotonic() < end, broker.output()
            try:
                read_ledger(self.address(name), holder="")
            except Unavailable:
                time.sleep(0.2)  # the broker has just started, or is ending
            else:
                return True
        return False

    def leader(self) -> str:
        """Wait until a broker reports that it leads, and return its name."""
        found: list[str] = []

        def has_leader() -> bool:
            found.clear()
            for name, broker in self.brokers.items():
                with contextlib.suppress(VenusError, StopIteration):
                    if broker.is_alive and business_status(self.address(name)).replication.leader == name:
                        found.append(name)
            return bool(found)

        self.until(has_leader, "a leader")
        return found[0]

    # -- source and target ---------------------------------------------------------------------------------------

    def set_up(self) -> None:
        """Install the triggers, load the empty table, and start capture and apply."""
        run_at(self.source, _TABLES)
        with contextlib.closing(open_source(self.settings)) as opened:
            opened.installer.install(self.settings.source.tables, self.settings.source.exclude)
        run_capture_fill(self.settings, threading.Event())
        full_sync(self.settings, "main")
        run_at(self.target, _WITNESS)
        self.until(self.is_in_sync, "all replicas to be in sync")
        assert len(self.links.met & set(NAMES)) >= len(NAMES) - 1, "links cannot be cut whose ends are not known"
        outside = CaptureDependencies(ingest=lambda chosen: self.acknowledged.watch(connect_producer(chosen)))
        self._loops = [
            Loop(lambda stop: run_capture(self.settings, stop, outside=outside)),
            Loop(lambda stop: run_apply(self.settings, "main", stop)),
        ]

    def until(self, condition: Callable[[], object], what: str, timeout_s: float = HEALED_S) -> None:
        """Wait for a condition; raise the error of a loop that fails before."""

        def check() -> object:
            for loop in self._loops:
                if loop.error is not None:
                    raise loop.error
            return condition()

        eventually(check, lambda: f"{what}\n{self.describe()}", timeout_s=timeout_s, every_s=0.05)

    def describe(self) -> str:
        """Return the state of every part, for the message of a failure."""
        lines = [repr(run_at(self.source, "SELECT count(*) FROM item"))]
        for name, broker in self.brokers.items():
            if broker.is_alive:
                with contextlib.suppress(VenusError, StopIteration):
                    lines.append(f"{name}: {business_status(self.address(name))}")
            lines.append(f"{name} said:\n{broker.output()}")
        return "\n".join(lines)

    # -- what must be true after each fault ----------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until the source's log is empty, every replica is in sync, and every broker has everything."""
        self.replace_damaged()
        self.until(self._is_captured, "the source's log to be empty")
        self._owed = dict(self.acknowledged.digests)  # later entries are the source's heartbeats
        self.until(self._has_caught_up, "the replicas and the target to have everything")

    def _is_captured(self) -> bool:
        """Return whether the source's log is empty."""
        with contextlib.closing(open_source(self.settings)) as opened:
            return not sum(rows for rows, _ in opened.capture.read_backlog().values())

    def _standing(self) -> dict[str, broker_pb2.BusinessStatus]:
        """Return the status of every broker, the leader's first; {} while a broker is missing or not in sync."""
        try:
            found = {name: business_status(self.address(name)) for name in self.brokers}
        except (VenusError, StopIteration):
            return {}
        leaders = [name for name, status in found.items() if status.replication.leader == name]
        if len(leaders) != 1 or sum(r.in_sync for r in found[leaders[0]].replication.replicas) < len(NAMES):
            return {}
        return {leaders[0]: found[leaders[0]], **found}

    def is_in_sync(self) -> bool:
        """Return whether every broker is running and in sync."""
        return bool(self._standing())

    def _has_caught_up(self) -> bool:
        """Return whether all replicas and the target have everything, and nothing is undecided."""
        found = self._standing()
        if not found:
            return False
        leads = next(iter(found.values()))
        ends = {(status.next_offset, status.materialised_offset) for status in found.values()}
        position = read_progress(self.settings, "main").position
        applied = position.offset if position is not None else 0
        halves = any(status.halves for status in found.values())
        return not halves and ends == {(leads.next_offset, leads.next_offset)} and applied >= leads.next_offset

    def check(self) -> None:
        """Compare source, every replica and target; no acknowledged batch is missing or doubled."""
        wanted = set(run_at(self.source, "SELECT id, v FROM item"))
        assert set(run_at(self.target, "SELECT id, v FROM item")) == wanted, "the target differs from the source"
        twice = run_at(self.target, "SELECT id, v, count(*) FROM written GROUP BY 1, 2 HAVING count(*) > 1")
        assert twice == [], "rows were written twice at the target"
        run_at(self.target, "TRUNCATE written")
        ledgers = {name: read_ledger(self.address(name), holder="") for name in self.brokers}
        for name, ledger in ledgers.items():
            self._check_replica(name, ledger, wanted)
        shortest = min(len(ledger.digests) for ledger in ledgers.values())  # the source's heartbeat continues to write
        queues = {tuple(ledger.digests[:shortest]) for ledger in ledgers.values()}
        assert len(queues) == 1, "the replicas' queues differ"

    def _check_replica(self, name: str, ledger: Ledger, wanted: set[tuple[Any, ...]]) -> None:
        found = {(int(str(key[0])), value[0]) for key, value in ledger.values("item").items()}
        assert found == wanted, f"the full data of {name} differs from the source"
        for number, digest in self._owed.items():
            assert number <= len(ledger.digests), f"{name} lacks batch {number}, which was acknowledged"
            assert ledger.digests[number - 1] == digest, f"{name} has another batch {number}"

    def close(self) -> None:
        """Stop every part."""
        self.links.heal()
        for loop in self._loops:
            loop.stop.set()
        for broker in self.brokers.values():
            broker.kill()
        for loop in self._loops:
            loop.end()
        self.links.close()
        for proxies in self.to_etcd.values():
            for proxy in proxies:
                proxy.close()


@contextmanager
def fault_cluster(
    folder: Path, etcd: EtcdCluster, server: Server, authority: Authority | None = None
) -> Iterator[FaultCluster]:
    """Run a cluster with a working pipeline; with an authority all parts but the databases use client certificates."""
    source, target = server.create_database(), server.create_database()
    cluster = FaultCluster(folder, etcd, source, target, authority)
    try:
        cluster.set_up()
        yield cluster
    finally:
        cluster.close()
        for database in (source, target):
            server.drop_database(database)
