"""M1: 4,000,000 rows of 100 bytes by 1, 50, 200 producers to one consumer (Minos figure 5), a business for each.

There are three processes: the broker, all producers, and all streams of the consumer. Each producer and stream has a
thread. The time runs from the first send until every row has arrived; rows go in batches of 1,000. There is no peer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bench.figures.figure import Figure, FigureResult, at_most
from bench.rounds import Receiver, Round, Sender, measure
from bench.venus_transmission import VenusReceiver, VenusSender, VenusSystem

ROWS = 1000
TOTAL_ROWS = 4_000_000
QUICK_ROWS = 400_000
PRODUCERS = (1, 50, 200)
ALONE_S = 6.0
SLOWER_MAX = 1.2
#: Credit of all streams of the consumer together.
CREDIT_BYTES = 64 << 20
PAPER = "2 x Kafka, 3 x RocketMQ at 1; level or behind at 50, 200"


def names(count: int) -> list[str]:
    """Return the names of this number of businesses."""
    return [f"bench{n}" for n in range(count)]


class ProducerCrowd:
    """All producers, each in a thread of its own."""

    def __init__(self, address: str, count: int) -> None:
        self._all = [VenusSender(address, one_at_a_time=False, business=name) for name in names(count)]
        self._pool = ThreadPoolExecutor(count)

    def prepare(self, wanted: Round) -> None:
        """Make the half messages of all producers."""
        for each in self._all:
            each.prepare(wanted)

    def send(self, wanted: Round) -> None:
        """Let all producers send at the same time."""
        list(self._pool.map(lambda each: each.send(wanted), self._all))

    def close(self) -> None:
        """End the streams."""
        for each in self._all:
            each.close()


class Consumer:
    """One consumer of all businesses, a stream each."""

    def __init__(self, address: str, count: int) -> None:
        credit = min(16 << 20, CREDIT_BYTES // count)
        self._all = [VenusReceiver(address, business=name, credit_bytes=credit) for name in names(count)]
        self._pool = ThreadPoolExecutor(count)

    def receive(self, wanted: Round) -> None:
        """Receive everything from all businesses."""
        list(self._pool.map(lambda each: each.receive(wanted), self._all))

    def close(self) -> None:
        """End the streams."""
        for each in self._all:
            each.close()


class Businesses(VenusSystem):
    """A broker with a number of businesses, one for each producer."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def start(self) -> None:
        """Start the broker; a business exists from its first batch on."""
        super().start()
        first = ProducerCrowd(self.address, self._count)
        first.prepare(Round(number=0, rows=1, batches=1))
        first.send(Round(number=0, rows=1, batches=1))
        first.close()

    def sender(self) -> Callable[[], Sender]:
        """Return a factory of the producers."""
        return partial(ProducerCrowd, self.address, self._count)

    def receiver(self) -> Callable[[], Receiver]:
        """Return a factory of the consumer."""
        return partial(Consumer, self.address, self._count)

    def finish(self, wanted: Round) -> None:
        """Do nothing: the next count has a broker of its own."""


def measure_arrival(count: int, total: int) -> tuple[float, float]:
    """Measure one round of `count` producers; return its seconds, and the CPU seconds of the broker."""
    system = Businesses(count)
    system.start()
    try:
        found = measure(system, rows=ROWS, batches=total // ROWS // count, rounds=1, warm_up=0)
        return found.received_s, found.server_cpu_s
    finally:
        system.stop()


def measure_alternately(count: int, total: int, rounds: int) -> tuple[float, float, float]:
    """Measure 1 and `count` producers alternately; return the best seconds of each, and the broker's least CPU."""
    alone, many = [], []
    for _ in range(rounds):  # so that a slow minute of the machine is in both
        alone.append(measure_arrival(1, total))
        many.append(measure_arrival(count, total) if count > 1 else alone[-1])
    return min(took for took, _ in alone), min(took for took, _ in many), min(cpu for _, cpu in many)


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure M1 and return its lines."""
    total = QUICK_ROWS if quick else TOTAL_ROWS
    findings: list[FigureResult] = []
    for count in PRODUCERS:
        alone_s, took_s, cpu_s = measure_alternately(count, total, 1 if quick else 3)
        who = "1 producer" if count == 1 else f"{count} producers"
        what = f"{total:,} rows of 100 B by {who}, until all have arrived (broker's CPU {cpu_s:.1f} s)"
        limit = ALONE_S * total / TOTAL_ROWS if count == 1 else SLOWER_MAX * alone_s
        beside = "" if count == 1 else f"1 producer alternately: {alone_s:.2f} s"
        findings.append(at_most(what, took_s, limit, "s", paper="" if findings else PAPER, peer=beside))
    return findings


FIGURE = Figure(id="M1", title="many producers", measure=run)
