"""A power cut at one of three brokers, at two, or at all, while rows are inserted, updated, deleted (VENUS 4.4).

All or some of the bytes after the last fsync are dropped (tests/support/engines/power.py says how). Afterwards every
broker has each acknowledged batch once.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.power_cluster import NAMES, PhaseWriter, PowerCluster, check, let_producer_work
from tests.support.engines import power

pytestmark = [pytest.mark.fault, pytest.mark.integration]
CUTS = 25
#: All of a few cuts may come when nothing is unsynced: then up to this many times as many cuts are made.
MORE = 4
_CLUSTERS = 4
#: The daily run needs one phase.
_FEW = [[pytest.mark.timeout(900)], *([pytest.mark.timeout(900), pytest.mark.slow],) * (len(power.PHASES) - 1)]
_NIGHTLY = [pytest.mark.nightly, pytest.mark.timeout(1800)]


def victims(number: int, leader: str, chance: random.Random) -> list[str]:
    """Return the brokers whose power is cut: alternately the leader, a follower, two brokers, and all of them."""
    others = [name for name in NAMES if name != leader]
    return [[leader], [chance.choice(others)], [leader, chance.choice(others)], [*NAMES]][number % 4]


@pytest.mark.parametrize(
    ("phase", "seed", "cuts"),
    [pytest.param(phase, 0, 4, marks=marks) for phase, marks in zip(power.PHASES, _FEW, strict=True)]
    + [pytest.param(phase, seed, CUTS, marks=_NIGHTLY) for phase in power.PHASES for seed in range(1, _CLUSTERS + 1)],
)
def test_power_cuts_lose_and_double_nothing(
    tmp_path: Path, etcd_server: EtcdCluster, phase: str, seed: int, cuts: int
) -> None:
    chance, lost = random.Random(f"{phase} {seed}"), 0
    with PowerCluster(tmp_path, etcd_server) as cluster:
        writer = PhaseWriter(cluster, phase)
        number = 0
        while number < cuts or (not lost and number < MORE * cuts):
            writer.wait_past(writer.committed)
            let_producer_work(chance)
            names = victims(number, cluster.leader(), chance)
            lost += cluster.cut(names, chance, everything=number % 3 != 2)
            cluster.start(names)
            number += 1
        writer.wait_past(writer.committed)
        writer.stop()
        check(cluster, phase, writer.committed)
    print(f"power was cut {number} times")  # noqa: T201  # counted by bench.figures.v3
    assert lost, "nothing was ever unsynced: the power cuts cut nothing"
