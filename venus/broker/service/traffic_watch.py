"""Load monitor: measures loop latency, CPU, memory and disk four times a second; degrades and restores lanes.

A quiet broker measures less often, so that it stays idle. Results are kept in `Traffic` and logged once. Blocking
measurements run in the control lane.
"""

from __future__ import annotations

import asyncio
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import psutil

from venus.broker.core import Core
from venus.broker.replicas.broker_load import MEASURE_EVERY_S, MachineLoad
from venus.broker.service.traffic import Traffic
from venus.errors import VenusError
from venus.flow.admission import DeliveryWindow, Limiter
from venus.flow.degradation import Lane
from venus.network.scheduling import load_rate
from venus.process.system import loops_cpu_s
from venus.rpc.event_loop import LoopBridge

logger = logging.getLogger(__name__)

LOOK_S = 0.25
#: This many samples make a reading; the latency of the loop is their median.
LOOKS = 4
#: While the broker is quiet, one sample makes a reading, after this time.
QUIET_LOOK_S = 2.0
#: The broker is quiet below this CPU use and loop latency, while no consumer owes an acknowledgement.
QUIET_CPU_PERCENT = 10.0
QUIET_LATE_S = 0.05
#: A busy machine counts against the broker's health only if the broker causes this fraction of the load.
OWN_CPU_PART = 0.5
#: Name of a file in data_dir that exists while the broker runs.
RUNNING = "running"


class WatchedConsumer(Protocol):
    """A consumer's stream, as the load monitor sees it."""

    business: str
    group: str
    window: DeliveryWindow

    def unacknowledged_s(self, now: float) -> float:
        """Return for how long the consumer has owed an acknowledgement; 0 means it owes none."""
        ...


