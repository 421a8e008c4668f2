"""A data directory that was restored from a backup does not count as up to date: real brokers and etcd."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from tests.support.brokers.broker_clusters import BrokerCluster, Writer
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BUSINESS
from tests.support.ports import free_ports
from tests.support.waiting import eventually
from venus.broker.replicas import store_identity
from venus.broker.store.rocks import Store
from venus.coordination.etcd import EtcdCoordinator
from venus.errors import Fenced, VenusError
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer

pytestmark = pytest.mark.integration
ROWS = 10
WAIT_S = 60.0


def read_note(cluster: BrokerCluster, store: str) -> int:
    with contextlib.closing(EtcdCoordinator(cluster.etcd.addresses, cluster.name, timeout_s=60.0)) as coordinator:
        return coordinator.newest_write(store)


def store_of(cluster: BrokerCluster, name: str) -> str:
    return next(member.store for member in cluster.record().in_sync if member.broker == name)


def refusal(cluster: BrokerCluster, name: str) -> str:
    """Return a broker's error to a producer, which it must refuse."""
    address = cluster.reach([cluster.brokers[name].address])
    with (
        Producer(address, BUSINESS, "test", window_bytes_max=1) as producer,
        pytest.raises(VenusError) as refused,
    ):
        producer.connect(0, 0, owner="test", take_over=True)
    return str(refused.value)


def alarms(cluster: BrokerCluster, name: str) -> list[str]:
    """Return a broker's alarms."""
    with AdminClient(cluster.brokers[name].address) as admin:
        return [alarm for found in admin.status(BUSINESS).businesses for alarm in found.alarms]


def last_offset(folder: Path) -> int:
    """Return the last offset of a closed store."""
    store = Store(folder / "db", read_only=True)
    try:
        return store.opened_at
    finally:
        store.close()


def test_a_replica_from_a_backup_does_not_lead_and_catches_up(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    """It was still in the in-sync set. When it came back first it led, without the batches acknowledged since."""
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.write(3, ROWS)
        eventually(lambda: cluster.in_sync() == set("abc"))
        restored = next(name for name in "abc" if name != writer.leader)
        store = store_of(cluster, restored)
        cluster.brokers[restored].stop()
        shutil.copytree(tmp_path / restored, tmp_path / "backup")
        cluster.start(restored)
        writer.write(20, ROWS)
        eventually(lambda: cluster.in_sync() == set("abc"))
        before = last_offset(tmp_path / "backup")
        eventually(lambda: read_note(cluster, store) > before, timeout_s=WAIT_S)
        for name in "abc":
            cluster.brokers[name].kill()
        shutil.rmtree(tmp_path / restored)
        shutil.copytree(tmp_path / "backup", tmp_path / restored)

        cluster.start(restored)
        eventually(lambda: "no complete replica is alive" in refusal(cluster, restored), timeout_s=WAIT_S)
        for name in set("abc") - {restored}:
            cluster.start(name)
        writer.reconnect()
        assert writer.leader != restored
        writer.write(2, ROWS)
        eventually(lambda: cluster.in_sync() == set("abc"), timeout_s=WAIT_S)
        assert store_of(cluster, restored) != store
        found = cluster.contents(writer.acknowledged * ROWS)
        assert found["a"] == found["b"] == found["c"]
        eventually(lambda: not any(alarms(cluster, name) for name in "abc"), timeout_s=WAIT_S)


def test_a_copy_of_a_data_directory_does_not_continue_alone(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server, "a", replicas=1, min_in_sync=1) as cluster:
        writer = Writer(cluster)
        writer.write(2, ROWS)
        store = store_of(cluster, "a")
        cluster.brokers["a"].stop()
        shutil.copytree(tmp_path / "a", tmp_path / "backup")
        cluster.start("a")
        writer.reconnect()
        writer.write(20, ROWS)
        before = last_offset(tmp_path / "backup")
        eventually(lambda: read_note(cluster, store) > before, timeout_s=WAIT_S)
        cluster.brokers["a"].stop()
        shutil.rmtree(tmp_path / "a")
        shutil.copytree(tmp_path / "backup", tmp_path / "a")

        _, err = cluster.venus("cluster", "dissolve", of="a", code=3)
        assert "is older than it was: it was restored from a backup, or is a copy" in err


def test_a_store_that_returns_unchanged_is_the_same_member(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server, "a", replicas=1, min_in_sync=1) as cluster:
        writer = Writer(cluster)
        store = store_of(cluster, "a")
        for round_no in range(3):
            writer.write(5, ROWS)
            eventually(lambda: read_note(cluster, store) > 0, timeout_s=store_identity.NOTE_EVERY_S + WAIT_S)
            if round_no % 2:
                cluster.brokers["a"].stop()
            else:
                cluster.brokers["a"].kill()
            cluster.start("a")
            writer.reconnect()
            assert store_of(cluster, "a") == store


def test_of_two_processes_with_copies_of_one_data_directory_the_older_ends(
    tmp_path: Path, etcd_server: EtcdCluster
) -> None:
    """Both processes registered in turn, every second. Neither has written a batch that the other lacks."""
    address = f"127.0.0.1:{next(iter(free_ports(1)))}"
    with BrokerCluster(tmp_path, etcd_server, "a", broker={"address": address}) as cluster:
        cluster.brokers["a"].stop()
        shutil.copytree(tmp_path / "a", tmp_path / "copies" / "a")
        older = cluster.start("a")
        cluster.folder = tmp_path / "copies"
        try:
            newer = cluster.start("a")
            eventually(lambda: not older.is_alive)
            assert older.process.returncode == Fenced.exit_code
        finally:
            older.kill()
        assert newer.is_alive
