"""Where the time of small transactions goes: the log of cuts (venus/process/tracing.py) of all processes, put together.

A stage begins when the previous stage ends. So the stages of a transaction add up to its latency, as `bench.trickle`
measures it, plus the target's fsync, which comes after the target's timestamp.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

#: Description of each stage, and the timestamp at which it ends.
STAGES = (
    ("a cut is opened (the application's own fsync included)", "captured.opened"),
    ("its rows are read, encoded and sent", "captured.sent"),
    ("the broker has the half message", "committed.received"),
    ("it is on the broker's disk", "committed.on_disk"),
    ("capture knows it", "captured.persisted"),
    ("the source's local transaction is on disk", "captured.ended"),
    ("the broker has the decision", "committed.decided"),
    ("it is on the broker's disk and shown", "committed.ended"),
    ("the apply process has the rows", "applied.arrived"),
    ("it begins to apply them", "applied.begun"),
    ("the target's transaction is on disk", "applied.ended"),
)
Times = dict[str, int]


def read(log: Path) -> list[Times]:
    """Return the timestamps (Unix microseconds) in a log of each cut that was applied, in the order of application."""
    cuts: dict[str, Times] = defaultdict(dict)
    for line in log.read_text().splitlines():
        if '"stage"' in line and line.startswith("{"):
            said = json.loads(line)
            cuts[said["cut"]] |= {
                f"{said['stage']}.{name.removesuffix('_us')}": at_us
                for name, at_us in said.items()
                if name.endswith("_us")
            }
    whole = [times for times in cuts.values() if all(name in times for _, name in STAGES)]
    return sorted(whole, key=lambda times: (times["applied.ended"], times["committed.ended"]))


def of_transactions(cuts: list[Times], commits: Iterable[tuple[float, float]]) -> dict[str, list[float]]:
    """Return for each stage its milliseconds by transaction; `commits`: Unix seconds at source and target."""
    ends = [times["applied.ended"] for times in cuts]
    found: dict[str, list[float]] = {label: [] for label, _ in STAGES}
    for source_s, target_s in commits:
        n = bisect_left(ends, target_s * 1e6)
        if n == len(ends):
            continue
        before_us = source_s * 1e6
        for label, name in STAGES:
            found[label].append((cuts[n][name] - before_us) / 1000)
            before_us = cuts[n][name]
    return found


def report(console: Console, found: Mapping[str, list[float]]) -> None:
    """Print a table of the stages with their durations."""
    count = len(next(iter(found.values())))
    table = Table(title=f"stages of {count} transactions, ms")
    for heading in ("until", "median", "mean", "p90", "p99"):
        table.add_column(heading, justify="left" if heading == "until" else "right")
    total = 0.0
    for label, times in found.items():
        mean = sum(times) / max(1, count)
        total += mean
        parts = [_percentile(times, 0.5), mean, _percentile(times, 0.9), _percentile(times, 0.99)]
        table.add_row(label, *(f"{part:.2f}" for part in parts))
    table.add_row("together", "", f"{total:.2f}", "", "")
    console.print(table)


def _percentile(times: list[float], part: float) -> float:
    """Return a percentile of the times; 0.5 is the median."""
    return sorted(times)[min(len(times) - 1, int(len(times) * part))] if times else float("nan")
