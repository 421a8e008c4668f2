"""`availability` from end to end: three broker processes, etcd, PostgreSQL under writers to PostgreSQL (VENUS 3.1).

Two brokers are killed; the last one continues alone, and is killed as well. A broker that lacks the batches of that
time returns: it leads, names what may be lost, and a repair makes source, target and all replicas equal.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.broker_clusters import BrokerCluster
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BUSINESS, BrokerProcess, business_status, settings
from tests.support.databases.postgres import Server
from tests.support.databases.workload import change_item, writers
from tests.support.pipelines.end_to_end import EndToEnd, run_at
from tests.support.ports import free_ports
from tests.support.processes import forked
from tests.support.waiting import eventually
from venus.broker.replicas.store_identity import dissolve
from venus.rpc.snapshots import SnapshotClient
from venus.wire import broker_pb2

pytestmark = [pytest.mark.integration, pytest.mark.timeout(540)]
SURE_S = 60.0
CONFIGURATION = """\
[source]
url = "{source}"

[targets.main]
url = "{target}"

[broker]
addresses = {addresses}

[cluster]
name = "{cluster}"
broker_id = "console"
etcd = {etcd}
"""


class AvailabilityPipeline:
    """Three brokers, etcd, a source and a target of one test."""

    def __init__(self, folder: Path, server: Server, etcd: EtcdCluster, **cluster: Any) -> None:
        self.folder = folder
        self.source, self.target = server.create_database(), server.create_database()
        self.ports = dict(zip("abc", free_ports(3), strict=True))
        self.addresses = tuple(f"127.0.0.1:{port}" for port in self.ports.values())
        run_at(self.source, "CREATE TABLE item (id int PRIMARY KEY, v text)")
        self.cluster = BrokerCluster(folder, etcd, listen=self.ports, **cluster)
        self.e2e = EndToEnd(folder, self.source, self.target, addresses=self.addresses)
        (folder / "venus.toml").write_text(
            CONFIGURATION.format(
                source=self.source,
                target=self.target,
                addresses=json.dumps(self.addresses),
                cluster=self.cluster.name,
                etcd=json.dumps(list(etcd.addresses)),
            )
        )

    def venus(self, *arguments: str, code: int = 0) -> Any:
        """Run a command and return its document."""
        done = forked.run(
            [sys.executable, "-m", "venus.cli", *arguments, "--json"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SURE_S * 2,
        )
        assert done.returncode == code, f"{arguments} => {done.returncode}\n{done.stdout}{done.stderr}"
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def status(self, name: str) -> broker_pb2.BusinessStatus:
        return business_status(self.cluster.brokers[name].address)

    def leader(self) -> str:
        """Return the leader that can write, once one exists."""

        def find_leader() -> str:
            for name, broker in self.cluster.brokers.items():
                if broker.process.poll() is None and self.status(name).replication.mode:
                    return name if not self.status(name).replication.refusal else ""
            return ""

        return str(eventually(find_leader, timeout_s=SURE_S))

    def in_sync(self, name: str) -> set[str]:
        return {r.broker for r in self.status(name).replication.replicas if r.in_sync}

    def full(self, name: str) -> Any:
        """Return a broker's own listing of its full data."""
        with SnapshotClient(self.cluster.brokers[name].address) as snapshots:
            snapshot_id = snapshots.open(BUSINESS).snapshot_id
            try:
                return snapshots.totals(snapshot_id)
            finally:
                snapshots.close(snapshot_id)  # the next status is no older than this

    def log_of(self, name: str) -> broker_pb2.BusinessStatus:
        """Return a killed broker's log, from a copy of its data that a standalone broker opens."""
        copy = self.folder / f"{name}-copy"
        shutil.copytree(self.folder / name, copy)
        dissolve(copy, name, None)  # no other broker is asked: the copy is read by itself
        with BrokerProcess(settings(copy, free_bytes_min=0)) as alone:
            return business_status(alone.address)


@contextmanager
def place(folder: Path, server: Server, etcd: EtcdCluster, **cluster: Any) -> Iterator[AvailabilityPipeline]:
    made = AvailabilityPipeline(folder, server, etcd, **cluster)
    with made.cluster:
        try:
            yield made
        finally:
            made.e2e.close()
    server.drop_database(made.source)
    server.drop_database(made.target)


