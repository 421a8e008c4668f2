"""One broker becomes three and three become one, in place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.brokers.broker_clusters import BrokerCluster, Writer, bodies, totals
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BrokerProcess, fill, settings
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.errors import VenusError

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


def test_writes_go_on_while_one_broker_becomes_three(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    """The first broker alone is enough, as before, until another one has everything; from then on two are needed."""
    with BrokerProcess(settings(tmp_path / "a")) as alone:
        fill(alone.address, 1, 5, rows=ROWS)
        alone.stop()
    with BrokerCluster(tmp_path, etcd_server, "a") as cluster:
        writer = Writer(cluster)
        writer.go_on()
        writer.write(5, ROWS)
        assert (cluster.record().min_in_sync, cluster.record().min_in_sync_wanted) == (1, 2)
        cluster.brokers["a"].kill()
        cluster.start("a")
        writer.write(5, ROWS)

        cluster.start("b")
        eventually(lambda: cluster.in_sync() == set("ab") and cluster.record().min_in_sync == 2)
        assert cluster.record().min_in_sync_wanted == 0
        writer.write(1, ROWS)
        cluster.start("c")
        eventually(lambda: cluster.in_sync() == set("abc"))
        for name in sorted(set("abc") - {writer.leader}):
            cluster.brokers[name].kill()
        eventually(lambda: len(cluster.in_sync()) == 1)
        with pytest.raises(VenusError, match=r"1 of 3 replicas are (in sync|alive), 2 are needed"):
            _write_one(writer)
        for name in "abc":
            if not cluster.brokers[name].alive:
                cluster.start(name)
        writer.go_on()
        eventually(lambda: cluster.in_sync() == set("abc"))
        last = writer.acknowledged
        assert last in (16, 17)
        found = cluster.contents(last * ROWS)
        assert [found[name] for name in "abc"] == [bodies(last, ROWS)] * 3


def test_three_brokers_become_one_and_three_again(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.write(5, ROWS)
        eventually(lambda: cluster.in_sync() == set("abc"))
        stays = writer.leader
        stale, other = (name for name in "abc" if name != stays)
        cluster.brokers[stale].kill()
        eventually(lambda: stale not in cluster.in_sync())
        writer.write(5, ROWS)
        before = totals(cluster.brokers[stays].address)

        _, err = cluster.venus("cluster", "dissolve", of=stays, code=2)
        assert "is in use by another broker" in err
        cluster.brokers[other].stop()
        cluster.brokers[stays].stop()
        _, err = cluster.venus("cluster", "dissolve", of=stale, code=3)
        assert "this replica of main is not known to be complete; complete are: " in err
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
        eventually(lambda: cluster.in_sync() == set("abc"))
        writer.write(1, ROWS)
        found = cluster.contents(16 * ROWS)
        assert [found[name] for name in "abc"] == [bodies(16, ROWS)] * 3
        assert len({str(totals(broker.address)) for broker in cluster.brokers.values()}) == 1


def _write_one(writer: Writer) -> None:
    """Send one more batch, and wait until it is safe."""
    writer.producer.send_half(half(writer.acknowledged + 1, rows=ROWS))
    writer.producer.wait_until_persisted(writer.acknowledged + 1)
