"""V4: more than half of the brokers are gone, under both strategies (VENUS 3.1).

`consistency` must refuse writes with a one-line error and lose nothing; `availability` must continue with the last
broker.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.figures.figure import Figure, FigureResult, at_most
from bench.figures.t5 import run_writer, wait_until_in_sync
from bench.venus_cluster import NAMES, Brokers, Writer, run_brokers, wait_for
from venus.errors import NotLeader, Unavailable, VenusError

GOAL_S = 5.0


def _kill_two(cluster: Brokers, *, leader: bool = False) -> str:
    """Kill two brokers; return the name of the third, which is the leader if and only if `leader` is set."""
    first = cluster.leader()
    left = first if leader else max(name for name in NAMES if name != first)
    for name in NAMES:
        if name != left:
            cluster.kill(name)
    return left


def measure_refusal(times: int) -> tuple[list[float], int]:
    """Kill two brokers under `consistency`; return the seconds until writers are refused, and the batches lost."""
    taken, lost = [], 0
    with run_brokers() as cluster:
        wait_until_in_sync(cluster)
        for number in range(times):
            writer = Writer(cluster.reach)
            writer.stream(20, 100)
            acknowledged, at = writer.committed, time.monotonic()
            left = _kill_two(cluster, leader=number % 2 == 1)
            writer.close()
            wait_for(lambda writer=writer: _is_refused(writer))  # type: ignore[misc]
            taken.append(time.monotonic() - at)
            for name in NAMES:
                if name != left:
                    cluster.start(name)
            cluster.wait_in_sync()
            status = cluster.status(cluster.leader())
            lost += max(0, acknowledged - (status.last_batch if status is not None else 0))
            writer.close()
    return taken, lost


def _is_refused(writer: Writer) -> bool:
    """Return whether a write is refused because too few brokers are left."""
    try:
        writer.commit()
    except (NotLeader, Unavailable) as error:
        said = str(error)
        return "no broker leads" in said or "replicas are in sync" in said or "replicas are alive" in said
    except VenusError:
        return False
    return False


def measure_service(times: int) -> list[float]:
    """Kill two brokers under `availability`; return the seconds until the last one commits."""
    taken = []
    with run_brokers(policy="availability") as cluster:
        wait_until_in_sync(cluster)
        for _ in range(times):
            with run_writer(cluster.reach) as writing:
                at = time.monotonic()
                left = _kill_two(cluster)
                taken.append(writing.first_after(at))
            for name in NAMES:
                if name != left:
                    cluster.start(name)
            cluster.wait_in_sync()
    return taken


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure V4 and return its lines."""
    times = 2 if quick else 10
    refusals, lost = measure_refusal(times)
    services = measure_service(times)
    return [
        at_most(f"consistency, 2 of 3 killed {times} times: until refused, worst", max(refusals), GOAL_S, "s"),
        at_most("consistency: acknowledged batches lost", lost, 0, ""),
        at_most(f"availability, 2 of 3 killed {times} times: until served, worst", max(services), GOAL_S, "s"),
    ]


FIGURE = Figure(id="V4", title="more than half of the brokers gone", measure=run)
