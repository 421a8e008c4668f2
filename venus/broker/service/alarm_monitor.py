"""Alarm monitor: checks the status every few seconds, keeps alarms, notifies recipients, and records the history.

Checks run in the control lane and notifications in their own threads, so neither delays the data.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from venus.alarms.alarm_state import AlarmState, Key
from venus.alarms.notifier import DeliveryState, Notifier, load_alarms, save_alarms
from venus.broker.status.history import (
    ChartData,
    ClockReading,
    FigureHistory,
    LateLimits,
    derive_alarms,
    is_led_elsewhere,
)
from venus.config import AlarmsSettings
from venus.errors import VenusError
from venus.flow.degradation import Lane
from venus.process.system import steady_clock_s
from venus.rpc.conditions import HEARTBEATS_LATE
from venus.rpc.event_loop import LoopBridge
from venus.text.alarm_rules import classify_sentence, find_commands, hop_of, min_duration_s
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

#: A smaller jump of the clock between two checks is an adjustment; a larger one means that the clock was set.
SET_S = 1.0


class AlarmMonitor:
    """Alarms and history of one broker. Thread-safe."""

    def __init__(
        self,
        settings: AlarmsSettings,
        notifier: Notifier,
        path: Path,
        *,
        heartbeat_s: float,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = steady_clock_s,
    ) -> None:
        self._notifier, self._path, self._clock = notifier, path, clock
        self._steady = steady
        self._ahead_s = clock() - steady()
        self._set_back_s = 0.0
        self._late = LateLimits(capture_s=max(settings.late_s, HEARTBEATS_LATE * heartbeat_s), target_s=settings.late_s)
        self._book = AlarmState(settings, clock(), load_alarms(path))
        self._history = FigureHistory()
        self._lock = threading.Lock()
        self._last: list[tuple[str, str]] = []

    def add_to_status(self, status: broker_pb2.BrokerStatus) -> None:
        """Add alarms that the broker derives, and those of unreachable recipients, to a status."""
        with self._lock:
            since = self._alarm_starts()
            now_s = self._clock()
            by_name = {entry.business: entry for entry in status.businesses}
            for business, text in derive_alarms(status, self._now(now_s), self._late):
                rule, subject = classify_sentence(text)
                first_s = since.get((business, rule.name, subject), now_s)
                if now_s - first_s >= min_duration_s(rule.name):
                    by_name[business].alarms.append(text)
                    by_name[business].reported_alarms += 1
            if self._book.left_out:
                more = f"{self._book.left_out:,}"
                status.alarms.append(f"{more} more alarms are active than are kept: only status shows them")
        status.alarms.extend(self._notifier.problems())

    def check(self, status_of: Callable[[], broker_pb2.BrokerStatus]) -> None:
        """Check once: update alarms, notify recipients, add to the history."""
        self._follow_clock()
        now_s = self._clock()
        try:
            status = status_of()
        except VenusError as error:
            found = [*self._last, ("", f"the broker cannot report its status: {error}")]
            elsewhere: set[str] = set()
        else:
            found = [*all_alarms(status), *derive_alarms(status, self._now(now_s), self._late)]
            elsewhere = {entry.business for entry in status.businesses if is_led_elsewhere(entry)}
            self._last = found
            with self._lock:
                self._history.add_point(status, psutil.Process().memory_info().rss, now_s)
        with self._lock:
            # a follower reports only its own replica
            notices = self._book.update(found, now_s, elsewhere - {business for business, _ in found})
        if notices:
            self._notifier.notify(notices)
            for notice in notices:
                logger.warning("alarm %s: %s", notice.event.value, notice.alarm.sentence)
            save_alarms(self._path, self._book.all_alarms())

    def _follow_clock(self) -> None:
        """Shift the times of alarms and history if the clock was set since the last check."""
        ahead_s = self._clock() - self._steady()
        by_s, self._ahead_s = ahead_s - self._ahead_s, ahead_s
        if abs(by_s) < SET_S:
            return
        logger.warning("the clock of this machine was set %s by %.0f s", "forward" if by_s > 0 else "back", abs(by_s))
        with self._lock:
            self._set_back_s = max(0.0, self._set_back_s - by_s)
            self._book.shift_times(by_s)
            self._history.shift_times(by_s)

    def _now(self, now_s: float) -> ClockReading:
        """Return the time `now_s` as a reading of this broker's clock, for the alarms."""
        return ClockReading(us=int(now_s * 1e6), set_back_us=int(self._set_back_s * 1e6))

    def describe_alarms(self, status: broker_pb2.BrokerStatus) -> list[dict[str, Any]]:
        """Return the alarms of a status as JSON: rule, start, hop, text and suggested commands."""
        with self._lock:
            since = self._alarm_starts()
        now_s = self._clock()
        shown = []
        for business, text in all_alarms(status):
            rule, subject = classify_sentence(text)
            first_s = since.get((business, rule.name, subject), now_s)
            shown.append(
                {
                    "business": business,
                    "rule": rule.name,
                    "hop": hop_of(rule, text),
                    "text": text,
                    "since_us": str(int(first_s * 1e6)),
                    "commands": find_commands(text),
                }
            )
        return sorted(shown, key=lambda found: int(str(found["since_us"])))

    def history(self) -> ChartData:
        """Return the history."""
        with self._lock:
            return self._history.chart_data()

    def recipients(self) -> list[DeliveryState]:
        """Return the results of the notifications to each recipient."""
        return self._notifier.states()

    def _alarm_starts(self) -> dict[Key, float]:
        """Return since when each active alarm has been active."""
        return {alarm.key: alarm.since_s for alarm in self._book.active_alarms()}


def all_alarms(status: broker_pb2.BrokerStatus) -> list[tuple[str, str]]:
    """Return every alarm of a status with its business, "" for the broker's own."""
    own = [("", text) for text in status.alarms]
    return own + [(entry.business, text) for entry in status.businesses for text in entry.alarms]


async def run_checks(
    watch: AlarmMonitor, bridge: LoopBridge, status_of: Callable[[], broker_pb2.BrokerStatus], every_s: float
) -> None:
    """Check the status every `every_s` seconds until cancelled. Errors are logged and do not end the task."""
    while True:
        try:
            await bridge.run_blocking(Lane.CONTROL, watch.check, status_of)
        except Exception:
            logger.exception("the broker could not check its status")
        await asyncio.sleep(every_s)
