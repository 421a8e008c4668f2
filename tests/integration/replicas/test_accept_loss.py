"""`venus cluster accept-loss`: an operator closes an unclean election whose source is gone, and it stays closed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.support.brokers.broker_clusters import BrokerCluster, Writer
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BUSINESS, business_status
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration
ROWS = 10


def force_unclean_election(cluster: BrokerCluster) -> str:
    """Let the leader continue alone, kill it, and let another broker lead; return that one."""
    writer = Writer(cluster)
    writer.write(3, ROWS)
    eventually(lambda: cluster.in_sync() == set("abc"))
    alone = writer.leader
    first, _ = others = sorted(set("abc") - {alone})
    for name in others:
        cluster.brokers[name].kill()
    eventually(lambda: cluster.in_sync() == {alone})
    writer.reconnect()
    writer.write(2, ROWS)
    writer.producer.close()
    cluster.brokers[alone].kill()
    cluster.start(first)
    eventually(lambda: cluster.record().losses)
    return first


def doubts(cluster: BrokerCluster, name: str) -> list[str]:
    return [alarm for alarm in business_status(cluster.brokers[name].address).alarms if "unclean election" in alarm]


@pytest.mark.parametrize("measured", [False, True], ids=["not measured", "measured"])
def test_possible_losses_are_given_up_by_name(tmp_path: Path, etcd_server: EtcdCluster, measured: bool) -> None:
    with BrokerCluster(tmp_path, etcd_server, policy="availability") as cluster:
        leader = force_unclean_election(cluster)
        (term,) = cluster.record().unclean_terms
        if measured:
            _, producer, ack = cluster.connect_producer(5)
            assert ack.in_doubt
            producer.report_committed(5, 5 * ROWS + 1)
            producer.wait_until_decided(5)
            producer.close()
            eventually(lambda: any(window.is_measured for window in cluster.record().losses))
        eventually(lambda: doubts(cluster, leader))
        before = cluster.record()

        _, said = cluster.venus("cluster", "accept-loss", BUSINESS, code=3)
        what = "offsets 30 to 51 (20 changes in batches 4 to 5)" if measured else "offsets from 30 on"
        assert f"{BUSINESS} may have lost {what}" in said
        assert "venus verify --repair" in said
        assert f"--confirm {BUSINESS}" in said
        _, said = cluster.venus("cluster", "accept-loss", BUSINESS, "--confirm", "mian", code=2)
        assert "--confirm mian: that is not main" in said
        assert cluster.record() == before

        out, _ = cluster.venus("cluster", "accept-loss", BUSINESS, "--confirm", BUSINESS, "--json")
        document = json.loads(out)
        assert (document["terms"], document["unknown_terms"]) == ([term], [] if measured else [term])
        assert document["accepted"][0]["changes"] == (2 * ROWS if measured else None)
        assert not cluster.record().unclean_terms
        eventually(lambda: not doubts(cluster, leader))
        time.sleep(1.0)  # in that time the leader compares its log with the record five times
        assert (cluster.record().unclean_terms, cluster.record().losses) == ((), ())

        out, _ = cluster.venus("cluster", "accept-loss", BUSINESS, "--confirm", BUSINESS)
        assert out.strip() == "main has lost nothing that is known"


def test_a_producer_that_returns_after_accept_loss_continues(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    """No offset is given to two changes: the source's committed batches are skipped, though they are not listed."""
    with BrokerCluster(tmp_path, etcd_server, policy="availability") as cluster:
        leader = force_unclean_election(cluster)
        cluster.venus("cluster", "accept-loss", BUSINESS, "--confirm", BUSINESS)

        _, producer, ack = cluster.connect_producer(5)
        with producer:
            assert ack.in_doubt
            producer.report_committed(5, 5 * ROWS + 1)
            assert producer.wait_until_decided(5).next_offset == 5 * ROWS + 2
        assert business_status(cluster.brokers[leader].address).last_batch == 5
        assert cluster.record().unclean_terms == ()
