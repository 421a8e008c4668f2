"""A replicated set becomes the home: any of its brokers is asked, and whoever leads next knows it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.support import networks
from tests.support.batches import half
from tests.support.broker_clusters import BrokerCluster
from tests.support.brokers import BUSINESS, business_status, commit, fill, wait_for
from tests.support.etcd import EtcdCluster
from venus.rpc.admin import Admin
from venus.wire import broker_pb2

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
SURE_S = 60.0


def windows(cluster: BrokerCluster, name: str) -> list[broker_pb2.LossWindow]:
    return list(business_status(cluster.brokers[name].address).losses)


def test_a_cluster_is_promoted_by_any_of_its_brokers_and_stays_the_home(
    tmp_path: Path, etcd_server: EtcdCluster
) -> None:
    home = networks.start(tmp_path / "hq")
    fill(home.address, 1, 3, rows=5)
    try:
        with BrokerCluster(tmp_path, etcd_server, set="second", upstream=(home.address,)) as cluster:
            for broker in cluster.brokers.values():
                wait_for(partial(_has, broker.address, 15), SURE_S)
            wait_for(lambda: cluster.in_sync() == set("abc"), SURE_S)
            home.stop()
            leader = cluster.record().leader
            assert leader is not None
            follower = next(name for name in "abc" if name != leader.broker)
            file = tmp_path / "console.toml"
            file.write_text(f'[broker]\naddresses = ["{cluster.brokers[follower].address}"]\n')
            said, _ = cluster.venus_at(file, "cluster", "promote", "--yes")
            assert "main: set second is the home now, no longer hq (home term 1)" in said

            name, producer, ack = cluster.connected(5)
            with producer:
                assert ack.in_doubt
                producer.pass_over(5, 26)
                assert producer.wait_decided(5).next_offset == 15 + 10 + 2
            assert name == leader.broker
            for one in cluster.brokers:
                wait_for(partial(_measured, cluster, one, 27), SURE_S)
            cluster.brokers[name].kill()
            successor, producer, ack = cluster.connected(5)
            with producer:
                assert (successor != name, ack.in_doubt) == (True, False)
                commit(producer, [half(6, rows=5)])
            assert [window.home_term for window in windows(cluster, successor)] == [1]
            with Admin(cluster.brokers[follower].address) as admin:
                assert admin.close_losses(BUSINESS, "main/eu", [], [1]) == []
            assert windows(cluster, successor) == []
    finally:
        home.stop()


def _has(address: str, offset: int) -> bool:
    try:
        return business_status(address).next_offset == offset
    except StopIteration:
        return False


def _measured(cluster: BrokerCluster, name: str, end_offset: int) -> bool:
    return [window.end_offset for window in windows(cluster, name)] == [end_offset]
