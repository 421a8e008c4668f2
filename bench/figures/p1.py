"""P1: small transactions, PostgreSQL to PostgreSQL, beside PostgreSQL's own logical replication."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import trickle
from bench.bare import measure_bare
from bench.figures.figure import Figure, FigureResult, at_most
from bench.trickle import PEER, VENUS, MeasuredRun, TrickleBench

FAST_TX_PER_S = 1000
GOAL_PEER_TIMES = 5.0
#: A half message, a decision and a delivery, each with its answer: the fewest that carry a cut (VENUS 3.3, figure 4).
FRAMES_A_CUT = 3
IDLE_S = {True: 10.0, False: 60.0}
#: Goal for the first change after an idle time, in milliseconds.
GOAL_FIRST_MS = 60.0


@contextmanager
def running(rate: int, tables: int = 0) -> Iterator[TrickleBench]:
    """Start source, target and VENUS for the benchmark; stop them at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as home:
        bench = TrickleBench(Path(home), rate)
        try:
            bench.start(tables)
            yield bench
        finally:
            bench.stop()


def core(found: dict[str, list[MeasuredRun]]) -> float:
    """Return the percentage of a CPU core that VENUS and its triggers use: the sum of the parts' medians."""
    return 100 * sum(share for _, _, share in trickle.costs_by_part(found).values())


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure P1 and return its lines."""
    count, seconds = (2, 5.0) if quick else (5, 10.0)
    with running(100) as bench:
        idle = bench.measure_idle(IDLE_S[quick])
        first = bench.first_ms()
        found = trickle.rounds(bench, count, seconds, peer=True)
    with running(FAST_TX_PER_S) as bench:
        fast = [bench.run(VENUS, seconds) for _ in range(count)]

    def median(runs: list[MeasuredRun], part: float) -> float:
        """Return the median over the runs of a latency percentile."""
        return statistics.median(run.percentile(part) for run in runs)

    peer = f"logical replication {median(found[PEER], 0.5):.1f} / {median(found[PEER], 0.99):.1f} ms"
    share = sum(trickle.idle_shares(idle, IDLE_S[quick]).values())
    rate = statistics.median(run.rate for run in fast)
    frame_ms = measure_bare(nbytes=200, seconds=seconds, durable=False, pause_s=0.01).cpu_ms
    floor = 100 * FRAMES_A_CUT * frame_ms / 10  # a cut every 10 ms
    return [
        at_most("100 transactions/s, p50", median(found[VENUS], 0.5), trickle.GOAL_P50_MS, "ms", peer=peer),
        at_most("the same, p99", median(found[VENUS], 0.99), trickle.GOAL_P99_MS, "ms", peer=peer),
        at_most(
            "p99, times logical replication's",
            median(found[VENUS], 0.99) / median(found[PEER], 0.99),
            GOAL_PEER_TIMES,
            "x",
        ),
        at_most(
            "all of VENUS, and what it adds to both databases",
            core(found),
            100 * trickle.GOAL_CORE,
            "% of a core",
            peer=f"{FRAMES_A_CUT} bare gRPC frames and answers for each: {floor:.0f} %",
        ),
        at_most(f"{rate:,.0f} transactions/s, p99", median(fast, 0.99), trickle.GOAL_FAST_P99_MS, "ms"),
        at_most("idle, one table", 100 * share, 100 * trickle.GOAL_IDLE_CORE, "% of a core"),
        at_most(f"the first change after {IDLE_S[quick]:g} s of rest", first, GOAL_FIRST_MS, "ms"),
    ]


FIGURE = Figure(id="P1", title="small transactions", measure=run)
