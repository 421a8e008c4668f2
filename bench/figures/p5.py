"""P5: one large transaction from source commit to target commit, beside the same rows by COPY and by staging."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.figures.figure import Figure, FigureResult, at_least
from bench.pipeline import MeasuredPipeline, bursts
from bench.shapes import NARROW, WIDE

ROWS = {True: 100_000, False: 500_000}
GOAL_COPY, GOAL_MIX = 0.5, 0.75


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure P5 and return its lines."""
    rows, rounds, findings = ROWS[quick], (2 if quick else 5), []
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as home:
        pipeline = MeasuredPipeline(Path(home))
        try:
            pipeline.start([NARROW, WIDE])
            for shape in (NARROW, WIDE):
                median = {name: statistics.median(s) for name, s in bursts(pipeline, shape, rows, rounds).items()}
                what = f"{rows:,} {shape.name} rows"
                findings += [
                    at_least(f"{what}, inserts, of bare COPY", median["COPY"] / median["inserts"], GOAL_COPY, "x"),
                    at_least(
                        f"{what}, insert/update/delete, of bare staging",
                        median["mix staging"] / median["mix"],
                        GOAL_MIX,
                        "x",
                    ),
                ]
        finally:
            pipeline.stop()
    return findings


FIGURE = Figure(id="P5", title="large transactions", measure=run)
