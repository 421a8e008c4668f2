"""Consumers in a separate process that record when each change arrived, and which changes are doubled or missing.

Each is the product's own subscriber in a thread, and resumes at its position after its broker was lost. It reads the
number in each row's key: `bench.venus_transmission.make_half` counts the rows of a business from 1.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from bench.venus_transmission import BUSINESS, KEY_BYTES
from venus.errors import OffsetDiverged, OffsetTrimmed, VenusError
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2, change_pb2

CREDIT_BYTES = 1 << 20
POLL_S = 0.2
RETRY_S = 0.05
ANSWER_S = 60.0
spawn = multiprocessing.get_context("spawn")


@dataclass(slots=True)
class WatchedRows:
    """What one consumer has received. `ends`, `times`: the end offset and time of arrival of each increment."""

    position: int
    row: int
    ends: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    doubled: int = 0
    lost: int = 0
    reconnects: int = 0
    #: Why the consumer cannot continue; empty if it can.
    trouble: str = ""


class _Watcher(threading.Thread):
    """Thread of one consumer, which sleeps `sleep_s` per row. `counts`: whether it counts doubled and lost rows."""

    def __init__(self, name: str, address: str, offset: int, sleep_s: float, *, counts: bool) -> None:
        super().__init__(daemon=True)
        self._group, self._address, self._sleep_s, self._counts = f"watch-{name}", address, sleep_s, counts
        self.seen = WatchedRows(position=offset, row=offset)
        self._epoch = 0
        self.ending = threading.Event()

    def run(self) -> None:
        while not self.ending.is_set():
            try:
                self._run_session()
            except (OffsetDiverged, OffsetTrimmed) as error:
                self.seen.trouble = str(error)
                return
            except VenusError:
                self.seen.reconnects += 1
                self.ending.wait(RETRY_S)

    def _run_session(self) -> None:
        """Read increments over one connection until it breaks."""
        with Subscriber(self._address, BUSINESS, self._group, credit_bytes=CREDIT_BYTES) as subscriber:
            subscriber.open(self.seen.position, self._epoch)
            while not self.ending.is_set():
                for increment in subscriber.increments(POLL_S):
                    self._record_increment(increment)
                    subscriber.acknowledge(self.seen.position)

    def _record_increment(self, increment: broker_pb2.Increment) -> None:
        """Record an increment: its time of arrival, and the number of rows that are doubled or missing."""
        seen, now = self.seen, time.monotonic()
        if self._counts:
            for row in numbers(increment.body):
                seen.doubled += row <= seen.row
                seen.lost += max(0, row - seen.row - 1)
                seen.row = max(seen.row, row)
                if self._sleep_s:
                    time.sleep(self._sleep_s)
        seen.position, self._epoch = increment.base_offset + increment.count, increment.epoch
        seen.ends.append(seen.position)
        seen.times.append(now)


def numbers(body: bytes) -> Iterator[int]:
    """Yield the numbers of the rows in a batch that `make_half` has made, from their keys."""
    for table in change_pb2.BatchBody.FromString(body).tables:
        keys = table.record_ids
        for at in range(0, len(keys), KEY_BYTES):
            yield int(keys[at + 2 : at + KEY_BYTES])


def _run_watchers(addresses: Mapping[str, str], offset: int, sleep_s: float, counts: bool, orders: Connection) -> None:
    """Run the consumers of one process; answer requests for their positions or their results."""
    watchers = {name: _Watcher(name, address, offset, sleep_s, counts=counts) for name, address in addresses.items()}
    for watcher in watchers.values():
        watcher.start()
    orders.send(None)
    while (wanted := orders.recv()) is not None:
        if wanted == "positions":
            orders.send({name: (watcher.seen.position, watcher.seen.trouble) for name, watcher in watchers.items()})
        else:
            orders.send({name: watcher.seen for name, watcher in watchers.items()})
    for watcher in watchers.values():
        watcher.ending.set()
    for watcher in watchers.values():
        watcher.join(10)


class Watchers:
    """Consumers in a separate process, one at each of some brokers."""

    def __init__(self, addresses: Mapping[str, str], offset: int, sleep_s: float, *, counts: bool) -> None:
        self._orders, theirs = spawn.Pipe()
        arguments = (dict(addresses), offset, sleep_s, counts, theirs)
        self._process = spawn.Process(target=_run_watchers, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._read_answer()

    def wait(self, offset: int, timeout_s: float) -> None:
        """Wait until all consumers have received everything below an offset. Raises TimeoutError, RuntimeError."""
        end = time.monotonic() + timeout_s
        while True:
            self._orders.send("positions")
            found: Mapping[str, tuple[int, str]] = self._read_answer()  # type: ignore[assignment]
            if trouble := next((f"{name}: {why}" for name, (_, why) in found.items() if why), ""):
                raise RuntimeError(f"consumer at {trouble}")
            if min(position for position, _ in found.values()) >= offset:
                return
            if time.monotonic() > end:
                raise TimeoutError(f"after {timeout_s:g} s not every consumer has offset {offset:,}: {found}")
            time.sleep(0.05)

    def results(self) -> dict[str, WatchedRows]:
        """Return what each consumer has received so far, by name."""
        self._orders.send("seen")
        return self._read_answer()  # type: ignore[return-value]

    def _read_answer(self) -> object:
        """Return the next answer of the consumers' process. Raises TimeoutError."""
        if not self._orders.poll(ANSWER_S):
            raise TimeoutError("the consumers' process does not answer")
        return self._orders.recv()

    def close(self) -> None:
        """End the consumers."""
        self._orders.send(None)
        self._process.join(30)


@contextmanager
def watch_changes(
    addresses: Mapping[str, str], offset: int, *, sleep_s: float = 0.0, counts: bool = True
) -> Iterator[Watchers]:
    """Run a consumer at each of these brokers within the block, all from the same offset on."""
    watchers = Watchers(addresses, offset, sleep_s, counts=counts)
    try:
        yield watchers
    finally:
        watchers.close()
