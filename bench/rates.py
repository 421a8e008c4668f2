"""Measurement of the rows a second that a system of bench/transmission.py transmits."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from bench.rounds import System, measure

#: Rows that a round sends, by rows per batch: small batches are slow, and a round should take about a second.
TOTAL = {1: 5_000, 10: 50_000, 100: 200_000, 1000: 500_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Rows a second until the receiver has them, and until all work is done; the server's CPU microseconds per row."""

    received: float
    done: float
    cpu_us: float


def measure_rates(system: System, sizes: Sequence[int], *, quick: bool) -> dict[int, Rate]:
    """Measure batches of these sizes. Raises RuntimeError for a system that is not installed."""
    if reason := system.missing():
        raise RuntimeError(f"{system.name}: {reason}")
    try:
        system.start()
        return {size: measure_rate(system, size, rounds=2 if quick else 5, warm_up=1 if quick else 2) for size in sizes}
    finally:
        system.stop()


def measure_rate(system: System, rows: int, *, rounds: int, warm_up: int) -> Rate:
    """Measure batches of one size at a started system; return medians."""
    batches = max(10, min(TOTAL.get(rows, 200_000), system.rows_max) // rows)
    found, total = measure(system, rows=rows, batches=batches, rounds=rounds, warm_up=warm_up), rows * batches
    return Rate(received=total / found.received_s, done=total / found.done_s, cpu_us=found.server_cpu_s / total * 1e6)


def try_measure_rates(peer: System, sizes: Sequence[int], *, quick: bool) -> tuple[dict[int, Rate], str]:
    """Measure a peer; return its rates, or none and the reason why it could not be measured."""
    try:
        return measure_rates(peer, sizes, quick=quick), ""
    except (OSError, RuntimeError, TimeoutError, subprocess.CalledProcessError) as error:
        return {}, str(error)[:200]
