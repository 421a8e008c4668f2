"""An etcd that returns empty is reported, and the documented remedy loses nothing."""

from __future__ import annotations

import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.support.brokers.broker_clusters import BrokerCluster, Writer, bodies
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import business_status
from tests.support.waiting import eventually
from venus.coordination.etcd_client import EtcdClient

pytestmark = pytest.mark.integration
ROWS = 10
GONE = "the coordinator has no record of it any more, so no broker can take over: was etcd emptied or replaced?"


def empty_etcd(cluster: BrokerCluster) -> None:
    """Remove all records of the cluster, as in an etcd that has lost its disk."""
    with closing(EtcdClient(cluster.etcd.addresses, timeout_s=60.0)) as client:
        for root in (f"/venus/{cluster.name}/", f"/venus/+stores/{cluster.name}/"):
            for found in client.list(root):
                revision = found.revision
                while (result := client.swap(found.key, revision, None)).current is not None:  # without the records
                    revision = result.current.revision


def alarms(cluster: BrokerCluster, name: str) -> list[str]:
    """Return a broker's alarms about a missing record."""
    return [alarm for alarm in business_status(cluster.brokers[name].address).alarms if GONE in alarm]


def test_an_etcd_that_returns_empty_is_reported_and_the_remedy_loses_nothing(
    tmp_path: Path, etcd_server: EtcdCluster
) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.write(5, ROWS)
        eventually(lambda: cluster.in_sync() == set("abc"))
        led = writer.leader

        empty_etcd(cluster)
        for name in "abc":
            eventually(partial(alarms, cluster, name))
        (said,) = alarms(cluster, led)
        assert f"broker {led} led it last" in said
        writer.producer.close()
        for broker in cluster.brokers.values():
            broker.kill()
        with pytest.raises(AssertionError, match="was never created there"):
            cluster.start(led)

        cluster.venus("cluster", "dissolve", "--accept-loss", of=led)
        cluster.start(led)
        for name in set("abc") - {led}:
            shutil.rmtree(tmp_path / name)
            cluster.start(name)
        writer.reconnect()
        assert writer.acknowledged == 5
        writer.write(5, ROWS)
        eventually(lambda: cluster.in_sync() == set("abc"))
        found = cluster.contents(10 * ROWS)
        assert [found[name] for name in "abc"] == [bodies(10, ROWS)] * 3
        assert alarms(cluster, led) == []
