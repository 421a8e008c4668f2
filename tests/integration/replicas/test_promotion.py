"""A replicated set is promoted, or replaced as the home: any of its brokers may be asked, and the next leader knows."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.support.brokers import networks
from tests.support.brokers.broker_clusters import BrokerCluster
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BUSINESS, business_status, commit, fill
from tests.support.engines.batches import half
from tests.support.ports import free_port
from tests.support.waiting import eventually
from venus.errors import VenusError
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
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
                eventually(partial(_has_offset, broker.address, 15), timeout_s=SURE_S)
            eventually(lambda: cluster.in_sync() == set("abc"), timeout_s=SURE_S)
            home.stop()
            leader = cluster.record().leader
            assert leader is not None
            follower = next(name for name in "abc" if name != leader.broker)
            file = tmp_path / "console.toml"
            file.write_text(f'[broker]\naddresses = ["{cluster.brokers[follower].address}"]\n')
            said, _ = cluster.venus_at(file, "cluster", "promote", "--yes")
            assert "main: set second is the home now, no longer hq (home term 1)" in said

            name, producer, ack = cluster.connect_producer(5)
            with producer:
                assert ack.in_doubt
                producer.report_committed(5, 26)
                assert producer.wait_until_decided(5).next_offset == 15 + 10 + 2
            assert name == leader.broker
            for one in cluster.brokers:
                eventually(partial(_is_measured, cluster, one, 27), timeout_s=SURE_S)
            cluster.brokers[name].kill()
            successor, producer, ack = cluster.connect_producer(5)
            with producer:
                assert (successor != name, ack.in_doubt) == (True, False)
                commit(producer, [half(6, rows=5)])
            assert [window.home_term for window in windows(cluster, successor)] == [1]
            with AdminClient(cluster.brokers[follower].address) as admin:
                assert admin.close_losses(BUSINESS, "main/eu", [], [1]) == []
            assert windows(cluster, successor) == []
    finally:
        home.stop()


def test_an_old_home_of_three_brokers_returns_and_steps_down(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    ports = {name: free_port() for name in "abc"}
    with BrokerCluster(tmp_path, etcd_server, listen=ports, set="hq") as cluster, networks.starting(tmp_path) as start:
        name, producer, ack = cluster.connect_producer()
        with producer:
            commit(producer, [half(n, rows=5) for n in range(1, 4)])
        eventually(lambda: cluster.in_sync() == set("abc"), timeout_s=SURE_S)
        addresses = [broker.address for broker in cluster.brokers.values()]
        second = start("second", *addresses, tier="core", level=0)
        networks.has(second.address, 15)
        for broker in cluster.brokers.values():
            broker.kill()
        with AdminClient(second.address) as admin:
            assert admin.promote(BUSINESS, only_look=False, force=False).home_term == 1
        with Producer(second.address, BUSINESS, "test", window_bytes_max=1 << 20) as producer:
            epoch = producer.connect(ack.epoch, 3).epoch
            producer.report_committed(3, 16)
            producer.wait_until_decided(3)
            commit(producer, [half(4, rows=5)])

        for name in cluster.brokers:
            cluster.start(name)
        for address in addresses:
            eventually(partial(_is_replaced, address), timeout_s=SURE_S)
        cluster.brokers[_leader(cluster)].kill()
        for name, broker in cluster.brokers.items():
            if not broker.is_alive:
                broker = cluster.start(name)
            eventually(partial(_is_replaced, broker.address), timeout_s=SURE_S)
            _check_redirected(broker.address, second.address, epoch)
        _restart_as_mirror(cluster, second.address)


def _restart_as_mirror(cluster: BrokerCluster, new_home: str) -> None:
    """Restart each broker with another configuration, one after the other; in the end all have the new home's data."""
    cluster.configure(upstream=(new_home,))
    for name in list(cluster.brokers):
        cluster.brokers[name].stop()
        cluster.start(name)
        eventually(lambda: cluster.in_sync() == set("abc"), timeout_s=SURE_S)
    eventually(
        lambda: any(_state(broker.address) == "following" for broker in cluster.brokers.values()), timeout_s=SURE_S
    )
    end = business_status(new_home).next_offset
    for broker in cluster.brokers.values():
        eventually(partial(_has_offset, broker.address, end), timeout_s=SURE_S)
        assert not _is_replaced(broker.address)


def _leader(cluster: BrokerCluster) -> str:
    leader = eventually(lambda: cluster.record().leader, timeout_s=SURE_S)
    return str(leader.broker)


def _check_redirected(address: str, new_home: str, epoch: int) -> None:
    with Producer(address, BUSINESS, "test", window_bytes_max=1 << 20) as late:
        late.connect(epoch, 4)
        assert late.address == new_home


def _is_replaced(address: str) -> bool:
    try:
        return business_status(address).replaced
    except (StopIteration, VenusError):
        return False


def _state(address: str) -> str:
    mirror = networks.mirror_of(address)
    return mirror.state if mirror is not None else ""


def _has_offset(address: str, offset: int) -> bool:
    try:
        return business_status(address).next_offset == offset
    except StopIteration:
        return False


def _is_measured(cluster: BrokerCluster, name: str, end_offset: int) -> bool:
    return [window.end_offset for window in windows(cluster, name)] == [end_offset]