def write(at: AvailabilityPipeline, seed: int) -> None:
    """Let two writers do some transactions."""
    with writers(at.source, change_item, count=2, seed=seed) as counts:
        eventually(lambda: counts.failed or counts.ended["commit"] >= 20, "writers")
    assert not counts.failed


def lose_lone_leader(at: AvailabilityPipeline) -> tuple[str, str, str]:
    """Let the leader continue alone under writers, with the target following for a while, then kill it.

    Return its name, that of the broker that returns first, and of the third one.
    """
    e2e = at.e2e
    e2e.install()
    e2e.load()
    e2e.start()
    write(at, seed=1)
    e2e.wait_until_caught_up()
    leader = at.leader()
    eventually(lambda: at.in_sync(leader) == set("abc"), timeout_s=SURE_S)
    first, third = (name for name in "abc" if name != leader)
    for name in (first, third):
        at.cluster.brokers[name].kill()
    eventually(lambda: at.in_sync(leader) == {leader}, timeout_s=SURE_S)
    # the target has a part of what will be lost, and no writer changes these two rows
    run_at(at.source, "INSERT INTO item VALUES (-1, 'applied and lost')")
    write(at, seed=2)
    eventually(lambda: run_at(at.target, "SELECT 1 FROM item WHERE id = -1"), "the target to follow")
    e2e.stop("apply")
    run_at(at.source, "INSERT INTO item VALUES (-2, 'lost')")
    write(at, seed=3)
    eventually(lambda: not e2e.log_rows(), timeout_s=SURE_S)
    eventually(lambda: not at.status(leader).halves, timeout_s=SURE_S)
    at.cluster.brokers[leader].kill()
    return leader, first, third


def rows(url: str) -> list[tuple[Any, ...]]:
    return run_at(url, "SELECT id, v FROM item ORDER BY id")


def test_losses_are_named_and_repaired(tmp_path: Path, postgres_server: Server, etcd_server: EtcdCluster) -> None:
    with place(tmp_path, postgres_server, etcd_server, policy="availability") as at:
        leader, first, third = lose_lone_leader(at)
        had = at.log_of(leader)
        at.cluster.start(first)
        assert at.leader() == first
        with writers(at.source, change_item, count=2, seed=4) as counts:
            at.e2e.start("apply")
            eventually(lambda: at.status(first).replication.losses, timeout_s=SURE_S)
            window = eventually(lambda: [w for w in at.status(first).replication.losses if w.HasField("end_offset")])[0]
            eventually(lambda: counts.ended["commit"] >= 20, "writers")

        # the window is what was acknowledged and is missing, plus one offset for each batch that may be empty
        batches = window.last_batch - window.first_batch + 1
        assert window.last_batch == had.last_batch
        assert window.end_offset - window.first_offset == window.rows + batches
        assert had.next_offset - window.first_offset == window.rows > 0
        (business,) = at.venus("cluster", "status", code=1)["businesses"]
        assert business["unclean_terms"] == [window.term]
        assert business["losses"][0]["changes"] == window.rows
        (alarm,) = [a for a in at.status(first).alarms if "unclean election" in a]
        assert f"offsets {window.first_offset} to {window.end_offset - 1}" in alarm

        for name in (leader, third):
            at.cluster.start(name)
        eventually(lambda: at.in_sync(first) == set("abc"), timeout_s=SURE_S)
        at.e2e.wait_until_caught_up()
        assert at.venus("verify", "--leg", "all", code=1)["verdict"] == "different"
        said = at.venus("verify", "--repair", "--wait-s", "60")
        assert said["losses"]["closed"], said["losses"]
        at.e2e.wait_until_caught_up()
        assert rows(at.source) == rows(at.target)
        assert at.venus("verify", "--leg", "all")["verdict"] == "same"
        at.e2e.stop("capture")  # each heartbeat changes the content, and the brokers are read one after the other
        eventually(lambda: at.full("a") == at.full("b") == at.full("c"), timeout_s=SURE_S)
        at.e2e.start("capture")
        eventually(lambda: not at.status(first).replication.losses)
        assert at.venus("cluster", "status")["businesses"][0]["losses"] == []
