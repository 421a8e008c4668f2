"""Real processes: writers, capture, three brokers, three etcd nodes, apply, a target; faults one after the other.

After each run source, every replica's full data and the target are equal row by row, every acknowledged batch is on
every replica, and nothing was written twice. A run is repeated by its number: its fault and all that is drawn for it
come from that; when processes do what stays the machine's affair.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.brokers.etcd import EtcdCluster
from tests.support.databases.postgres import Server
from tests.support.databases.workload import item_step, writers
from tests.support.faults.cluster_faults import FAULTS, QUICK, SLOW, Wait
from tests.support.faults.fault_cluster import FaultCluster, fault_cluster

pytestmark = [pytest.mark.fault, pytest.mark.integration]
logger = logging.getLogger(__name__)
#: Of one cluster.
RUNS = 10
WRITERS = 3


def run(cluster: FaultCluster, number: int, wait: Wait) -> None:
    """Do one fault while writers work, let everything heal, compare."""
    fault, rng, began = FAULTS[number % len(FAULTS)], random.Random(number), time.monotonic()
    with writers(cluster.source, item_step, count=WRITERS, seed=number) as counts:
        time.sleep(rng.uniform(0.1, 0.6))
        fault(cluster, rng, wait)
        time.sleep(rng.uniform(0.1, 0.4))
    done = time.monotonic()
    assert not counts.failed, counts.failed
    assert counts.ended["commit"]
    cluster.settle()
    healed = time.monotonic()
    cluster.check()
    logger.warning(
        "run %d, %s: %d transactions; %.1f s, healed %.1f s later, compared in %.1f s", number, fault.__name__,
        counts.ended["commit"], done - began, healed - done, time.monotonic() - healed,
    )  # fmt: skip


def chosen() -> list[object]:
    """Return the runs of each test; FAULT_RUN has the numbers of those to repeat, like 6,6,6."""
    if "FAULT_RUN" in os.environ:
        numbers = [int(number) for number in os.environ["FAULT_RUN"].split(",")]
        return [pytest.param(numbers, marks=pytest.mark.timeout(3600))]
    marks = [pytest.mark.nightly, pytest.mark.timeout(3600)]
    return [
        pytest.param(list(range(first, first + RUNS)), marks=marks, id=f"{first}-{first + RUNS - 1}")
        for first in range(0, 10 * RUNS, RUNS)
    ]


def runs(tmp_path: Path, etcd: EtcdCluster, server: Server, numbers: Sequence[int], wait: Wait) -> None:
    with fault_cluster(tmp_path, etcd, server) as cluster:
        for number in numbers:
            try:
                run(cluster, number, wait)
            except BaseException as error:
                error.add_note(f"run {number}, {FAULTS[number % len(FAULTS)].__name__}; alone: FAULT_RUN={number}")
                raise


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_faults_lose_and_double_nothing(tmp_path: Path, etcd: EtcdCluster, postgres_server: Server) -> None:
    runs(tmp_path, etcd, postgres_server, range(RUNS), QUICK)


@pytest.mark.parametrize("numbers", chosen())
def test_a_hundred_faults_lose_and_double_nothing(
    tmp_path: Path, etcd: EtcdCluster, postgres_server: Server, numbers: list[int]
) -> None:
    runs(tmp_path, etcd, postgres_server, numbers, SLOW)
