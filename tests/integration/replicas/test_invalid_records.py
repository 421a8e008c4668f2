"""An unusable record of the coordinator affects its own business alone, and every status names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.brokers.broker_clusters import BrokerCluster, Writer
from tests.support.brokers.etcd import EtcdCluster
from tests.support.waiting import eventually
from venus.coordination.etcd import EtcdCoordinator
from venus.coordination.etcd_client import EtcdClient
from venus.replication.records import Leadership
from venus.rpc.admin import AdminClient

pytestmark = pytest.mark.integration


@pytest.fixture
def client(etcd_server: EtcdCluster) -> Iterator[EtcdClient]:
    with closing(EtcdClient(etcd_server.addresses, timeout_s=60.0)) as made:
        yield made


def test_an_unreadable_record_does_not_remove_the_business(etcd_server: EtcdCluster, client: EtcdClient) -> None:
    """When a newer VENUS wrote a record, each broker took it as missing, and removed its copy of the business."""
    with closing(EtcdCoordinator(etcd_server.addresses, "unread", timeout_s=60.0)) as coordinator:
        first = coordinator.create(Leadership(business="main", term=1, leader=None, in_sync=frozenset()))
        assert first is not None
        changed = coordinator.swap(first, first)
        assert changed is not None
        assert not coordinator.remove(first)
        key = "/venus/unread/businesses/main"
        assert client.swap(key, changed.version, b'{"format": 9}').done
        assert coordinator.leaderships() == ()
        assert coordinator.last_forgotten_term("main") == 0


def test_an_invalid_record_affects_one_business(tmp_path: Path, etcd_server: EtcdCluster, client: EtcdClient) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.write(1)
        root = f"/venus/{cluster.name}/"
        assert client.swap(f"{root}brokers/bent", 0, b"{").done
        assert client.swap(f"{root}businesses/bent", 0, b'{"format": 9}').done
        with closing(EtcdCoordinator(etcd_server.addresses, cluster.name, timeout_s=60.0)) as coordinator:
            assert [broker.member.broker for broker in coordinator.brokers()] == ["a", "b", "c"]
            assert [found.business for found in coordinator.leaderships()] == ["main"]
            broker, business = coordinator.invalid
        assert broker.startswith(f"{root}brokers/bent cannot be used: it is not JSON; let every broker have")
        assert business.startswith(f"{root}businesses/bent cannot be used: a newer VENUS has written it (format 9)")

        address = cluster.brokers[writer.leader].address

        def alarms() -> list[str]:
            with AdminClient(address) as admin:
                return [a for a in admin.status().alarms if a.startswith("a record of the coordinator cannot be used")]

        eventually(lambda: len(alarms()) == 2)
        cluster.brokers[writer.leader].kill()  # an election reads which brokers live
        writer.write(2)
        address = cluster.brokers[writer.leader].address
        for kind in ("brokers", "businesses"):
            found = client.read(f"{root}{kind}/bent")
            assert found is not None
            assert client.swap(found.key, found.revision, None).done
        eventually(lambda: not alarms())
