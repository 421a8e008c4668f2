"""R2: a fault in the sync state (RocketMQ part 2, figure 9: "within seconds").

A follower is killed under load. The figure measures how long commits stop (until the leader continues with the
remaining brokers), and how long the follower takes to be in sync again after it came back.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from bench.figures.figure import Figure, FigureResult, at_most, percentile
from bench.figures.t5 import run_writer, wait_until_in_sync
from bench.venus_cluster import NAMES, Brokers, run_brokers, wait_for

PAPER = "within seconds"


def _in_sync(cluster: Brokers, leader: str) -> int:
    """Return how many replicas are in sync according to the leader."""
    status = cluster.status(leader)
    return sum(replica.in_sync for replica in status.replication.replicas) if status is not None else 0


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure R2 and return its lines."""
    chance = random.Random(2)
    silent, shown, whole = list[float](), list[float](), list[float]()
    with run_brokers() as cluster:
        wait_until_in_sync(cluster)
        with run_writer(cluster.reach) as writing:
            for _ in range(5 if quick else 50):
                cluster.wait_in_sync()
                time.sleep(chance.uniform(0.2, 1.2))
                leader, name = cluster.leader(), chance.choice(cluster.followers())
                at = time.monotonic()
                cluster.kill(name)
                silent.append(writing.first_after(at))
                wait_for(lambda leader=leader: _in_sync(cluster, leader) < len(NAMES))  # type: ignore[misc]
                shown.append(time.monotonic() - at)
                cluster.start(name)
                at = time.monotonic()
                cluster.wait_in_sync()
                whole.append(time.monotonic() - at)
    what = f"{len(silent)} followers killed"
    return [
        at_most(f"{what}: until the next commit, p99", percentile(silent, 99), 5, "s", paper=PAPER),
        at_most(f"{what}: until the state shows it, p99", percentile(shown, 99), 5, "s", paper=PAPER),
        at_most("until all are in sync again, p99", percentile(whole, 99), 5, "s", paper=PAPER),
    ]


FIGURE = Figure(id="R2", title="a fault in the sync state", measure=run)
