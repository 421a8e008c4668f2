"""M2: the highest rate of rows of 100 bytes (Minos figure 6), alone and with three replicas, and the time of a commit.

The peer is today's Kafka with three brokers in KRaft mode: acks=all, min.insync.replicas=2, each append flushed, a
whole batch as one message. All brokers and clients share this machine's cores.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from bench.figures.figure import Figure, FigureResult, at_least, at_most, percentile
from bench.peers.kafka import Kafka
from bench.peers.kafka_clients import Batching
from bench.rates import measure_rate, measure_rates, try_measure_rates
from bench.venus_cluster import MIB
from bench.venus_replicated import VenusReplicated
from bench.venus_transmission import BUSINESS, WINDOW_BYTES, VenusSystem, make_half
from venus.model import Verdict
from venus.rpc.producer import Producer

ROWS = 1000
COMMITS_PER_S = 100
PAPER = "140,000 rows/s (Kafka 190,000)"
GOAL_ALONE, GOAL_REPLICATED = 400_000, 190_000
GOAL_P50_MS = 15.0
GOAL_MEMORY_MIB = 512


def commits(reach: str, *, quick: bool) -> list[float]:
    """Commit single rows at a fixed rate; return the milliseconds from when each was due until its answer.

    Commits overlap: one thread sends half messages, one decides those that are on disk, and one records the answers.
    """
    count, answered = COMMITS_PER_S * (3 if quick else 15), list[float]()
    with Producer(reach, BUSINESS, "bench", window_bytes_max=WINDOW_BYTES) as producer:
        last = producer.connect(0, 1, owner="bench", take_over=True).last_batch
        halves = [make_half(last + 1 + n, last + 1 + n, 1) for n in range(count)]

        def decide() -> None:
            for half in halves:
                producer.wait_until_persisted(half.batch_no)
                producer.decide(half.batch_no, half.digest, Verdict.COMMIT)

        def record_decisions() -> None:
            for half in halves:
                producer.wait_until_decided(half.batch_no)
                answered.append(time.monotonic())

        with ThreadPoolExecutor(2) as pool:
            working = [pool.submit(decide), pool.submit(record_decisions)]
            start = time.monotonic()
            for n, half in enumerate(halves):
                time.sleep(max(0.0, start + n / COMMITS_PER_S - time.monotonic()))
                producer.send_half(half)
            for each in working:
                each.result()
    return [(at - start - n / COMMITS_PER_S) * 1000 for n, at in enumerate(answered)]


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure M2 and return its lines."""
    single = measure_rates(VenusSystem(), [ROWS], quick=quick)[ROWS].received
    kafka, reason = try_measure_rates(Kafka(Batching.WHOLE, replicas=3), [ROWS], quick=quick)
    peer = f"Kafka: {kafka[ROWS].received:,.0f} rows/s" if kafka else f"Kafka: {reason}"
    system = VenusReplicated()
    try:
        system.start()
        found = measure_rate(system, ROWS, rounds=1 if quick else 5, warm_up=1 if quick else 2)
        peak = system.brokers.peak_rss_bytes() / MIB
    finally:
        system.stop()
    latencies = _latencies(quick)
    cpu = f"{found.cpu_us:.2f} us of the brokers' CPU a row"
    return [
        at_least("rows of 100 B, one broker, fsync", single, GOAL_ALONE, "rows/s", paper=PAPER),
        at_least(f"the same, durable on 2 of 3 replicas ({cpu})", found.received, GOAL_REPLICATED, "rows/s", peer=peer),
        at_most("commit at 100 transactions/s, 3 replicas, p50", percentile(latencies, 50), GOAL_P50_MS, "ms"),
        at_most("largest memory of a broker", peak, GOAL_MEMORY_MIB, "MiB"),
    ]


def _latencies(quick: bool) -> list[float]:
    """Return the milliseconds of commits at a new cluster of three brokers."""
    system = VenusReplicated()
    try:
        system.start()
        return commits(system.brokers.reach, quick=quick)
    finally:
        system.stop()


FIGURE = Figure(id="M2", title="highest rate", measure=run)