class TrafficWatch:
    """The monitoring task and its state between two samples."""

    def __init__(
        self,
        traffic: Traffic,
        core: Core,
        bridge: LoopBridge,
        consumers: Callable[[], Iterable[WatchedConsumer]],
        coordinator_trouble: Callable[[], str] | None = None,
    ) -> None:
        self._traffic, self._core, self._bridge, self._consumers = traffic, core, bridge, consumers
        self._coordinator_trouble = coordinator_trouble
        self._unheard_since: float | None = None
        self._late: list[float] = []
        self._quiet = False
        self._cpu_s, self._looked_at = time.process_time() - loops_cpu_s(), time.monotonic()
        self._own_cpu = 0.0
        self._task: asyncio.Task[None] | None = None
        self._measure_load, self._load_at = MachineLoad(), float("-inf")
        self._running = CrashMarker(core.data_dir / RUNNING)

    def start(self) -> None:
        """Start the task in the running loop."""
        self._running.begin()
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Stop the task because the broker stops."""
        if self._task is not None:
            self._task.cancel()
            self._running.end()

    async def _run(self) -> None:
        """Measure until cancelled: the latency of the loop often, the machine after some of these samples."""
        while True:
            look_s, looks = (QUIET_LOOK_S, 1) if self._quiet else (LOOK_S, LOOKS)
            due = time.monotonic() + look_s
            await asyncio.sleep(look_s)
            self._late.append(max(0.0, time.monotonic() - due))
            if len(self._late) < looks:
                continue
            late_s, self._late = statistics.median(self._late), []
            try:
                machine = await self._bridge.run_blocking(Lane.CONTROL, self._measure_machine)
                self.process_reading(late_s, machine)
            except (OSError, VenusError) as error:
                logger.warning("the state of the machine cannot be read: %s", error)
            except Exception:  # without this task nothing would be degraded any more, nor restored
                logger.exception("the broker could not measure its load")

    def _measure_machine(self) -> dict[str, float]:
        """Measure the machine by system calls. Blocks."""
        now = self._traffic.monotonic()
        if now - self._load_at >= MEASURE_EVERY_S:
            self._load_at = now
            self._traffic.record_load(load_rate(self._measure_load(self._core.data_dir, now).used))
        found = os.statvfs(self._core.data_dir)
        used = found.f_blocks - found.f_bfree
        return {
            "free": float(self._core.space.read_free()),
            "disk": 100.0 * used / max(1, used + found.f_bavail),
            "memory": psutil.virtual_memory().percent,
            "CPU": psutil.cpu_percent(None),
        }

    def process_reading(self, late_s: float, machine: dict[str, float]) -> None:
        """Degrade or restore lanes and evaluate the health rules, from one reading."""
        now = self._traffic.monotonic()
        readings = self._lane_readings(late_s, machine, self._traffic.record_pauses())
        degradation = self._traffic.admission.degradation
        for text in degradation.step(readings, now):
            logger.warning("%s", text)
        consumers = list(self._consumers())
        self._quiet = (
            readings["CPU"] < QUIET_CPU_PERCENT
            and readings["lag"] < 1000 * QUIET_LATE_S
            and not degradation.degraded
            and not any(consumer.unacknowledged_s(now) for consumer in consumers)
        )
        for text in self._traffic.health.evaluate(self._health_facts(machine, consumers, now), now):
            logger.warning("this broker is sub-healthy: %s", text)
        for consumer in consumers:
            if consumer.window.halve_if_slow(now):
                self._traffic.record_wait(Limiter.CONSUMER, consumer.business, consumer.group, consumer.window.slow_s)
        self._core.scrub.is_degraded = self._traffic.has_degraded(Lane.DETAILS)

    def _lane_readings(self, late_s: float, machine: dict[str, float], rested_s: float) -> dict[str, float]:
        """Return the readings that may degrade lanes, by resource."""
        commits, space = self._core.commits, self._core.space
        stuck_s = max(0.0, commits.silent_s(time.monotonic()) - LOOK_S)
        return {
            "CPU": self._own_cpu_percent(rested_s),
            "memory": machine["memory"],
            "disk": 100.0 * space.free_bytes_min / max(1.0, machine["free"]),
            "lag": 1000 * max(late_s, commits.waited_s, stuck_s),
        }

    def _own_cpu_percent(self, rested_s: float) -> float:
        """Return the CPU use of the broker in percent of a core, pauses of large work included.

        Capture and apply may run in the same process (`venus run`); their loops do not count.
        """
        cpu_s, now = time.process_time() - loops_cpu_s(), time.monotonic()
        percent = 100.0 * (cpu_s + rested_s - self._cpu_s) / max(0.001, now - self._looked_at)
        self._cpu_s, self._looked_at = cpu_s, now
        self._own_cpu = percent
        return percent

    def _health_cpu_percent(self, machine_percent: float) -> float:
        """Return the CPU use of the machine if this broker causes it, else 0."""
        own_percent = self._own_cpu / (psutil.cpu_count() or 1)
        return machine_percent if own_percent >= OWN_CPU_PART * machine_percent else 0.0

    def _health_facts(
        self, machine: dict[str, float], consumers: list[WatchedConsumer], now: float
    ) -> dict[str, float]:
        """Return the readings for the health rules."""
        found = {
            "crash": float(self._running.crashed.pop() if self._running.crashed else 0),
            "silence": self._core.commits.silent_s(time.monotonic()),
            "latency": max((consumer.unacknowledged_s(now) for consumer in consumers), default=0.0),
            "memory": machine["memory"],
            "CPU": self._health_cpu_percent(machine["CPU"]),
            "disk": machine["disk"],
            "clients": float(self._traffic.admission.streams.used),
        }
        if self._coordinator_trouble is not None:
            if not self._coordinator_trouble():
                self._unheard_since = None
            elif self._unheard_since is None:
                self._unheard_since = now
            found["heartbeat"] = now - (self._unheard_since or now)
        return found


class CrashMarker:
    """A file that exists while the broker runs. If a starting broker finds it, the previous process crashed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.crashed: list[bool] = []  # reported once

    def begin(self) -> None:
        """Check for a crash, then create the file."""
        if self._file.exists():
            self.crashed.append(True)
        self._file.touch(mode=0o600)

    def end(self) -> None:
        """Remove the file."""
        self._file.unlink(missing_ok=True)
