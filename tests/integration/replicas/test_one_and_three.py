"""One broker becomes three and three become one, in place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broker_clusters import BrokerCluster, Writer, bodies, totals
from tests.support.brokers import BrokerProcess, fill, settings, wait_for
from tests.support.etcd import EtcdCluster

pytestmark = pytest.mark.integration
ROWS = 10


def test_one_broker_becomes_three_in_place(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerProcess(settings(tmp_path / "a")) as alone:
        fill(alone.address, 1, 5, rows=ROWS)
        alone.stop()
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.go_on()
        assert writer.acknowledged == 5
        writer.write(5, ROWS)
        found = cluster.contents(10 * ROWS)
        assert [found[name] for name in "abc"] == [bodies(10, ROWS)] * 3
        cluster.brokers["a"].stop()
        with pytest.raises(AssertionError, match=r"belongs to a cluster, and \[cluster\] is not set"):
            BrokerProcess(settings(tmp_path / "a"))
        (tmp_path / "a" / "cluster.json").unlink()
        with pytest.raises(AssertionError, match=r"belongs to a cluster, and \[cluster\] is not set"):
            BrokerProcess(settings(tmp_path / "a"))


def test_three_brokers_become_one_and_three_again(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.write(5, ROWS)
        wait_for(lambda: cluster.in_sync() == set("abc"))
        stays = writer.leader
        stale, other = (name for name in "abc" if name != stays)
        cluster.brokers[stale].kill()
        wait_for(lambda: stale not in cluster.in_sync())
        writer.write(5, ROWS)
        before = totals(cluster.brokers[stays].address)

        _, err = cluster.venus("cluster", "dissolve", of=stays, code=2)
        assert "is in use by another broker" in err
        cluster.brokers[other].stop()
        cluster.brokers[stays].stop()
        _, err = cluster.venus("cluster", "dissolve", of=stale, code=3)
        assert "this replica of main is not known to have everything; known to are: " in err
        for _ in range(2):  # one that was interrupted at its end is repeated
            out, _ = cluster.venus("cluster", "dissolve", of=stays)
            assert "remove [cluster] from the configuration" in out

        with BrokerProcess(settings(tmp_path / stays)) as alone:
            assert totals(alone.address) == before
            fill(alone.address, 11, 15, rows=ROWS)
            alone.stop()
        for name in (stays, stale, other):
            cluster.start(name)
        writer.go_on()
        assert writer.acknowledged == 15
        wait_for(lambda: cluster.in_sync() == set("abc"))
        writer.write(1, ROWS)
        found = cluster.contents(16 * ROWS)
        assert [found[name] for name in "abc"] == [bodies(16, ROWS)] * 3
        assert len({str(totals(broker.address)) for broker in cluster.brokers.values()}) == 1
