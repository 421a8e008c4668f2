"""Real processes: writers, capture, three brokers, three etcd nodes, apply, a target; faults one after the other.

After each run, source, target and every replica's full data are equal row by row, every acknowledged batch is on every
replica, and nothing was written twice. A run's number seeds its fault and all random choices, so a run can be repeated;
the timing of the processes still depends on the machine.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.brokers.etcd import EtcdCluster
from tests.support.databases.postgres import Server
from tests.support.faults.cluster_faults import FAULTS, QUICK, SLOW, FaultDurations, run_fault
from tests.support.faults.fault_cluster import fault_cluster

pytestmark = [pytest.mark.fault, pytest.mark.integration]
#: The processes of one cluster.
RUNS = 10


def choose_runs() -> list[object]:
    """Return the runs of each test; FAULT_RUN lists the numbers of runs to repeat, like 6,6,6."""
    if "FAULT_RUN" in os.environ:
        numbers = [int(number) for number in os.environ["FAULT_RUN"].split(",")]
        return [pytest.param(numbers, marks=pytest.mark.timeout(3600))]
    marks = [pytest.mark.nightly, pytest.mark.timeout(3600)]
    return [
        pytest.param(list(range(first, first + RUNS)), marks=marks, id=f"{first}-{first + RUNS - 1}")
        for first in range(0, 10 * RUNS, RUNS)
    ]


def wait_for_writes(
    tmp_path: Path, etcd: EtcdCluster, server: Server, numbers: Sequence[int], wait: FaultDurations
) -> None:
    with fault_cluster(tmp_path, etcd, server) as cluster:
        for number in numbers:
            try:
                run_fault(cluster, FAULTS[number % len(FAULTS)], number, wait)
            except BaseException as error:
                error.add_note(f"run {number}, {FAULTS[number % len(FAULTS)].__name__}; alone: FAULT_RUN={number}")
                raise


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_faults_lose_and_double_nothing(tmp_path: Path, etcd: EtcdCluster, postgres_server: Server) -> None:
    wait_for_writes(tmp_path, etcd, postgres_server, range(RUNS), QUICK)


@pytest.mark.parametrize("numbers", choose_runs())
def test_a_hundred_faults_lose_and_double_nothing(
    tmp_path: Path, etcd: EtcdCluster, postgres_server: Server, numbers: list[int]
) -> None:
    wait_for_writes(tmp_path, etcd, postgres_server, numbers, SLOW)
