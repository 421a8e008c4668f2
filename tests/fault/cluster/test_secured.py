"""The faults of the cluster with client certificates everywhere: brokers, etcd, capture and apply.

The guarantees are the same as without TLS (test_runs.py). In addition, a connection that is opened again after a fault
needs a certificate too: a broker, an etcd and a client without one are refused before and after.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers.certificates import HOSTS, Authority
from tests.support.brokers.etcd import EtcdCluster, running_etcd
from tests.support.brokers.servers import business_status
from tests.support.databases.postgres import Server
from tests.support.faults import cluster_faults
from tests.support.faults.cluster_faults import QUICK, Fault, run_fault
from tests.support.faults.fault_cluster import NAMES, FaultCluster, fault_cluster
from venus.coordination.login import Login
from venus.errors import VenusError

pytestmark = [pytest.mark.fault, pytest.mark.integration]

ALL = (
    cluster_faults.kill_leader,
    cluster_faults.kill_follower,
    cluster_faults.kill_two,
    cluster_faults.kill_all,
    cluster_faults.pause_leader,
    cluster_faults.cut_one_way,
    cluster_faults.isolate_leader,
    cluster_faults.flip_frame_bits,
    cluster_faults.kill_etcd_leader,
    cluster_faults.restart_one_by_one,
    cluster_faults.disturb_lines,
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("tls") / "certs")
    made.issue("etcd", hosts=HOSTS)
    made.issue("member", "broker", hosts=HOSTS)
    return made


@pytest.fixture(scope="module")
def secured_etcd(authority: Authority) -> Iterator[EtcdCluster]:
    """Start three etcd nodes that require client certificates."""
    folder = authority.folder
    login = Login(ca=authority.ca, certificate=str(folder / "member.crt"), key=str(folder / "member.key"))
    with running_etcd(3, authority=folder, login=login) as cluster:
        yield cluster


def wait_for_writes(
    folder: Path, etcd: EtcdCluster, server: Server, authority: Authority, faults: tuple[Fault, ...]
) -> None:
    with fault_cluster(folder, etcd, server, authority) as cluster:
        check_strangers_refused(cluster)
        for number, fault in enumerate(faults):
            run_fault(cluster, fault, number, QUICK)
        check_strangers_refused(cluster)


def check_strangers_refused(cluster: FaultCluster) -> None:
    for name in NAMES:
        with pytest.raises(VenusError):
            business_status(cluster.brokers[name].address)  # the same address as plain text, without credentials


@pytest.mark.timeout(300)
def test_a_killed_leader(
    tmp_path: Path, secured_etcd: EtcdCluster, postgres_server: Server, authority: Authority
) -> None:
    wait_for_writes(tmp_path, secured_etcd, postgres_server, authority, ALL[:1])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_kind_of_kill_and_cut_line(
    tmp_path: Path, secured_etcd: EtcdCluster, postgres_server: Server, authority: Authority
) -> None:
    wait_for_writes(tmp_path, secured_etcd, postgres_server, authority, ALL[1:])
