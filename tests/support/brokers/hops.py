"""Delay of a batch from set to set: a reader at each set records when it receives each offset."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from tests.support.brokers.servers import BUSINESS, business_status
from venus.rpc.subscriber import Subscriber


class Reader:
    """Records when each batch can be read at a set."""

    def __init__(self, address: str) -> None:
        self.seen: dict[int, float] = {}
        self._stop = threading.Event()
        self._subscriber = Subscriber(address, BUSINESS, "hops", credit_bytes=8 << 20, transient=True)
        self._subscriber.open(business_status(address).next_offset, 0)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._stop.is_set():
            for increment in self._subscriber.increments(0.05):
                self.seen[increment.base_offset] = time.monotonic()

    def close(self) -> None:
        """Stop the reader."""
        self._stop.set()
        self._thread.join()
        self._subscriber.close()


@contextmanager
def reading(addresses: Mapping[str, str]) -> Iterator[dict[str, Reader]]:
    """Read at every set within the block."""
    with ExitStack() as stack:
        readers = {}
        for name, address in addresses.items():
            readers[name] = Reader(address)
            stack.callback(readers[name].close)
        yield readers


def hop_ms(upper: Reader, lower: Reader) -> list[float]:
    """Return the delay of the lower set in milliseconds, for every batch that both readers received."""
    both = upper.seen.keys() & lower.seen.keys()
    return [1000 * max(0.0, lower.seen[offset] - upper.seen[offset]) for offset in both]


def format_times(what: str, values: Sequence[float], unit: str = "ms") -> str:
    """Return median, 99th percentile and maximum of some values, as a line."""
    cuts = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else [*values] * 99
    return f"{what:<24} {cuts[49]:>8,.1f} {cuts[98]:>8,.1f} {max(values):>8,.1f} {unit}  ({len(values):,})"
