"""V1: how long the capture of 100,000 inserts, updates and deletes takes (VENUS table 5)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.capture import PAPER_S, start_workplace, table_5
from bench.figures.figure import Figure, FigureResult, at_most

GOAL_S = 0.25


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure V1 and return its lines."""
    with start_workplace() as (cursor, drain):
        found = table_5(cursor, drain, 2 if quick else 5)
    return [
        at_most(f"100,000 {kind}s, {how}", statistics.median(seconds), GOAL_S, "s", paper=f"{PAPER_S[kind]:.1f} s")
        for (how, kind), seconds in found.items()
    ]


FIGURE = Figure(id="V1", title="capture at the source", measure=run)
