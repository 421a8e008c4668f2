"""M4: how even 64 producers of 1,000 rows of 100 bytes end up on the brokers (Minos figure 7).

First 64 scheduler objects place businesses at 64 simulated brokers, each with the reports that it has: none since the
beginning, or some that are 100 placements old. What is placed is in records that every broker sees, here after five
more placements. Then the product's scheduler places 64 businesses at eight real brokers, and what they have is counted.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.figures.figure import Figure, FigureResult, at_most
from tests.support.brokers.servers import BrokerProcess, business_status, fill, settings
from venus.network.scheduling import ALL, CHOICES, BrokerLoadReport, Load, Scheduler, rank_brokers

BROKERS = 64
REAL = 8
BUSINESSES = 64
ROWS = 1000
STEP_S = 0.01  # between two placements
GOAL = 1.3
PAPER = "Kafka: 0 to 6,352 rows a broker, 882 lost; Minos: even, 0 lost"


class PlacementSimulation:
    """Brokers of equal size, each business the same load; schedulers with reports and placements that come late."""

    def __init__(self, businesses: int, *, every: int, late: int, choices: int, seed: int) -> None:
        self._chance = random.Random(seed)
        self._names = [f"b{n}" for n in range(BROKERS)]
        self._schedulers = [Scheduler(choices=choices) for _ in range(BROKERS)]
        self._placed = dict.fromkeys(self._names, 0)
        self._share = 0.5 * BROKERS / businesses  # so that all of them are half of what there is
        placed: list[tuple[int, str]] = []
        for n in range(businesses):
            if n % every == 0:
                self._report(n)
            scheduler = self._chance.choice(self._schedulers)
            placed.append((n, scheduler.choose(f"x{n}", self._names, n * STEP_S)))
            self._placed[placed[-1][1]] += 1
            if n >= late:  # late 0: at once
                for each in self._schedulers:
                    each.record_placement(f"x{placed[n - late][0]}", placed[n - late][1], n * STEP_S)

    def _report(self, n: int) -> None:
        for name in self._names:
            used = min(1.0, self._placed[name] * self._share)
            load = Load(memory=used, cpu=used, disk=used, network=used)
            for scheduler in self._schedulers:
                scheduler.record_report(
                    name, BrokerLoadReport(load=load, businesses=self._placed[name], number=n, at=(n - 0.5) * STEP_S)
                )

    @property
    def uneven(self) -> float:
        """The rows of the fullest broker over the mean."""
        return max(self._placed.values()) / statistics.mean(self._placed.values())


def by_hash(businesses: int) -> float:
    """Return the same for rendezvous hashing alone."""
    placed = Counter(rank_brokers(f"x{n}", [f"b{n}" for n in range(BROKERS)])[0] for n in range(businesses))
    return max(placed.values()) / (businesses / BROKERS)


def simulate_placement(quick: bool) -> list[FigureResult]:
    """Place at simulated brokers; the worst of some seeds counts."""
    findings: list[FigureResult] = []
    late = PlacementSimulation(BUSINESSES, every=1 << 30, late=1, choices=ALL, seed=0).uneven
    few = PlacementSimulation(BUSINESSES, every=1 << 30, late=0, choices=CHOICES, seed=0).uneven
    also = f", records one placement late: {late:.2f}, two others compared: {few:.2f}"
    for businesses, every, late_by, choices, words in (
        (BUSINESSES, 1 << 30, 0, ALL, "no report since, records at once, all compared"),
        (10 * BUSINESSES, 100, 5, ALL, "reports 100 and records 5 placements old, all compared"),
        (10 * BUSINESSES, 100, 1 << 30, CHOICES, "reports 100 placements old, no records, two others compared"),
    ):
        seeds = range(1 if quick else 5)
        simulations = (
            PlacementSimulation(businesses, every=every, late=late_by, choices=choices, seed=s) for s in seeds
        )
        found = max(each.uneven for each in simulations)
        what = f"{businesses} businesses at {BROKERS}, max/mean: {words}"
        peer = f"hashing alone: {by_hash(businesses):.2f}{also if not findings else ''}"
        findings.append(at_most(what, found, GOAL, "", paper=PAPER if not findings else "", peer=peer))
    return findings


def real(businesses: int) -> list[FigureResult]:
    """Place at real brokers, let a producer a business write, and count."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(4) as pool:
        brokers = {f"b{n}": BrokerProcess(settings(Path(folder) / f"b{n}")) for n in range(REAL)}
        try:
            scheduler = Scheduler(choices=ALL)
            for name in brokers:
                scheduler.record_report(name, BrokerLoadReport(load=Load(), businesses=0, at=0.0))
            places = {f"x{n}": scheduler.choose(f"x{n}", sorted(brokers), 1.0) for n in range(businesses)}

            def write(business: str) -> tuple[str, int]:
                address = brokers[places[business]].address
                fill(address, 1, 1, rows=ROWS, business=business)
                return places[business], business_status(address, business).next_offset

            rows = Counter[str]()
            for name, count in pool.map(write, places):
                rows[name] += count
        finally:
            for broker in brokers.values():
                broker.stop()
    uneven = max(rows[name] for name in brokers) / (sum(rows.values()) / REAL)
    lost = businesses * ROWS - sum(rows.values())
    what = f"{businesses} producers of {ROWS:,} rows at {REAL} real brokers"
    return [at_most(f"{what}, max/mean", uneven, GOAL, ""), at_most(f"{what}, lost", lost, 0, "rows")]


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure."""
    return [*simulate_placement(quick), *real(16 if quick else BUSINESSES)]


FIGURE = Figure(id="M4", title="balance of the brokers", measure=run)
