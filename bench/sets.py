"""Broker sets of one broker each, as processes with default settings, for the figures of the network."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.venus_transmission import BUSINESS
from tests.support.brokers import networks
from tests.support.brokers.servers import BrokerProcess


class Sets:
    """Running broker sets of one broker each, by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.brokers: dict[str, BrokerProcess] = {}

    def start(self, name: str, upstream: Sequence[str] = (), **place: Any) -> str:
        """Start a set below brokers at these addresses, the home if there are none; return its address.

        `place` has the arguments of `tests.support.brokers.networks.settings_of`.
        """
        chosen = networks.settings_of(self._folder / name, upstream, **place)
        self.brokers[name] = BrokerProcess(chosen, new_interpreter=True)
        return self.brokers[name].address

    def at(self, name: str) -> str:
        """Return the address of a set."""
        return self.brokers[name].address

    def wait(self, offset: int, timeout_s: float = 60.0) -> None:
        """Wait until every set below the home has received and serves everything below an offset."""
        for name, broker in self.brokers.items():
            if name != "home":
                networks.has(broker.address, offset, BUSINESS, timeout_s)

    def stop(self) -> None:
        """End all sets, the lowest first."""
        for broker in reversed(self.brokers.values()):
            broker.stop()


@contextmanager
def run_sets() -> Iterator[Sets]:
    """Yield an object that starts sets. At the end of the block the sets end and their data is removed."""
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as folder:
        started = Sets(Path(folder))
        try:
            yield started
        finally:
            started.stop()
