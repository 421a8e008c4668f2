"""P6: `venus run` beside separate processes, alternately in one run: latency, CPU, idle CPU, memory, bursts."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import together
from bench.figures.figure import Figure, FigureResult, at_least, at_most
from bench.figures.p1 import FAST_TX_PER_S
from bench.pipeline import MeasuredPipeline
from bench.shapes import NARROW, WIDE, Shape
from bench.together import FORMS, RUN, SERVICES, FormFigures, end_form, start_form

GOAL_P50_MS, GOAL_P99_MS, GOAL_FAST_P99_MS = 6.0, 11.0, 20.0
GOAL_CORE_PERCENT, GOAL_IDLE_PERCENT = 50.0, 0.7
GOAL_MEMORY, GOAL_BURST = 0.6, 0.9
IDLE_S = {True: 10.0, False: 60.0}
ROWS = {True: 50_000, False: 500_000}


class Bursts(MeasuredPipeline):
    """Measures large transactions with VENUS as one process and as several."""

    def install(self, shapes: Sequence[Shape]) -> None:
        """Install and load the empty tables; nothing of VENUS runs afterwards."""
        for statement in [s.create for s in shapes] + [
            "CREATE TABLE mark (id integer PRIMARY KEY, n integer)",
            "INSERT INTO mark VALUES (1, 0)",
        ]:
            self.source.execute(statement)
        self.venus.run("install-triggers")
        self.venus.start("broker", "broker")
        time.sleep(2)
        self.venus.run("migrate", "--target", "main")
        self.venus.end("broker")

    def measure(self, form: str, shape: Shape, rows: int) -> tuple[float, float]:
        """Return the seconds of a transaction of inserts, and of one of inserts, updates and deletes."""
        third = rows // 3
        start_form(self.venus, form)
        try:
            self.burst([])
            self.checkpoint()
            inserts = self.burst([shape.insert(1, rows)])
            self.assert_equal(shape)
            self.checkpoint()
            mix = self.burst(
                [shape.delete(1, third), shape.update(third + 1, 2 * third, 2), shape.insert(rows + 1, rows + third, 2)]
            )
            self.assert_equal(shape)
            self.burst([f"TRUNCATE {shape.name}"])
        finally:
            end_form(self.venus, form)
        return inserts, mix


def run_bursts(quick: bool) -> list[FigureResult]:
    """Measure large transactions with one process and with several; return the result lines."""
    rows, rounds, findings = ROWS[quick], (1 if quick else 3), []
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as home:
        pipeline = Bursts(Path(home))
        try:
            pipeline.install([NARROW, WIDE])
            for shape in (NARROW, WIDE):
                found: dict[str, list[tuple[float, float]]] = {form: [] for form in FORMS}
                for _ in range(rounds):
                    for form, times in found.items():
                        times.append(pipeline.measure(form, shape, rows))
                medians = {
                    form: [statistics.median(c) for c in zip(*times, strict=True)] for form, times in found.items()
                }
                for n, kind in enumerate(("inserts", "insert/update/delete")):
                    services, run = medians[SERVICES][n], medians[RUN][n]
                    what = f"{rows:,} {shape.name} rows, {kind}, rate of separate processes"
                    findings.append(
                        at_least(what, services / run, GOAL_BURST, "x", peer=f"{services:.2f} s, venus run {run:.2f} s")
                    )
        finally:
            pipeline.stop()
    return findings


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure P6 and return its lines."""
    rounds, seconds = (1, 5.0) if quick else (5, 10.0)
    with together.open_bench(100) as bench:
        slow = together.measure(bench, rounds, seconds, IDLE_S[quick])
    with together.open_bench(FAST_TX_PER_S) as bench:
        fast = together.measure(bench, rounds, seconds, 0.0)
    return [*trickle_findings(slow, fast), *run_bursts(quick)]


def trickle_findings(slow: dict[str, FormFigures], fast: dict[str, FormFigures]) -> list[FigureResult]:
    """Return the result lines about small transactions, at a slow and at a fast rate."""
    ours, theirs = slow[RUN], slow[SERVICES]

    def latency(what: str, found: dict[str, FormFigures], part: float, limit: float) -> FigureResult:
        """Return the result line for one latency percentile."""
        peer = f"{SERVICES}: {found[SERVICES].latency_ms(part):.1f} ms"
        return at_most(what, found[RUN].latency_ms(part), limit, "ms", peer=peer)

    return [
        latency("100 transactions/s, p50", slow, 0.5, GOAL_P50_MS),
        latency("the same, p99", slow, 0.99, GOAL_P99_MS),
        latency(f"{FAST_TX_PER_S:,} transactions/s, p99", fast, 0.99, GOAL_FAST_P99_MS),
        at_most(
            "all of VENUS, and what it adds to both databases",
            ours.core_percent(),
            GOAL_CORE_PERCENT,
            "% of a core",
            peer=f"{SERVICES}: {theirs.core_percent():.0f} %",
        ),
        at_most(
            "idle, one table",
            ours.idle_percent(),
            GOAL_IDLE_PERCENT,
            "% of a core",
            peer=f"{SERVICES}: {theirs.idle_percent():.2f} %",
        ),
        at_most(
            "memory, times that of separate processes",
            ours.memory_mib() / theirs.memory_mib(),
            GOAL_MEMORY,
            "x",
            peer=f"{theirs.memory_mib():.0f} MiB, venus run {ours.memory_mib():.0f} MiB",
        ),
    ]


FIGURE = Figure(id="P6", title="venus run beside separate processes", measure=run)
