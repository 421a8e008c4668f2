"""How much of its machine a broker uses, as the others learn it with its lease (Minos 3.4.2).

Rounded, and said again only when it has changed or after half a minute, because every word is a write at etcd and news
for all brokers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

from venus.network.scheduling import STALE_S, Load
from venus.replication.records import LiveBroker

LOOK_EVERY_S = 10.0
AGAIN_AFTER_S = STALE_S / 2
STEP = 0.05
#: Where the network card does not say how fast it is: 1 Gbit/s.
LINK_BYTES_PER_S = 125_000_000.0


class Loads:
    """Called often, looks every ten seconds; never blocks."""

    def __init__(
        self,
        data_dir: Path,
        monotonic: Callable[[], float] = time.monotonic,
        measure: Callable[[Path, float], Load] | None = None,
    ) -> None:
        self._data_dir, self._monotonic = data_dir, monotonic
        self._measure = measure or Machine()
        self._looked_at = self._said_at = float("-inf")

    def __call__(self, me: LiveBroker, businesses: int) -> LiveBroker:
        """Return what a broker of so many replicas says of itself."""
        now = self._monotonic()
        if now - self._looked_at < LOOK_EVERY_S:
            return me
        found = self._measure(self._data_dir, now)
        self._looked_at = now
        if found == me.load and businesses == me.businesses and now - self._said_at < AGAIN_AFTER_S:
            return me
        self._said_at = now
        return replace(me, load=found, businesses=businesses, report=me.report + 1)


class Machine:
    """Reads the machine."""

    def __init__(self) -> None:
        self._before: tuple[float, int] | None = None
        psutil.cpu_percent(None)  # the first reading says nothing

    def __call__(self, data_dir: Path, now: float) -> Load:
        """Return what is used, each over its own capacity."""
        found = os.statvfs(data_dir)
        used = found.f_blocks - found.f_bfree
        return Load(
            memory=_rounded(psutil.virtual_memory().percent / 100),
            cpu=_rounded(psutil.cpu_percent(None) / 100),
            disk=_rounded(used / max(1, used + found.f_bavail)),
            network=_rounded(self._network(now)),
        )

    def _network(self, now: float) -> float:
        """Return the share of the busier direction of the fastest card since the last look."""
        counters = psutil.net_io_counters()
        moved = max(counters.bytes_sent, counters.bytes_recv) if counters else 0
        before, self._before = self._before, (now, moved)
        if before is None or now <= before[0]:
            return 0.0
        mbits = max((card.speed for card in psutil.net_if_stats().values()), default=0)
        capacity = mbits * 125_000.0 if mbits else LINK_BYTES_PER_S
        return (moved - before[1]) / (now - before[0]) / capacity


def _rounded(share: float) -> float:
    return min(1.0, max(0.0, round(round(share / STEP) * STEP, 2)))
