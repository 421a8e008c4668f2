"""V3: the plug is pulled while rows are inserted, updated, deleted (VENUS 4.4: nothing lost, nothing doubled).

Tests cut the power: they drop every byte after the last fsync and then compare all rows. This module runs the tests,
with one broker and with three, and counts the cuts.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence

from bench.figures.figure import Figure, FigureResult

ONE = ("tests/fault/engine/test_power_cut.py", "one broker")
THREE = ("tests/fault/cluster/test_power_cuts.py", "three brokers, one to three of them at once")
PAPER = "0 lost, 0 doubled"


def run_cut_tests(path: str, *, quick: bool) -> tuple[int, str]:
    """Run the power-cut tests in a file; return how many cuts they made, and their failures."""
    words = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", path]
    words += ["-m", "not slow" if quick else "slow", "--show-capture=all"]
    done = subprocess.run(words, capture_output=True, text=True)
    made = sum(int(found) for found in re.findall(r"power was cut (\d+) times", done.stdout))
    failed = re.findall(r"^FAILED (.*)$", done.stdout, re.MULTILINE)
    if done.returncode and not failed:
        failed = [done.stdout[-300:] + done.stderr[-300:]]
    return made, "; ".join(failed)[:300]


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure V3 and return its lines."""
    wanted, found = 12 if quick else 300, []
    for path, brokers in (ONE, THREE):
        made, failed = run_cut_tests(path, quick=quick)
        ours = f"{failed or '0 lost, 0 doubled, equal'}, {made} cuts"
        met = not failed and made >= wanted
        found.append(
            FigureResult(
                what=f"power cuts, {brokers}",
                ours=ours,
                goal=f"0, 0, equal, {wanted} of {wanted}",
                met=met,
                paper=PAPER,
            )
        )
    return found


FIGURE = Figure(id="V3", title="power cuts", measure=run)
