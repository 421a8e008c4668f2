"""T1: one message through three levels to 1,000 subscribers (Tensor figure 14), and 100 changes a second to as many.

There are a home, a tandem set and an access set of one broker each. A line of 30 ms is before every set but the home
and before every subscriber, so a message takes at least 90 ms, and its acknowledgement as long. The 100 changes a
second go through two levels without delay, with three access brokers. All of them share this machine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.fan_out import Messages, ProcessUsage
from bench.figures.figure import Figure, FigureResult, at_most, percentile
from bench.sets import run_sets
from bench.subscribers import delay_line, subscribers
from bench.venus_transmission import BUSINESS
from tests.support.brokers.networks import has, settings_of
from tests.support.brokers.servers import BrokerProcess

DELAY_S = 0.030
EVERYWHERE_S = 0.5
BURST_S = 3.0
MEMORY_MIB = 400
ACCESS = 3
CHANGES_PER_S = 100
SEEN_WITHIN_S = 3.0


@contextmanager
def start_far_levels() -> Iterator[tuple[str, str, str]]:
    """Start three levels behind delayed lines; yield three addresses: home, access set, line to the access set."""
    with run_sets() as started:
        home = started.start("home")
        with delay_line(home, DELAY_S) as upper:
            tandem = started.start("tandem", [upper], tier="tandem", level=1)
            with delay_line(tandem, DELAY_S) as middle:
                access = started.start("access", [middle], level=2)
                with delay_line(access, DELAY_S) as lower:
                    yield home, access, lower


def measure_three_levels(count: int, messages: int) -> list[FigureResult]:
    """Measure the delay of single messages, and of 1,000 at once, through three levels."""
    with start_far_levels() as (home, access, lower):
        sender = Messages(home)
        sender.commit_one()
        has(access, sender.end, BUSINESS)
        with subscribers([lower], count, processes=2, offset=sender.end) as reach:
            waits = []
            for _ in range(messages):
                time.sleep(0.1)
                began = time.monotonic()
                sender.commit_one()
                waits.append(reach(sender.end).last[sender.end] - began)
            began = time.monotonic()
            sender.commit_many(1000)
            burst_s = reach(sender.end).last[sender.end] - began
        sender.close()
    where = f"{count:,} subscribers below three levels, lines of {DELAY_S * 1000:.0f} ms"
    p50 = percentile(waits, 50)
    return [
        at_most(
            f"one message at all of {where}, p99 of {messages} (p50 {p50:.3f} s)",
            percentile(waits, 99),
            EVERYWHERE_S,
            "s",
        ),
        at_most(f"1,000 messages at all of {where}", burst_s, BURST_S, "s", paper="12 s up to 50,000 messages"),
    ]


@contextmanager
def start_access_brokers() -> Iterator[tuple[BrokerProcess, list[BrokerProcess]]]:
    """Start a home and three access brokers below it."""
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as folder:
        started = [BrokerProcess(settings_of(Path(folder) / "home", ()), new_interpreter=True)]
        try:
            for n in range(ACCESS):
                chosen = settings_of(Path(folder) / f"access{n}", [started[0].address])
                started.append(BrokerProcess(chosen, new_interpreter=True))
            yield started[0], started[1:]
        finally:
            for broker in reversed(started):
                broker.stop()


def measure_access_brokers(count: int, seconds: float) -> list[FigureResult]:
    """Measure 100 changes a second to `count` subscribers at three access brokers."""
    with start_access_brokers() as (home, access):
        sender = Messages(home.address, rows=1)
        sender.commit_one()
        for broker in access:
            has(broker.address, sender.end, BUSINESS)
        addresses = [broker.address for broker in access]
        with subscribers(addresses, count, processes=2, offset=sender.end) as reach:
            used = [ProcessUsage(broker.process.pid) for broker in access]
            began = time.monotonic()
            begun = sender.send_steadily(CHANGES_PER_S, seconds)
            took_s = time.monotonic() - began
            last = reach(*begun).last
            cpu = ", ".join(f"{each.cpu_s / took_s:.2f}" for each in used)
            peak = max(each.peak_mib for each in used)
        sender.close()
    waits = [last[offset] - began_at for offset, began_at in begun.items()]
    rate = len(begun) / took_s
    beside = f"p99 {percentile(waits, 99):.2f} s, CPU of the access brokers {cpu} cores"
    where = f"{count:,} subscribers at {ACCESS} access brokers"
    what = f"{where}, {rate:.0f} changes/s for {took_s:.0f} s: the slowest change ({beside})"
    return [
        at_most(what, max(waits), SEEN_WITHIN_S, "s"),
        at_most("the same: peak memory of an access broker", peak, MEMORY_MIB, "MiB"),
    ]


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure T1 and return its lines."""
    return [
        *measure_three_levels(*((100, 10) if quick else (1000, 100))),
        *measure_access_brokers(*((90, 5.0) if quick else (1000, 60.0))),
    ]


FIGURE = Figure(id="T1", title="one message everywhere", measure=run)
