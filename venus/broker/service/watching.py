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

from venus.alarm_rules import commands, hop_of, lasts_s, recognised
from venus.alarms import notifier as remembered
from venus.alarms.book import Book, Key
from venus.alarms.notifier import Notifier, Sent
from venus.broker.service.loop_bridge import Lane, LoopBridge
from venus.broker.status.history import History, Shown
from venus.broker.status.judging import Late, Now, judged, led_elsewhere
from venus.conditions import HEARTBEATS_LATE
from venus.config import Alarms
from venus.errors import VenusError
from venus.user_folders import steady
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

#: A smaller jump between two checks is an adjustment of the clock, not a new setting.
SET_S = 1.0


class Watch:
    """Alarms and history of one broker. Thread-safe."""

    def __init__(
        self,
        settings: Alarms,
        notifier: Notifier,
        path: Path,
        *,
        heartbeat_s: float,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = steady,
    ) -> None:
        self._notifier, self._path, self._clock = notifier, path, clock
        self._steady = steady
        self._ahead_s = clock() - steady()
        self._set_back_s = 0.0
        self._late = Late(capture_s=max(settings.late_s, HEARTBEATS_LATE * heartbeat_s), target_s=settings.late_s)
        self._book = Book(settings, clock(), remembered.load(path))
        self._history = History()
        self._lock = threading.Lock()
        self._last: list[tuple[str, str]] = []

    def lay_over(self, status: broker_pb2.BrokerStatus) -> None:
        """Add the broker's own conclusions and unreachable recipients to the alarms of a status."""
        with self._lock:
            since = self._since()
            now_s = self._clock()
            by_name = {entry.business: entry for entry in status.businesses}
            for business, text in judged(status, self._now(now_s), self._late):
                rule, subject = recognised(text)
                first_s = since.get((business, rule.name, subject), now_s)
                if now_s - first_s >= lasts_s(rule.name):
                    by_name[business].alarms.append(text)
                    by_name[business].reported_alarms += 1
            if self._book.left_out:
                status.alarms.append(f"{self._book.left_out:,} more alarms stand than are kept: only status shows them")
        status.alarms.extend(self._notifier.problems())

    def look(self, status_of: Callable[[], broker_pb2.BrokerStatus]) -> None:
        """Check once: update alarms, notify recipients, add to the history."""
        self._follow_clock()
        now_s = self._clock()
        try:
            status = status_of()
        except VenusError as error:
            found = [*self._last, ("", f"the broker cannot report its status: {error}")]
            elsewhere: set[str] = set()
        else:
            found = [*sentences(status), *judged(status, self._now(now_s), self._late)]
            elsewhere = {entry.business for entry in status.businesses if led_elsewhere(entry)}
            self._last = found
            with self._lock:
                self._history.take(status, psutil.Process().memory_info().rss, now_s)
        with self._lock:
            # a follower reports only its own replica
            notices = self._book.step(found, now_s, elsewhere - {business for business, _ in found})
        if notices:
            self._notifier.tell(notices)
            for notice in notices:
                logger.warning("alarm %s: %s", notice.event.value, notice.alarm.sentence)
            remembered.save(self._path, self._book.all())

    def _follow_clock(self) -> None:
        """Shift the times of alarms and history if the clock was set since the last check."""
        ahead_s = self._clock() - self._steady()
        by_s, self._ahead_s = ahead_s - self._ahead_s, ahead_s
        if abs(by_s) < SET_S:
            return
        logger.warning("the clock of this machine was set %s by %.0f s", "forward" if by_s > 0 else "back", abs(by_s))
        with self._lock:
            self._set_back_s = max(0.0, self._set_back_s - by_s)
            self._book.moved(by_s)
            self._history.moved(by_s)

    def _now(self, now_s: float) -> Now:
        return Now(us=int(now_s * 1e6), set_back_us=int(self._set_back_s * 1e6))

    def described(self, status: broker_pb2.BrokerStatus) -> list[dict[str, Any]]:
        """Return the alarms of a status as JSON: rule, start, hop, text and suggested commands."""
        with self._lock:
            since = self._since()
        now_s = self._clock()
        shown = []
        for business, text in sentences(status):
            rule, subject = recognised(text)
            first_s = since.get((business, rule.name, subject), now_s)
            shown.append(
                {
                    "business": business, "rule": rule.name, "hop": hop_of(rule, text), "text": text,
                    "since_us": str(int(first_s * 1e6)), "commands": commands(text),
                }
            )  # fmt: skip
        return sorted(shown, key=lambda found: int(str(found["since_us"])))

    def history(self) -> Shown:
        """Return the history."""
        with self._lock:
            return self._history.shown()

    def recipients(self) -> list[Sent]:
        """Return the results of the notifications to each recipient."""
        return self._notifier.states()

    def _since(self) -> dict[Key, float]:
        return {alarm.key: alarm.since_s for alarm in self._book.standing()}


def sentences(status: broker_pb2.BrokerStatus) -> list[tuple[str, str]]:
    """Return every alarm of a status with its business, "" for the broker's own."""
    own = [("", text) for text in status.alarms]
    return own + [(entry.business, text) for entry in status.businesses for text in entry.alarms]


async def keep_watch(
    watch: Watch, bridge: LoopBridge, status_of: Callable[[], broker_pb2.BrokerStatus], every_s: float
) -> None:
    """Check until cancelled. Errors are logged and do not end the task."""
    while True:
        try:
            await bridge.blocking(Lane.CONTROL, watch.look, status_of)
        except Exception:
            logger.exception("the broker could not check its status")
        await asyncio.sleep(every_s)
