"""M2: the highest rate of rows of 100 bytes (Minos figure 6), alone and with three replicas; what a commit takes.

Kafka of today stands beside it, three brokers in KRaft mode: acks=all, min.insync.replicas=2, each append flushed,
the bytes of a whole batch as one message. All brokers and clients share this machine's cores.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.figures.figure import Figure, Finding, at_least, at_most, percentile
from bench.peers.kafka_cluster import KafkaCluster
from bench.rounds import Figures, System, measure
from bench.venus_cluster import MIB, Writer
from bench.venus_replicated import VenusReplicated
from bench.venus_transmission import Venus

ROWS = 1000
COMMITS_PER_S = 100
PAPER = "140,000 rows/s (Kafka 190,000)"
GOAL_ALONE, GOAL_REPLICATED = 400_000, 190_000
GOAL_P50_MS = 15.0
GOAL_MEMORY_MIB = 512


def rate(system: System, *, quick: bool) -> tuple[float, Figures]:
    """Return rows a second, from the first send until the consumer has all, and the rest of what was measured."""
    batches = 200 if quick else system.rows_max // ROWS
    found = measure(system, rows=ROWS, batches=batches, rounds=1 if quick else 5, warm_up=1 if quick else 2)
    return batches * ROWS / found.received_s, found


def alone(*, quick: bool) -> float:
    """Return the rate of a single broker."""
    system = Venus()
    system.start()
    try:
        return rate(system, quick=quick)[0]
    finally:
        system.stop()


def kafka(*, quick: bool) -> str:
    """Return the peer's rate, or why there is none."""
    system = KafkaCluster()
    if reason := system.missing():
        return f"Kafka: {reason}"
    try:
        system.start()
        return f"Kafka: {rate(system, quick=quick)[0]:,.0f} rows/s"
    except (OSError, RuntimeError) as error:
        return f"Kafka: {error}"[:200]
    finally:
        system.stop()


def commits(reach: str, *, quick: bool) -> list[float]:
    """Commit single rows at a fixed rate; return the milliseconds of each, from when it was due."""
    writer, taken = Writer(reach), []
    writer.commit_until_done()
    start = time.monotonic()
    for n in range(COMMITS_PER_S * (3 if quick else 15)):
        due = start + n / COMMITS_PER_S
        time.sleep(max(0.0, due - time.monotonic()))
        taken.append((writer.commit() - due) * 1000)
    writer.close()
    return taken


def run(quick: bool) -> Sequence[Finding]:
    """Measure."""
    single, peer = alone(quick=quick), kafka(quick=quick)
    system = VenusReplicated()
    try:
        system.start()
        replicated, found = rate(system, quick=quick)
        peak = system.brokers.peak_rss_bytes() / MIB
    finally:
        system.stop()
    latencies = _latencies(quick)
    cpu = f"{found.server_cpu_s / (replicated * found.received_s) * 1e6:.2f} us of the brokers' CPU a row"
    return [
        at_least("rows of 100 B, one broker, fsync", single, GOAL_ALONE, "rows/s", paper=PAPER),
        at_least(f"the same, durable on 2 of 3 replicas ({cpu})", replicated, GOAL_REPLICATED, "rows/s", peer=peer),
        at_most("commit at 100 transactions/s, 3 replicas, p50", percentile(latencies, 50), GOAL_P50_MS, "ms"),
        at_most("largest memory of a broker", peak, GOAL_MEMORY_MIB, "MiB"),
    ]


def _latencies(quick: bool) -> list[float]:
    system = VenusReplicated()
    try:
        system.start()
        return commits(system.brokers.reach, quick=quick)
    finally:
        system.stop()


FIGURE = Figure(id="M2", title="highest rate", measure=run)
