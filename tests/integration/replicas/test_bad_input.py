"""Invalid states: broker processes refuse each in one line with a remedy; nothing is lost or overwritten."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.broker_clusters import BrokerCluster, Writer
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BUSINESS, business_status, settings
from tests.support.ports import free_ports
from tests.support.waiting import eventually
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.config import ClusterSettings
from venus.coordination.etcd_client import EtcdClient
from venus.errors import VenusError
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer

pytestmark = pytest.mark.integration
ROWS = 10


def offset_at(address: str) -> int:
    """Return the next offset of the business, or -1 while a broker that has just started does not know it yet."""
    with AdminClient(address) as admin:
        return next((each.next_offset for each in admin.status(BUSINESS).businesses), -1)


def refusal(data: Path, **cluster: Any) -> str:
    """Start a broker that must refuse to start; return its message, which must be one line and a hint."""
    chosen = settings(data, free_bytes_min=1 << 20)
    chosen = chosen.model_copy(update={"cluster": ClusterSettings(**{"lease_s": 2.0, **cluster})})
    config = data.parent / f"{data.name}.json"
    config.write_text(chosen.model_dump_json())
    run = (
        "import sys\nfrom venus.broker.service.process import serve\nfrom venus.config import Settings\n"
        "from venus.errors import VenusError\ntry:\n"
        "    sys.exit(serve(Settings.model_validate_json(open(sys.argv[1]).read())))\n"
        "except VenusError as error:\n    sys.stderr.write(f'{error} -> {error.hint}\\n')\n"
        "    sys.exit(error.exit_code)\n"
    )
    done = subprocess.run([sys.executable, "-c", run, str(config)], capture_output=True, text=True, timeout=120)
    assert done.returncode in (2, 3, 12, 75), done
    said = [line for line in done.stderr.splitlines() if " -> " in line]
    assert len(said) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return said[0]


def content(folder: Path) -> dict[str, str]:
    """Return the files of a data directory, except RocksDB's own log of its starts."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in [*sorted(folder.rglob("*.sst")), folder / "cluster.json"]
    }


def test_two_brokers_with_one_id_are_refused(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.write(2, ROWS)
        said = refusal(tmp_path / "second", name=cluster.name, broker_id="a", etcd=etcd_server.addresses)
        assert said.startswith("another broker with the id a is alive, at ")
        assert "give each broker an id of its own ([cluster] broker_id)" in said
        writer.write(2, ROWS)
        assert business_status(cluster.brokers[writer.leader].address).replication.term == 1


def test_the_data_directory_of_another_cluster_is_refused(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path / "one", etcd_server, "a", replicas=1) as first:
        Writer(first).write(2, ROWS)
        first.brokers["a"].stop()
        before = content(tmp_path / "one" / "a")
        with BrokerCluster(tmp_path / "two", etcd_server, "b", replicas=1) as second:
            Writer(second).write(1, ROWS)
            said = refusal(tmp_path / "one" / "a", name=second.name, broker_id="a", etcd=etcd_server.addresses)
            assert "belongs to another cluster" in said
            assert "correct broker.data_dir, [cluster] name or etcd" in said
        assert content(tmp_path / "one" / "a") == before
        first.start("a")
        writer = Writer(first)
        writer.reconnect()
        assert writer.acknowledged == 2


def test_etcd_addresses_that_do_not_answer_are_refused(tmp_path: Path) -> None:
    ports = free_ports(2)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    said = refusal(tmp_path / "a", name="unknown", broker_id="a", etcd=addresses)
    assert said.startswith("etcd does not answer within 2 s (127.0.0.1:")
    assert "is it running? `etcdctl endpoint health` checks it; its addresses are in [cluster] etcd" in said
    assert not (tmp_path / "a" / "cluster.json").exists()


def test_a_store_of_an_unknown_layout_is_refused(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.write(2, ROWS)
        old = next(name for name in "abc" if name != writer.leader)
        cluster.brokers[old].kill()
        store = Store(tmp_path / old / "db")
        batch = store.batch()
        batch.put(keys.STATE, keys.FORMAT, b"1")
        store.write(batch, durable=True)
        store.close()
        said = refusal(tmp_path / old, name=cluster.name, broker_id=old, etcd=etcd_server.addresses)
        assert "has layout 1, this broker reads" in said
        assert (
            "give the broker an empty data_dir. In a cluster nothing else is needed: the broker installs a copy" in said
        )
        shutil.rmtree(tmp_path / old)
        cluster.start(old)
        writer.write(1, ROWS)
        eventually(lambda: offset_at(cluster.brokers[old].address) == 3 * ROWS)


def forget_newest_writes(cluster: BrokerCluster) -> None:
    """Remove etcd's records about stores, as in an etcd that was restored from a backup."""
    with closing(EtcdClient(cluster.etcd.addresses, timeout_s=60.0)) as client:
        for found in client.list(f"/venus/+stores/{cluster.name}/"):
            assert client.swap(found.key, found.revision, None).done


def test_an_old_copy_of_a_data_directory_overwrites_nothing(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.write(2, ROWS)
        old, other = (name for name in "abc" if name != writer.leader)
        leader = writer.leader

        def in_sync() -> set[str]:
            replicas = business_status(cluster.brokers[leader].address).replication.replicas
            return {replica.broker for replica in replicas if replica.in_sync}

        cluster.brokers[old].kill()
        shutil.copytree(tmp_path / old, tmp_path / "backup")
        cluster.start(old)
        eventually(lambda: in_sync() == set("abc"))
        writer.write(5, ROWS)
        eventually(lambda: in_sync() == set("abc"))
        # a follower has every acknowledged batch, and shows those that it knows to be committed
        eventually(lambda: {business_status(b.address).next_offset for b in cluster.brokers.values()} == {7 * ROWS})
        for broker in cluster.brokers.values():
            broker.process.kill()
        for broker in cluster.brokers.values():
            broker.kill()
        shutil.rmtree(tmp_path / old)
        shutil.copytree(tmp_path / "backup", tmp_path / old)
        forget_newest_writes(cluster)
        cluster.start(old)  # alone it is elected: as far as the coordinator knows, it has everything
        eventually(lambda: business_status(cluster.brokers[old].address).replication.leader == old)
        for name in (leader, other):
            cluster.start(name)

        def read_trouble(name: str) -> str:
            return business_status(cluster.brokers[name].address).replication.trouble

        def has_stopped(name: str) -> bool:
            return "leads without acknowledged changes" in read_trouble(name)

        for name in (leader, other):
            eventually(partial(has_stopped, name))
            assert "keeps what it has. If an old data directory was put in place" in read_trouble(name)
            found = business_status(cluster.brokers[name].address)
            assert found.next_offset == 7 * ROWS
            assert read_trouble(name) in found.alarms
        reach = cluster.reach([cluster.brokers[old].address])
        with (
            Producer(reach, "main", "t", window_bytes_max=1) as producer,
            pytest.raises(VenusError, match=r"1 of 3 replicas are in sync, 2 are needed|no broker leads"),
        ):
            producer.connect(0, 7, owner="test", take_over=True)

        cluster.brokers[old].kill()
        shutil.rmtree(tmp_path / old)
        for name in (leader, other):
            cluster.brokers[name].kill()
            cluster.start(name)
        cluster.start(old)
        writer.reconnect()
        assert writer.acknowledged == 7
        writer.write(1, ROWS)
        contents = cluster.contents(8 * ROWS)
        assert contents["a"] == contents["b"] == contents["c"]
