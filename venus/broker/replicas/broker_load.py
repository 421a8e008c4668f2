"""Load and health that a broker publishes with its lease (Minos 3.4.2).

The load is rounded, and published only when it has changed or after half a minute: each publication is a write at etcd
that wakes all brokers. Health breaks ties inside the in-sync set and excludes no broker: an unhealthy one leads only
if no other complete one can (venus/replication/records.py). Health is derived from the present trouble of the disk,
degraded lanes, and the incidents of the last half hour (Tensor IV-C, venus/flow/degradation.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

from venus.broker.store.files import FreeSpace
from venus.broker.store.rocks import Store, SyncTimes
from venus.flow.degradation import Degradation, HealthMonitor
from venus.network.scheduling import Load
from venus.replication.records import LANE, LiveBroker

#: Below this multiple of the free space at which writes are refused, another broker should lead.
NEARLY_FULL = 2
#: A longer fsync is slow; two within the window count as trouble.
SLOW_SYNC_S = 1.0
SLOW_SYNCS = 2
WINDOW_S = 30.0
#: How long a trouble counts after its end, so that leadership does not oscillate.
SUSTAIN_S = 30.0
LOOK_EVERY_S = 1.0
MEASURE_EVERY_S = 10.0
AGAIN_AFTER_S = 30.0
STEP = 0.05
#: Assumed if the network card does not report its speed: 1 Gbit/s.
LINK_BYTES_PER_S = 125_000_000.0


def find_trouble(free_bytes: int, free_bytes_min: int, syncs: SyncTimes, now: float) -> str:
    """Return the present trouble; empty = none."""
    if free_bytes < NEARLY_FULL * free_bytes_min:
        return f"its disk has less than {NEARLY_FULL * free_bytes_min >> 20} MiB free"
    running = syncs.running_s(now)
    slow = syncs.slower_than(SLOW_SYNC_S, now - WINDOW_S)
    if running >= SLOW_SYNC_S:
        return "an fsync does not end"
    return f"{slow} fsyncs took {SLOW_SYNC_S:g} s or more in {WINDOW_S:g} s" if slow >= SLOW_SYNCS else ""


class BrokerHealth:
    """Health of this broker. Checks the disk at most once a second; `trouble` is the present trouble of the disk."""

    def __init__(self, store: Store, space: FreeSpace, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store, self._space, self._monotonic = store, space, monotonic
        self._looked_at = float("-inf")
        self._wrong_until = float("-inf")
        self.trouble = ""
        #: Both are set when the broker serves.
        self.facts: HealthMonitor | None = None
        self.lanes: Degradation | None = None

    def __call__(self) -> str:
        """Return why another broker should lead instead; empty = this broker is healthy.

        The text has no figures, because each change of the text is published.
        """
        self._check_disk()
        lanes = self.lanes.degraded if self.lanes is not None else []
        facts = self.facts.facts if self.facts is not None else []
        recent = f"sub-healthy in the last half hour: {', '.join(found.fact for found in facts)}" if facts else ""
        lane = f"{LANE}{lanes[-1].lane.value} ({lanes[-1].lane.label}) is degraded" if lanes else ""
        return lane or self.trouble or recent

    def _check_disk(self) -> None:
        """Check the disk if a check is due."""
        now = self._monotonic()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            found = find_trouble(self._space.read_free(), self._space.free_bytes_min, self._store.syncs, now)
            if found:
                self.trouble, self._wrong_until = found, now + SUSTAIN_S
            elif now >= self._wrong_until:
                self.trouble = ""


class BrokerLoad:
    """Load of this broker. Called often, measures every ten seconds; never blocks."""

    def __init__(
        self,
        data_dir: Path,
        monotonic: Callable[[], float] = time.monotonic,
        measure: Callable[[Path, float], Load] | None = None,
    ) -> None:
        self._data_dir, self._monotonic = data_dir, monotonic
        self._measure = measure or MachineLoad()
        self._looked_at = self._said_at = float("-inf")

    def __call__(self, me: LiveBroker, businesses: int) -> LiveBroker:
        """Return the description of this broker with its load and the number of its replicas."""
        now = self._monotonic()
        if now - self._looked_at < MEASURE_EVERY_S:
            return me
        found = self._measure(self._data_dir, now)
        self._looked_at = now
        if found == me.load and businesses == me.businesses and now - self._said_at < AGAIN_AFTER_S:
            return me
        self._said_at = now
        return replace(me, load=found, businesses=businesses, report=me.report + 1)


class MachineLoad:
    """Measures the used share of the machine's memory, CPU, disk and network."""

    def __init__(self) -> None:
        self._before: tuple[float, int] | None = None
        psutil.cpu_percent(None)  # the first reading has no meaning

    def __call__(self, data_dir: Path, now: float) -> Load:
        """Return the used share of each resource."""
        found = os.statvfs(data_dir)
        used = found.f_blocks - found.f_bfree
        return Load(
            memory=_round_share(psutil.virtual_memory().percent / 100),
            cpu=_round_share(psutil.cpu_percent(None) / 100),
            disk=_round_share(used / max(1, used + found.f_bavail)),
            network=_round_share(self._network_share(now)),
        )

    def _network_share(self, now: float) -> float:
        """Return the used share of the busier direction of the fastest card since the last call."""
        counters = psutil.net_io_counters()
        moved = max(counters.bytes_sent, counters.bytes_recv) if counters else 0
        before, self._before = self._before, (now, moved)
        if before is None or now <= before[0]:
            return 0.0
        mbits = max((card.speed for card in psutil.net_if_stats().values()), default=0)
        capacity = mbits * 125_000.0 if mbits else LINK_BYTES_PER_S
        return (moved - before[1]) / (now - before[0]) / capacity


def _round_share(share: float) -> float:
    """Round a used share to the published steps."""
    return min(1.0, max(0.0, round(round(share / STEP) * STEP, 2)))
