"""S1: routing traffic of SkipCloud against Chord (SREM: at least 60 % less with 64 servers); both are simulated.

The last line of the results is about sixteen real broker processes.

Traffic is the number of messages between brokers that bring one event to a top cluster (SkipCloud) or to a key's owner
(Chord). Messages that keep SkipCloud's neighbours fresh are counted separately. SkipCloud's nodes run the product's
code and join one by one, without a list of all nodes. They know more neighbours than Chord's, so a Chord with equally
many is measured too.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.figures.figure import Figure, FigureResult
from bench.network.chord import Ring
from bench.network.cloud import SETTLED_CYCLES, Cloud
from bench.network.sixteen import BROKERS, route
from venus.network.skipcloud.clusters import TOP_SIZE, CloudShape

GOAL = 60.0
SIZES = (64, 128, 256, 512, 1024)
UPKEEP_CYCLES = 5


@dataclass(frozen=True, slots=True)
class RoutingTraffic:
    """How many hops and messages the routing of an overlay takes."""

    hops: float
    hops_max: int
    lost: int
    neighbours: float
    upkeep: float  # messages of a broker in a cycle


def measure_skipcloud(brokers: int, messages: int) -> RoutingTraffic:
    """Measure how many messages SkipCloud needs between random brokers and clusters."""
    cloud = Cloud(brokers, CloudShape.of(brokers), brokers)
    cloud.run(SETTLED_CYCLES)
    before = cloud.messages.total()
    cloud.run(UPKEEP_CYCLES)
    upkeep = (cloud.messages.total() - before) / UPKEEP_CYCLES / brokers
    sent = cloud.send_some(messages)
    hops = [result.hops for _, result in sent]
    return RoutingTraffic(statistics.mean(hops), max(hops), cloud.count_lost(sent), cloud.neighbours(), upkeep)


def measure_chord(brokers: int, messages: int, base: int = 2) -> tuple[float, float]:
    """Measure how many messages Chord needs between random nodes; return hops and known neighbours."""
    chance = random.Random(brokers)
    ring = Ring(brokers, chance, base)
    hops = [ring.hops(chance.choice(ring.nodes), chance.randrange(ring.size)) for _ in range(messages)]
    return statistics.mean(hops), ring.neighbours


def chord_with_neighbours(brokers: int, neighbours: float, messages: int) -> tuple[float, float]:
    """Measure Chords with growing bases until nodes know this number of neighbours; return hops and neighbours."""
    for base in (4, 8, 16, 32, 64, 128):
        found = measure_chord(brokers, messages, base)
        if found[1] >= neighbours:
            break
    return found


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure S1 and return its lines."""
    messages, findings = 500 if quick else 5000, []
    for brokers in (64, 256) if quick else SIZES:
        ours = measure_skipcloud(brokers, messages)
        most = math.ceil(math.log(brokers / TOP_SIZE, CloudShape.of(brokers).base) - 1e-9)
        theirs, fingers = measure_chord(brokers, messages)
        equal, equal_known = chord_with_neighbours(brokers, ours.neighbours, messages)
        less = 100 * (1 - ours.hops / theirs)
        findings.append(
            FigureResult(
                what=f"{brokers} brokers: messages an event, Chord {theirs:.2f} with {fingers:.0f} neighbours",
                ours=f"{ours.hops:.2f} with {ours.neighbours:.0f}: {less:.0f} % less; {ours.hops_max} hops at most, "
                f"{ours.lost} lost, upkeep {ours.upkeep:.1f} a broker and cycle",
                goal=f">= {GOAL:.0f} % less, <= {most} hops",
                met=less >= GOAL and ours.hops_max <= most and not ours.lost,
                paper=">= 60 % less, 64 servers" if brokers == SIZES[0] else "",
                peer=f"Chord with {equal_known:.0f} neighbours: {equal:.2f}",
            )
        )
    return [*findings, _real_brokers(200 if quick else 1000)]


def _real_brokers(messages: int) -> FigureResult:
    """Run sixteen broker processes, and return the line of their routing."""
    found, (theirs, _) = route(messages), measure_chord(BROKERS, messages)
    most = math.ceil(math.log(BROKERS / TOP_SIZE, CloudShape.of(BROKERS).base) - 1e-9)
    return FigureResult(
        what=f"{BROKERS} real broker processes: messages an event, Chord {theirs:.2f} (simulated)",
        ours=f"{found.hops:.2f}; {found.hops_max} hops at most, {found.lost} lost",
        goal=f"<= {most} hops",
        met=found.hops_max <= most and not found.lost,
        peer=f"simulated {measure_skipcloud(BROKERS, messages).hops:.2f}",
    )


FIGURE = Figure(id="S1", title="routing traffic", measure=run)
