"""M3: the plug of a set is pulled while consumers sleep 2 ms a message (Minos 4.3): nothing lost, nothing doubled.

There are a home, a tandem and an access set of one broker each, and a consumer (the product's own client) at each. A
message is a batch of one row. In each round 10,000 are written, and each set loses power once: the process is killed,
and its disk loses every byte that was not synced. Every key is checked at every tier.
"""

from __future__ import annotations

import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.figures.figure import Figure, FigureResult, at_most
from bench.processes import free_port
from bench.venus_cluster import Writer
from bench.venus_transmission import BUSINESS
from bench.watchers import WatchedRows, Watchers, watch_changes
from tests.support.brokers import networks
from tests.support.brokers.forked_brokers import ForkedBroker, start_supervised
from tests.support.engines import power

TIERS = (("home", "core", 0), ("tandem", "tandem", 1), ("access", "access", 2))
SLEEP_S = 0.002
MESSAGES, ROUNDS = 10_000, 20
QUICK_MESSAGES, QUICK_ROUNDS = 2_000, 1
#: Written in pieces, so that a writer is at work whenever a set loses power.
PIECES = 50
AWAY_S = 0.5
PAPER = "0 lost, 0 doubled (Kafka, RocketMQ lose and double)"


class PoweredSets:
    """Three broker sets that can lose power; a file for each records which bytes its disk has synced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = {name: free_port() for name, _, _ in TIERS}
        self.brokers: dict[str, ForkedBroker] = {}
        for name, _, _ in TIERS:
            self.start(name)

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses of the sets, which stay the same after a power cut."""
        return {name: f"127.0.0.1:{port}" for name, port in self._ports.items()}

    def start(self, name: str) -> None:
        """Start a set."""
        _, tier, level = next(each for each in TIERS if each[0] == name)
        above = [self.addresses[TIERS[level - 1][0]]] if level else []
        chosen = networks.settings_of(
            self._folder / name, above, tier=tier, level=level, listen=self.addresses[name], http=""
        )
        note = partial(power.note_what_is_synced, self._synced_bytes_file(name))
        self.brokers[name] = start_supervised(chosen, self._folder / f"{name}.log", [note])

    def cut(self, name: str, chance: random.Random) -> int:
        """Cut the power of a set; return how many unsynced bytes its disk loses."""
        self.brokers[name].send(signal.SIGKILL)
        self.brokers[name].kill()
        return power.cut(self._folder / name, self._synced_bytes_file(name), chance, power.lose_unsynced_bytes)

    def _synced_bytes_file(self, name: str) -> Path:
        """Return the file that records which bytes the disk of a set has synced."""
        return self._folder / f"{name}.note"

    def stop(self) -> None:
        """End the sets."""
        for broker in self.brokers.values():
            broker.kill()


@contextmanager
def run_powered_sets() -> Iterator[PoweredSets]:
    """Run the three sets within the block, on empty directories."""
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as folder:
        started = PoweredSets(Path(folder))
        try:
            yield started
        finally:
            started.stop()


class Writing:
    """Thread in which a writer commits messages; it continues at its position after an outage of its broker."""

    def __init__(self, writer: Writer, messages: int, seconds: float) -> None:
        self._writer, self._messages, self._pause_s = writer, messages, seconds / PIECES
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._write_messages, daemon=True)
        self._thread.start()

    def _write_messages(self) -> None:
        try:
            for _ in range(PIECES):
                self._writer.stream(self._messages // PIECES, 1)
                time.sleep(self._pause_s)
        except BaseException as error:
            self._error = error

    def join(self) -> None:
        """Wait until all messages are committed."""
        self._thread.join()
        if self._error is not None:
            raise self._error


def run_round(
    sets: PoweredSets, writer: Writer, watchers: Watchers, messages: int, chance: random.Random
) -> tuple[int, int]:
    """Write messages while each set loses power once; return the bytes lost on disks and the number of cuts."""
    seconds = messages * SLEEP_S * 0.75  # the consumers are behind all the time
    writing, dropped, began = Writing(writer, messages, seconds), 0, time.monotonic()
    order = [name for name, _, _ in TIERS]
    chance.shuffle(order)
    for n, name in enumerate(order):
        moment = began + (n + chance.uniform(0.2, 0.8)) * seconds / len(order)
        time.sleep(max(0.0, moment - time.monotonic()))
        dropped += sets.cut(name, chance)
        time.sleep(AWAY_S)
        sets.start(name)
    writing.join()
    watchers.wait(writer.committed, 60 + messages * SLEEP_S * 5)
    return dropped, len(order)


def finding(name: str, seen: WatchedRows, wanted: int, rounds: int, beside: str) -> list[FigureResult]:
    """Return the result lines about rows that a consumer missed or got twice."""
    where = f"consumer at {name}, {wanted:,} messages, the power of each set cut {rounds} times"
    lost = seen.lost + max(0, wanted - seen.row)
    return [
        at_most(f"{where}, lost ({seen.reconnects} tries to continue{beside})", lost, 0, "", paper=PAPER),
        at_most("the same, doubled", seen.doubled, 0, ""),
    ]


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure M3 and return its lines."""
    messages, rounds = (QUICK_MESSAGES, QUICK_ROUNDS) if quick else (MESSAGES, ROUNDS)
    chance, dropped, cuts = random.Random(3), 0, 0
    with run_powered_sets() as sets:
        writer = Writer(sets.addresses["home"])
        writer.commit_until_done()
        for name in ("tandem", "access"):
            networks.has(sets.addresses[name], writer.committed, BUSINESS)
        with watch_changes(sets.addresses, writer.committed, sleep_s=SLEEP_S) as watchers:
            for _ in range(rounds):
                nbytes, number = run_round(sets, writer, watchers, messages, chance)
                dropped, cuts = dropped + nbytes, cuts + number
            seen = watchers.results()
        wanted = writer.committed
        writer.close()
    beside = f"; {cuts} cuts took {dropped:,} bytes that were not synced"
    return [line for name in seen for line in finding(name, seen[name], wanted, rounds, beside)]


FIGURE = Figure(id="M3", title="power cuts in every tier", measure=run)
