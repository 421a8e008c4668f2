"""V2: rows of 100 bytes from the first send to the last receive, beside Kafka (VENUS figure 7), everything flushed."""

from __future__ import annotations

from collections.abc import Sequence

from bench.figures.figure import Figure, FigureResult, times_peer
from bench.peers.kafka import Kafka
from bench.peers.kafka_clients import Batching
from bench.rates import measure_rates, try_measure_rates
from bench.venus_transmission import VenusSystem

#: Goals beside Kafka: with the same rows per append, and with each batch as one message.
GOAL_ROWS, GOAL_WHOLE = 2.0, 1.0
PAPER = "nearly 2x Kafka 0.8.2"


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure V2 and return its lines."""
    sizes = [10, 1000] if quick else [1, 10, 100, 1000]
    ours = measure_rates(VenusSystem(), sizes, quick=quick)
    findings = []
    for batching, goal in ((Batching.ROWS, GOAL_ROWS), (Batching.WHOLE, GOAL_WHOLE)):
        peer, reason = try_measure_rates(Kafka(batching), sizes, quick=quick)
        for size in sizes:
            found = peer[size].received if peer else None
            what = f"{size} rows a batch, {batching.value}"
            said = reason or "Kafka 4"
            findings.append(times_peer(what, ours[size].received, found, goal, said=said, paper=PAPER))
    return findings


FIGURE = Figure(id="V2", title="transmission beside Kafka", measure=run)
