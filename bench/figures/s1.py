"""S1: routing traffic of SkipCloud against Chord (SREM: at least 60 % less with 64 servers); both are simulated.

Traffic is messages between brokers for one event that goes to a top cluster, or to a key's owner. What keeps neighbours
fresh is not in it, on either side. SkipCloud knows more neighbours than Chord: a Chord with as many stands beside it.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from bench.figures.figure import Figure, FigureResult
from bench.network.chord import Ring
from venus.network.skipcloud.clusters import CloudShape
from venus.network.skipcloud.simulation import Cloud

GOAL = 60.0
SIZES = (64, 128, 256, 512, 1024)
CYCLES = 3


def skipcloud(brokers: int, messages: int) -> tuple[float, float]:
    """Return the mean hops of a message, and how many neighbours a broker knows."""
    cloud = Cloud([f"b{n}" for n in range(brokers)], CloudShape.of(brokers), random.Random(brokers).randrange)
    for _ in range(CYCLES):
        cloud.cycle()
    sent = cloud.send_some(messages)
    assert all(one.at for one in sent)
    return statistics.mean(one.hops for one in sent), cloud.neighbours


def chord(brokers: int, messages: int, base: int = 2) -> tuple[float, float]:
    """Return the same of Chord."""
    chance = random.Random(brokers)
    ring = Ring(brokers, chance, base)
    hops = [ring.hops(chance.choice(ring.nodes), chance.randrange(ring.size)) for _ in range(messages)]
    return statistics.mean(hops), ring.neighbours


def as_many(brokers: int, neighbours: float, messages: int) -> tuple[float, float]:
    """Return the hops of the Chord whose nodes know at least as many neighbours."""
    for base in (4, 8, 16, 32, 64, 128):
        found = chord(brokers, messages, base)
        if found[1] >= neighbours:
            break
    return found


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure."""
    messages, findings = 500 if quick else 5000, []
    for brokers in (64, 256) if quick else SIZES:
        ours, known = skipcloud(brokers, messages)
        theirs, fingers = chord(brokers, messages)
        equal, equal_known = as_many(brokers, known, messages)
        less = 100 * (1 - ours / theirs)
        findings.append(
            FigureResult(
                what=f"{brokers} brokers: messages an event, Chord {theirs:.2f} with {fingers:.0f} neighbours",
                ours=f"{ours:.2f} with {known:.0f}: {less:.0f} % less",
                goal=f">= {GOAL:.0f} % less",
                met=less >= GOAL,
                paper=">= 60 % less, 64 servers" if brokers == SIZES[0] else "",
                peer=f"Chord with {equal_known:.0f} neighbours: {equal:.2f}",
            )
        )
    return findings


FIGURE = Figure(id="S1", title="routing traffic", measure=run)
