"""Connections between three real brokers are slow, lossy and cut: no batch is lost, none is stored twice.

The relays in front of the brokers are the network (tests/support/faults/links.py). A lost packet is simulated as TCP
shows it: a pause in which nothing after it arrives. The leader is killed meanwhile, and what it was sending is lost.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.brokers.etcd import EtcdCluster
from tests.support.databases.postgres import Server
from tests.support.faults.cluster_faults import QUICK, SLOW, disturb_lines, run_fault
from tests.support.faults.fault_cluster import fault_cluster

pytestmark = [pytest.mark.fault, pytest.mark.integration]


@pytest.mark.timeout(300)
def test_a_leader_is_killed_behind_poor_lines(tmp_path: Path, etcd: EtcdCluster, postgres_server: Server) -> None:
    with fault_cluster(tmp_path, etcd, postgres_server) as cluster:
        run_fault(cluster, disturb_lines, 1, QUICK)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_leaders_are_killed_behind_poor_lines_again_and_again(
    tmp_path: Path, etcd: EtcdCluster, postgres_server: Server
) -> None:
    with fault_cluster(tmp_path, etcd, postgres_server) as cluster:
        for number in range(2, 22):
            run_fault(cluster, disturb_lines, number, SLOW)
