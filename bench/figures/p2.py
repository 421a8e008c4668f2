"""P2: transmission beside its hardest peers: RocketMQ's half messages, and Kafka with batches of its own size."""

from __future__ import annotations

from collections.abc import Sequence

from bench.bare import measure_bare
from bench.figures.figure import Figure, FigureResult, times_peer
from bench.peers.kafka import Kafka
from bench.peers.kafka_clients import Batching
from bench.peers.rocketmq import RocketMq
from bench.rates import measure_rates, try_measure_rates
from bench.venus_transmission import ROW_BYTES, VenusSystem

#: Rows per batch of VENUS, with a window; a producer of Kafka makes batches of up to 10,000 by itself.
WINDOW_ROWS = 1000
LIMIT_S = 3.0


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure P2 and return its lines."""
    sizes = [10, 1000] if quick else [1, 10, 100, 1000]
    peer, reason = try_measure_rates(RocketMq(), sizes, quick=quick)
    findings = [_grpc_limit(size, peer[size].received if peer else None) for size in sizes]
    for awaits, what in ((False, "commit sent"), (True, "commit answered, which RocketMQ's client does not wait for")):
        ours = measure_rates(VenusSystem(one_at_a_time=True, awaits_commits=awaits), sizes, quick=quick)
        for size in sizes:
            found = peer[size].received if peer else None
            line = f"one batch at a time, {size} rows: {what}"
            findings.append(times_peer(line, ours[size].received, found, 1.0, said=reason or "RocketMQ 5"))
    window = measure_rates(VenusSystem(), [WINDOW_ROWS], quick=quick)[WINDOW_ROWS].done
    kafka, reason = try_measure_rates(Kafka(Batching.OWN), [WINDOW_ROWS], quick=quick)
    found = kafka[WINDOW_ROWS].received if kafka else None
    what = "until the row is in the full data; Kafka with its own batching, fsync"
    return [*findings, times_peer(what, window, found, 1.0, said=reason or "Kafka 4")]


def _grpc_limit(rows: int, peer: float | None) -> FigureResult:
    """Return the line with the rate of bare gRPC, an upper limit for any broker that uses gRPC and syncs once."""
    per_s = measure_bare(nbytes=ROW_BYTES * rows, seconds=LIMIT_S, durable=True).per_s * rows
    return FigureResult(
        what=f"the limit: a bare gRPC stream, {rows} rows a frame, synced and answered",
        ours=f"{per_s:,.0f} rows/s" + (f", {per_s / peer:.2f} x" if peer else ""),
        goal="none: the transport",
        met=True,
    )


FIGURE = Figure(id="P2", title="transmission beside RocketMQ and Kafka's own batches", measure=run)
