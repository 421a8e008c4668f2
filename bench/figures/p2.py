"""P2: transmission beside its hardest peers: RocketMQ's half messages, and Kafka that batches as it likes."""

from __future__ import annotations

from collections.abc import Sequence

from bench.figures.figure import Figure, Finding, times_peer
from bench.peers.kafka import Kafka
from bench.peers.kafka_clients import Batching
from bench.peers.rocketmq import RocketMq
from bench.rates import beside, rates
from bench.venus_transmission import Venus

#: Rows a batch of VENUS with a window; a producer of Kafka makes batches of up to 10,000 by itself.
WINDOW_ROWS = 1000


def run(quick: bool) -> Sequence[Finding]:
    """Measure."""
    sizes = [10, 1000] if quick else [1, 10, 100, 1000]
    peer, reason = beside(RocketMq(), sizes, quick=quick)
    findings = []
    for awaits, what in ((False, "commit sent"), (True, "commit answered, which RocketMQ's client does not wait for")):
        ours = rates(Venus(one_at_a_time=True, awaits_commits=awaits), sizes, quick=quick)
        for size in sizes:
            found = peer[size].received if peer else None
            line = f"one batch at a time, {size} rows: {what}"
            findings.append(times_peer(line, ours[size].received, found, 1.0, said=reason or "RocketMQ 5"))
    window = rates(Venus(), [WINDOW_ROWS], quick=quick)[WINDOW_ROWS].done
    kafka, reason = beside(Kafka(Batching.OWN), [WINDOW_ROWS], quick=quick)
    found = kafka[WINDOW_ROWS].received if kafka else None
    what = "until the row is in the full data; Kafka with its own batching, fsync"
    return [*findings, times_peer(what, window, found, 1.0, said=reason or "Kafka 4")]


FIGURE = Figure(id="P2", title="transmission beside RocketMQ and Kafka's own batches", measure=run)
