"""The figures of the papers in one table: the paper's number, a peer's, ours, the goal, and whether it is met.

    python -m bench.all [--quick] [--only V3 M2 ...] [--json] [--write]

Exit code 1 if a goal is missed. `--quick` runs a few rounds of each figure, which shows that the scripts work; its
numbers are rough. `--write` puts the findings into bench/FIGURES.md. Everything runs on this machine; bench/README.md
states the conditions.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time

from rich.console import Console
from rich.table import Table

from bench.figures.catalogue import FIGURES
from bench.figures.figure import Figure, FigureResult
from bench.figures.page import PAGE, merge_sections, section
from bench.processes import exit_on_sigterm

COLUMNS = ("", "what", "paper", "peer", "ours", "goal", "")
WIDTH = 160


def measure(figure: Figure, *, quick: bool) -> list[FigureResult]:
    """Measure one figure; a figure that cannot be measured counts as missed."""
    try:
        return list(figure.measure(quick))
    except Exception as error:
        return [
            FigureResult(what=figure.title, ours=f"{type(error).__name__}: {error}"[:300], goal="measured", met=False)
        ]


def table(found: dict[str, list[FigureResult]]) -> Table:
    """Return a printable table of all results."""
    laid = Table(*COLUMNS, title="Figures of the papers")
    for name, findings in found.items():
        for n, finding in enumerate(findings):
            laid.add_row(
                "" if n else name,
                finding.what,
                finding.paper,
                finding.peer,
                finding.ours,
                finding.goal,
                "met" if finding.met else "MISSED",
                end_section=n == len(findings) - 1,
            )
    return laid


def select_figures(names: list[str]) -> list[Figure]:
    """Return the figures with these ids, or all figures if no id is given. Raises SystemExit for an unknown id."""
    known = {figure.id: figure for figure in FIGURES}
    unknown = [name for name in names if name.upper() not in known]
    if unknown:
        raise SystemExit(f"no figure {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name.upper()] for name in names] or list(FIGURES)


def time_fixed_work() -> float:
    """Return the CPU seconds of a fixed piece of Python and memory work: the median of five.

    A rented machine is half as fast on some days. This number distinguishes a slow machine from a slower program.
    """

    def time_once() -> float:
        began = time.process_time()
        parts = [b"%d" % (i * i) for i in range(200_000)]
        for _ in range(20):
            b"".join(parts)
        return time.process_time() - began

    return statistics.median(time_once() for _ in range(5))


def conditions(*, quick: bool) -> str:
    """Return the date, cores and load of this machine as text for the page of figures."""
    load = os.getloadavg()[0]
    form = "short form" if quick else "full form"
    return (
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, {os.cpu_count()} cores, load average {load:.1f} before, "
        f"fixed work {time_fixed_work() * 1000:.0f} ms, {form}."
    )


def write(figure: Figure, findings: list[FigureResult], under: str) -> None:
    """Write one figure's results into bench/FIGURES.md, at once: a run that is stopped keeps earlier figures."""
    page = PAGE.read_text() if PAGE.exists() else ""
    PAGE.write_text(merge_sections(page, {figure.id: section(figure, findings, under)}, [f.id for f in FIGURES]))


def main() -> int:
    """Measure the requested figures and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds: to try the scripts")
    parser.add_argument("--only", nargs="+", default=[], metavar="ID", help=", ".join(f.id for f in FIGURES))
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--write", action="store_true", help="put them into bench/FIGURES.md")
    options = parser.parse_args()
    exit_on_sigterm()
    figures = select_figures(options.only)
    console = Console(stderr=True, width=WIDTH)
    console.print(conditions(quick=options.quick))
    found: dict[str, list[FigureResult]] = {}
    for figure in figures:
        began, under = time.monotonic(), conditions(quick=options.quick)
        found[figure.id] = measure(figure, quick=options.quick)
        console.print(f"{figure.id} {figure.title}: {time.monotonic() - began:.0f} s")
        if options.write:
            write(figure, found[figure.id], under)
    if options.json:
        sys.stdout.write(
            json.dumps({name: [dataclasses.asdict(f) for f in each] for name, each in found.items()}) + "\n"
        )
    else:
        Console(width=WIDTH).print(table(found))
    return 0 if all(finding.met for each in found.values() for finding in each) else 1


if __name__ == "__main__":
    sys.exit(main())
