"""P4: a full load beside bare COPY of the same rows as ready text, narrow and wide; time of the smallest load."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.figures.figure import Figure, FigureResult, at_least, at_most
from bench.loading import WORKERS, LoadSite
from bench.processes import EmbeddedPostgres
from bench.shapes import NARROW, WIDE, Shape
from bench.spark_load import LoadResult, load_by_copy, load_by_venus

ROWS = {True: {NARROW: 200_000, WIDE: 100_000}, False: {NARROW: 1_000_000, WIDE: 200_000}}
SMALL_ROWS = 10
#: Goal for the load of the rows, as a fraction of the rate of two bare COPY streams.
GOAL_ALONE = {NARROW: 0.6, WIDE: 0.8}
GOAL_FIXED_S = 1.5
#: pgcopydb reached this fraction of the rate of one COPY with key and statistics, narrow and wide, on such a machine.
PGCOPYDB = {NARROW: 1.07, WIDE: 0.61}


def loads(
    folder: Path, postgres: EmbeddedPostgres, shape: Shape, rows: int, rounds: int
) -> dict[str, list[LoadResult]]:
    """Measure loads of a table alternately by VENUS, by one COPY and by two COPY streams."""
    home = LoadSite(folder, postgres, shape, rows)
    found: dict[str, list[LoadResult]] = {"venus": [], "one": [], "two": []}
    try:
        home.fill()
        text = home.text()
        for _ in range(rounds):
            found["one"].append(load_by_copy(home, text, 1))
            found["two"].append(load_by_copy(home, text, WORKERS))
            found["venus"].append(load_by_venus(home, "local"))
    finally:
        home.stop()
    return found


def lines(shape: Shape, rows: int, found: dict[str, list[LoadResult]]) -> list[FigureResult]:
    """Return the ratios of a table, round by round."""
    alone = [peer.rows_s / own.rows_s for peer, own in zip(found["two"], found["venus"], strict=True)]
    whole = [peer.whole_s / own.whole_s for peer, own in zip(found["one"], found["venus"], strict=True)]
    took = statistics.median(taken.whole_s for taken in found["venus"])
    what = f"{rows:,} {shape.name} rows in {took:.1f} s"
    return [
        at_least(f"{what}: rows alone, of two bare COPY streams", statistics.median(alone), GOAL_ALONE[shape], "x"),
        at_least(
            f"{what}: whole, of one COPY with key",
            statistics.median(whole),
            PGCOPYDB[shape],
            "x",
            peer=f"pgcopydb {PGCOPYDB[shape]} (measured once, elsewhere)",
        ),
    ]


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure P4 and return its lines."""
    rounds, findings = (2 if quick else 5), []
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as folder:
        postgres = EmbeddedPostgres(Path(folder))
        try:
            for shape, rows in ROWS[quick].items():
                findings += lines(shape, rows, loads(Path(folder), postgres, shape, rows, rounds))
            small = loads(Path(folder), postgres, NARROW, SMALL_ROWS, rounds)["venus"]
        finally:
            postgres.stop()
    fixed = statistics.median(taken.whole_s for taken in small)
    return [*findings, at_most(f"`venus migrate` of {SMALL_ROWS} rows", fixed, GOAL_FIXED_S, "s")]


FIGURE = Figure(id="P4", title="full load", measure=run)
