"""S3: messages lost after many brokers died at once (SREM: none in "tens of seconds"), SkipCloud simulated.

The nodes are the product's own, without a map. A cycle of exchanges is one second. A message that meets a dead broker
is sent to another one; it is lost if it ends in a cluster that is not responsible. VENUS then matches where it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.figures.figure import Figure, FigureResult
from bench.network.cloud import Cloud
from venus.network.skipcloud.clusters import CloudShape

CYCLES = 25
SECONDS = 10
GOALS = {10: 99.9, 30: 99.9, 50: 0.0}


def measure_loss(brokers: int, percent: int, messages: int, seeds: int) -> tuple[float, int]:
    """Return the share that arrived in the first second, in percent, and after how many seconds none was lost."""
    arrived, silent_from = 0, 0
    for seed in range(seeds):
        cloud = Cloud(brokers, CloudShape.of(brokers), seed)
        cloud.run(CYCLES)
        cloud.kill(brokers * percent // 100)
        for second in range(SECONDS + 1):
            found = messages - cloud.count_lost(cloud.send_some(messages))
            arrived += found if second == 0 else 0
            if found < messages:
                silent_from = max(silent_from, second + 1)
            cloud.run(1)
    return 100 * arrived / (messages * seeds), silent_from


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure."""
    sizes, messages, seeds = ((64, 256), 500, 1) if quick else ((64, 256, 1024), 1000, 2)
    findings = []
    for brokers in sizes:
        for percent, goal in GOALS.items():
            share, silent_from = measure_loss(brokers, percent, messages, seeds)
            wanted = f">= {goal:g} % at once, " if goal else ""
            findings.append(
                FigureResult(
                    what=f"{percent} % of {brokers} brokers dead, {messages * seeds:,} messages a second",
                    ours=f"{share:.3f} % arrive in the first second, all from {silent_from} s on",
                    goal=f"{wanted}all from {SECONDS} s on",
                    met=share >= goal and silent_from <= SECONDS,
                    paper="none lost in tens of seconds",
                )
            )
    return findings


FIGURE = Figure(id="S3", title="loss after many brokers died", measure=run)
