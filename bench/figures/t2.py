"""T2: 1,000 messages of 1 KB to 20 to 10,000 subscribers (Tensor figure 15): time until each has every message.

Up to 1,000 subscribers use gRPC's client, each over its own TCP connection. 10,000 subscribers are light ones
(`bench.light`): a hundred streams share each connection, and their client leaves most of the CPU to the broker.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.fan_out import Messages, ProcessUsage, one_broker
from bench.figures.figure import Figure, FigureResult, at_most
from bench.light.watching import run as light
from bench.subscribers import run_subscribers as real
from bench.subscribers import subscribers

MESSAGES = 1000
LIMIT_S = {20: 3.0, 100: 3.0, 1000: 3.0, 10_000: 12.0}
#: From this number on, subscribers are light.
LIGHT, ON_ONE = 10_000, 100
PAPER = "12 s, flat from 20 to 10,000"


def measure_one(count: int, messages: int) -> FigureResult:
    """Measure how long `messages` messages take to reach `count` subscribers."""
    with one_broker() as broker:
        sender = Messages(broker.address)
        sender.commit_one()
        on_one, watch = (ON_ONE, light) if count >= LIGHT else (1, real)
        processes = min(2, -(-count // 100))
        with subscribers([broker.address], count, processes=processes, on_one=on_one, watch=watch) as reach:
            before = reach(sender.end)
            used, began = ProcessUsage(broker.process.pid), time.monotonic()
            sender.commit_many(messages)
            committed_s = time.monotonic() - began
            found = reach(sender.end)
            everywhere_s = found.last[sender.end] - began
            assert found.rows == count * sender.end, "each subscriber has each row once, in order"
            cpu = f"CPU: broker {used.cpu_s:.2f} s, subscribers {found.cpu_s - before.cpu_s:.2f} s"
            beside = f"committed after {committed_s:.2f} s, {found.frames:,} frames, {cpu}"
            what = f"{messages:,} messages to {count:,} subscribers ({beside}, {used.peak_mib:.0f} MiB)"
        sender.close()
    return at_most(what, everywhere_s, LIMIT_S[count], "s", paper=PAPER)


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure T2 and return its lines; brokers and subscribers share a machine."""
    return [measure_one(count, MESSAGES) for count in ((20, 100) if quick else LIMIT_S)]


FIGURE = Figure(id="T2", title="1,000 messages to many subscribers", measure=run)
