"""T3: the rate of a broker to all its subscribers together (Tensor figure 16), and their number at its maximum.

Each subscriber reads the same backlog, from its beginning, with a credit of 4 MiB. The knee is the smallest number of
subscribers with 90 % of the highest rate. Broker and subscribers share this machine. With few cores the subscribers use
more CPU than the broker, because they check and parse every message; the figure states the broker's CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.fan_out import Messages, ProcessUsage, one_broker
from bench.figures.figure import Figure, FigureResult, at_least
from bench.subscribers import subscribers

GOAL_GB_PER_S = 1.0
PAPER = "5 M x 1 KB in 50 s below 600 subscribers (0.1 GB/s each)"
BATCH_ROWS = 1000
KNEE = 0.9


def measure_rate(address: str, pid: int, count: int, end: int) -> tuple[float, float]:
    """Let `count` subscribers read the backlog; return GB/s, and GB per second of the broker's CPU."""
    used = ProcessUsage(pid)
    with subscribers([address], count, processes=min(2, count), credit_bytes=4 << 20) as reach:
        found = reach(end)
        return found.nbytes / (found.last[end] - found.first) / 1e9, found.nbytes / max(0.01, used.cpu_s) / 1e9


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure T3 and return its lines."""
    counts, batches = ((1, 4, 16), 200) if quick else ((1, 2, 4, 8, 16, 32, 64, 128), 500)
    with one_broker() as broker:
        sender = Messages(broker.address, rows=BATCH_ROWS)
        sender.commit_many(batches)
        rates = {count: measure_rate(broker.address, broker.process.pid, count, sender.end) for count in counts}
        sender.close()
    best = max(found for found, _ in rates.values())
    knee = min(count for count, (found, _) in rates.items() if found >= KNEE * best)
    each = ", ".join(f"{count}: {found:.2f}" for count, (found, _) in rates.items())
    cpu = max(found for _, found in rates.values())
    what = f"total delivered, knee at {knee} ({each}; at most {cpu:.2f} GB for a second of the broker's CPU)"
    return [at_least(what, best, GOAL_GB_PER_S, "GB/s", paper=PAPER)]


FIGURE = Figure(id="T3", title="what a broker delivers in all", measure=run)
