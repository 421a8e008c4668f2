"""T5: a leader is lost (Tensor V-E: elected within 30 s, normal within 5 minutes); a planned hand-over; a return.

A writer commits one batch after the other. The time of a fail-over runs from kill -9 to the first commit answered
afterwards, so it includes the lease, the election and the client's way to the new leader.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from bench.figures.figure import Figure, FigureResult, at_least, at_most, percentile
from bench.figures.installation import findings, measure_installation
from bench.venus_cluster import MIB, NAMES, Brokers, Writer, run_brokers, wait_for

PAPER = "elected within 30 s"
ROWS = 1000
BATCH_BYTES = ROWS * 100


class WriteLoad:
    """Thread that commits one batch after the other; `done` has the time of each answered commit."""

    def __init__(self, reach: str) -> None:
        self._writer = Writer(reach)
        self.done: list[float] = []
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._commit_repeatedly, daemon=True)
        self._thread.start()

    def _commit_repeatedly(self) -> None:
        """Commit one batch after the other until the end, and record the times."""
        try:
            while not self._stop.is_set():
                self.done.append(self._writer.commit_until_done(10))
        except BaseException as error:
            self.error = error

    def first_after(self, moment: float) -> float:
        """Return the seconds from `moment` to the answer of the first commit that began afterwards."""

        def find_silence_s() -> float:
            if self.error is not None:
                raise self.error
            later = [at for at in self.done[-1000:] if at > moment]
            return later[1] - moment if len(later) > 1 else 0.0  # the first may have been on its way

        return float(wait_for(find_silence_s, every_s=0.005))

    def end(self) -> None:
        """Stop the writer."""
        self._stop.set()
        self._thread.join()
        self._writer.close()
        if self.error is not None:
            raise self.error


@contextmanager
def run_writer(reach: str) -> Iterator[WriteLoad]:
    """Run a writer within the block."""
    found = WriteLoad(reach)
    try:
        found.first_after(time.monotonic())
        yield found
    finally:
        found.end()


def measure_fail_overs(cluster: Brokers, times: int) -> list[float]:
    """Kill the leader repeatedly; return the seconds of each fail-over."""
    chance, taken = random.Random(5), []
    with run_writer(cluster.reach) as writing:
        for _ in range(times):
            cluster.wait_in_sync()
            time.sleep(chance.uniform(0.2, 1.2))  # at a random moment of the lease
            name, at = cluster.leader(), time.monotonic()
            cluster.kill(name)
            taken.append(writing.first_after(at))
            cluster.start(name)
    return taken


def measure_restarts(cluster: Brokers, times: int) -> list[float]:
    """Kill all brokers and start them again; return the seconds from each start until a commit."""
    taken = []
    with run_writer(cluster.reach) as writing:
        for _ in range(times):
            cluster.wait_in_sync()
            for name in NAMES:
                cluster.kill(name)
            at = time.monotonic()
            for name in NAMES:
                cluster.start(name)
            taken.append(writing.first_after(at))
    return taken


def measure_hand_overs(cluster: Brokers, times: int) -> list[float]:
    """Stop the leader cleanly, repeatedly; return the longest time without a commit in each hand-over."""
    taken = []
    with run_writer(cluster.reach) as writing:
        for _ in range(times):
            cluster.wait_in_sync()
            name, at = cluster.leader(), time.monotonic()
            cluster.stop(name)
            writing.first_after(time.monotonic())
            around = [moment for moment in writing.done if moment > at - 5]
            taken.append(max((b - a for a, b in pairwise(around) if b > at), default=0.0))
            cluster.start(name)
    return taken


def measure_resync(cluster: Brokers, nbytes: int) -> float:
    """Let a follower miss this number of bytes; return the bytes a second at which it catches up once it runs."""
    name = cluster.followers()[0]
    cluster.kill(name)
    writer = Writer(cluster.reach)
    for _ in range(nbytes // (100 * BATCH_BYTES)):
        writer.stream(100, ROWS)
    writer.close()
    cluster.start(name)
    began = time.monotonic()
    cluster.wait_in_sync()
    return nbytes / (time.monotonic() - began)


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure T5 and return its lines."""
    with run_brokers() as cluster:
        wait_until_in_sync(cluster)
        lost = measure_fail_overs(cluster, 10 if quick else 50)
        gone = measure_restarts(cluster, 2 if quick else 10)
        planned = measure_hand_overs(cluster, 3 if quick else 10)
        back = measure_resync(cluster, (50 if quick else 400) * MIB)
    return [
        at_most(f"{len(lost)} leaders killed, until a commit, p50", percentile(lost, 50), 5, "s", paper=PAPER),
        at_most("the same, p99", percentile(lost, 99), 5, "s", paper=PAPER),
        at_most(f"all brokers killed {len(gone)} times, p99", percentile(gone, 99), 10, "s", paper="normal in 5 min"),
        at_most(f"{len(planned)} planned hand-overs, longest silence", max(planned), 1, "s"),
        at_least("a broker that was away takes up", back / MIB, 50, "MiB/s"),
        *findings(measure_installation(1_000_000 if quick else 2_000_000)),
    ]


def wait_until_in_sync(cluster: Brokers) -> None:
    """Create the business, and wait until all three replicas are in sync."""
    writer = Writer(cluster.reach)
    writer.commit_until_done()
    writer.close()
    cluster.wait_in_sync()


FIGURE = Figure(id="T5", title="a leader is lost", measure=run)
