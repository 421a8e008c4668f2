"""S3: messages lost after many brokers died at once (SREM: none in "tens of seconds"), SkipCloud simulated.

The nodes run the product's code, without a list of all nodes, and exchange neighbours once a second. A message that
meets a dead broker is sent to another one; it is lost if it ends in a cluster that is not responsible. VENUS matches
such a message where it is.

In the last lines eight of 16 real broker processes with 100,000 subscriptions are killed.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.figures.figure import Figure, FigureResult, at_most
from bench.network.cloud import SETTLED_CYCLES, Cloud
from bench.network.sixteen import BROKERS, kill_half
from venus.network.skipcloud.clusters import CloudShape

SECONDS = 10
GOALS = {10: 99.9, 30: 99.9, 50: 0.0}


def measure_loss(brokers: int, percent: int, messages: int, seeds: int) -> tuple[float, int]:
    """Kill brokers; return which percentage of messages arrives in the first second, and from which second all do."""
    arrived, silent_from = 0, 0
    for seed in range(seeds):
        cloud = Cloud(brokers, CloudShape.of(brokers), seed)
        cloud.run(SETTLED_CYCLES)
        cloud.kill(brokers * percent // 100)
        for second in range(SECONDS + 1):
            found = messages - cloud.count_lost(cloud.send_some(messages))
            arrived += found if second == 0 else 0
            if found < messages:
                silent_from = max(silent_from, second + 1)
            cloud.run(1)
    return round(100 * arrived / (messages * seeds), 3), silent_from


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure S3 and return its lines."""
    sizes, messages, seeds = ((64, 256), 500, 1) if quick else ((64, 256, 1024), 2000, 1)
    findings = []
    for percent, goal in GOALS.items():
        found = [measure_loss(brokers, percent, messages, seeds) for brokers in sizes]
        wanted = f">= {goal:g} % at once, " if goal else ""
        shares, silent_from = (" / ".join(map(str, column)) for column in zip(*found, strict=True))
        findings.append(
            FigureResult(
                what=f"{percent} % of {' / '.join(map(str, sizes))} brokers dead, {messages * seeds:,} messages/s",
                ours=f"{shares} % arrive in the first second, all from {silent_from} s on",
                goal=f"{wanted}all from {SECONDS} s on",
                met=all(share >= goal and silent <= SECONDS for share, silent in found),
                paper="none lost in tens of seconds",
            )
        )
    return [*findings, *_real_brokers(quick)]


def _real_brokers(quick: bool) -> list[FigureResult]:
    """Kill half of sixteen broker processes that match changes, and return the lines of that."""
    count = 10_000 if quick else 100_000
    found = kill_half(count, 10 if quick else 30)
    what = f"{BROKERS // 2} of {BROKERS} real broker processes killed, {count:,} subscriptions"
    return [
        at_most(f"{what}: batches with a wrong verdict, before and after", found.wrong, 0, ""),
        at_most("the same: until the next batch was matched", found.first_s, 3, "s"),
        at_most("the same: until the overlay was whole", found.whole_s, SECONDS, "s"),
    ]


FIGURE = Figure(id="S3", title="loss after many brokers died", measure=run)
