"""F2: the lag of the stream back to the old database, beside that of the stream before the cut-over, at 100 tx/s.

The directions alternate: after each switch the stream runs in the other direction. Lag is the time from the commit at
the application's database to the commit at the other database; one server timestamps both commits.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.figures.f1 import OTHER, TABLE, SwitchedSite
from bench.figures.figure import Figure, FigureResult, percentile

GOAL = 1.5
RATE = 100
#: After a switch all loops are new processes, whose first seconds are slower.
_WARM_UP_S = 5.0


def measure_lags(site: SwitchedSite, seconds: float) -> list[float]:
    """Let the application commit; return the milliseconds of each transaction until the other database has it."""
    site.wait_for_rows(site.commit(RATE, _WARM_UP_S))
    keys = site.commit(RATE, seconds)
    site.wait_for_rows(keys)
    stamps = []
    for name in (site.owner, OTHER[site.owner]):
        site.cursors[name].execute(
            f"SELECT id, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 FROM {TABLE} "
            f"WHERE id BETWEEN {keys[0]} AND {keys[-1]}"
        )
        stamps.append(dict(site.cursors[name].fetchall()))
    return [(stamps[1][key] - stamps[0][key]) * 1000 for key in keys]


def compare(what: str, there: float, back: float) -> FigureResult:
    """Return the result line for the lag of the stream back, beside that of the stream before the cut-over."""
    ratio = back / there
    return FigureResult(
        what=what,
        ours=f"{back:.1f} ms back, {there:.1f} ms there, {ratio:.2f} x",
        goal=f"<= {GOAL:g} x",
        met=ratio <= GOAL,
    )


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure F2 and return its lines."""
    rounds, seconds = (2, 4.0) if quick else (4, 15.0)
    found: dict[str, list[list[float]]] = {name: [] for name in OTHER}
    with tempfile.TemporaryDirectory() as name:
        site = SwitchedSite(Path(name))
        try:
            site.start()
            for _ in range(2 * rounds):
                found[site.owner].append(measure_lags(site, seconds))
                site.switch()
        finally:
            site.stop()
    results = []
    for percent in (50, 99):
        there, back = (statistics.median(percentile(lags, percent) for lags in found[n]) for n in ("source", "target"))
        results.append(compare(f"lag at {RATE} tx/s, {percent} %, median of {rounds} runs each", there, back))
    return results


FIGURE = Figure(id="F2", title="the stream back beside the stream there", measure=run)
