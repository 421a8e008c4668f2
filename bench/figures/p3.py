"""P3: many tables: the cost of 500 idle ones for a trickle into one, and a transaction that changes all of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.figures.figure import Figure, FigureResult, at_most
from bench.figures.p1 import IDLE_S, core, running
from bench.trickle import idle_shares, rounds

TABLES = 500
GOAL_MORE = 1.2
GOAL_ALL_MS = 200.0
GOAL_IDLE_PERCENT = 3.0


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure P3 and return its lines."""
    count, seconds = (2, 5.0) if quick else (5, 10.0)
    with running(100) as bench:
        one = core(rounds(bench, count, seconds, peer=False))
    with running(100, TABLES) as bench:
        idle = bench.measure_idle(IDLE_S[quick])
        many = rounds(bench, count, seconds, peer=False)
        across = statistics.median(bench.across_ms(TABLES) for _ in range(count + 1))
    share = sum(idle_shares(idle, IDLE_S[quick]).values())
    what = f"a trickle beside {TABLES} idle tables ({core(many):.0f} and {one:.0f} % of a core)"
    return [
        at_most(what, core(many) / one, GOAL_MORE, "x"),
        at_most(f"a transaction that changes {TABLES} tables", across, GOAL_ALL_MS, "ms"),
        at_most(f"idle, {TABLES} tables", 100 * share, GOAL_IDLE_PERCENT, "% of a core"),
    ]


FIGURE = Figure(id="P3", title="many tables", measure=run)
