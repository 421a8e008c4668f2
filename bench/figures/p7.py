"""P7: a first load, from an empty broker to an equal target, beside pg_dump and pg_restore of the same tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.figures.figure import Figure, FigureResult, at_least, at_most
from bench.first_load import LARGE, SOURCES, FirstLoadFigures, measure
from bench.shapes import NARROW

COUNTS = {True: {NARROW: 150_000, LARGE: 10_000}, False: {NARROW: 3_000_000, LARGE: 200_000}}
#: Sources without a peer have a third of the rows.
OTHERS = 3
#: Goals: fraction of the rate of pg_dump and pg_restore with two jobs; CPU microseconds per row of all processes.
GOAL_RATE, GOAL_CPU_US = 0.42, 7.0


def lines(ours: Sequence[FirstLoadFigures], theirs: Sequence[FirstLoadFigures]) -> list[FigureResult]:
    """Return the lines of PostgreSQL to PostgreSQL; ratios are taken round by round."""
    rate = statistics.median(own.rate / peer.rate for own, peer in zip(ours, theirs, strict=True))
    own, peer = _median(ours), _median(theirs)
    what = f"{own.rows:,} rows, PostgreSQL to PostgreSQL, in {own.seconds:.1f} s"
    return [
        at_least(f"{what}: rate", rate, GOAL_RATE, "x", peer=f"pg_dump -j2, pg_restore -j2: {peer.seconds:.1f} s"),
        at_most(
            f"CPU a row (reading + loading): {own.describe_cpu()}",
            own.cpu_us,
            GOAL_CPU_US,
            "us",
            peer=f"{peer.cpu_us:.1f} us: {peer.describe_cpu()}",
        ),
        _without_goal("the same: memory at its peak", _describe_memory(own)),
    ]


def _median(found: Sequence[FirstLoadFigures]) -> FirstLoadFigures:
    """Return the run with the median time."""
    return sorted(found, key=lambda one: one.seconds)[(len(found) - 1) // 2]


def _describe_memory(found: FirstLoadFigures) -> str:
    """Return the peak memory of VENUS's processes as text."""
    parts = ", ".join(f"{name} {nbytes >> 20}" for name, nbytes in found.peak_bytes.items() if name != "all")
    return f"{found.peak_bytes['all'] >> 20} MiB ({parts})"


def _without_goal(what: str, ours: str) -> FigureResult:
    """Return a result line that has no goal and is always met."""
    return FigureResult(what=what, ours=ours, goal="none", met=True)


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure P7 and return its lines."""
    counts, rounds = COUNTS[quick], (1 if quick else 3)
    ours, theirs = measure("postgresql", counts, rounds)
    findings = lines(ours, theirs)
    fewer = {shape: count // OTHERS for shape, count in counts.items()}
    for kind in SOURCES[1:]:
        try:
            (own,), _ = measure(kind, fewer, 1)
        except LookupError as error:
            findings.append(_without_goal(f"from {kind}", f"not measured: {error}"))
            continue
        what = f"{own.rows:,} rows from {kind}, {own.cpu_us:.1f} us a row: {own.describe_cpu()}"
        findings.append(_without_goal(what, f"{own.rate:,.0f} rows/s; {_describe_memory(own)}"))
    return findings


FIGURE = Figure(id="P7", title="first load", measure=run)
