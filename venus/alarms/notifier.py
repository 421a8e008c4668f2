"""Sends notices, each recipient in a thread of its own: one that hangs delays neither the data nor the others.

What cannot be sent is tried again at growing intervals, and is itself an alarm until something arrives. What waits is
bounded: the oldest goes first, and the alarm says so.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from venus.alarms.book import ALARMS_MAX, NOTICES_MAX, Alarm, Message, Notice
from venus.alarms.recipients import Addressee

NAME = "alarms.json"
FORMAT = 1
FILE_BYTES_MAX = 8 << 20
_TEXTS = {"business", "rule", "subject", "hop", "text"}
_OPTIONAL = {"told_s", "gone_s"}


def load(path: Path) -> list[Alarm]:
    """Return what the file says; a file that is missing or damaged says nothing, and they are told again."""
    try:
        return _read(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s is not used, alarms that stand are told again: %s", path, error)
        return []


def save(path: Path, alarms: Iterable[Alarm]) -> None:
    """Replace the file. What cannot be written is logged: the data directory being full is an alarm of its own."""
    told = [asdict(alarm) for alarm in alarms if alarm.told_s is not None]
    temporary = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, "alarms": told}, file, ensure_ascii=False)
        temporary.replace(path)
    except OSError as error:
        logger.warning("%s cannot be written: %s", path, error.strerror)


def _read(path: Path) -> list[Alarm]:
    if path.stat().st_size > FILE_BYTES_MAX:
        raise ValueError("it is too large")
    document = json.loads(path.read_text("utf-8"))
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("it has another format")
    return [_alarm(found) for found in document["alarms"][:ALARMS_MAX]]


def _alarm(found: Any) -> Alarm:
    names = {field.name for field in fields(Alarm)}
    if not isinstance(found, dict) or set(found) != names:
        raise ValueError("an alarm in it has other fields")
    for name, value in found.items():
        wanted = isinstance(value, str) if name in _TEXTS else isinstance(value, int | float)
        if not wanted and not (name in _OPTIONAL and value is None):
            raise ValueError(f"an alarm in it has no usable {name}")
    return Alarm(**found)


logger = logging.getLogger(__name__)

WAITING_MAX = 200
RETRY_MIN_S, RETRY_MAX_S = 5.0, 300.0
#: Beyond its time limit: a name server that does not answer is waited for inside the C library.
GRACE_S = 5.0
STOP_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """How the messages to one recipient have fared since the start."""

    name: str
    way: str
    sent: int
    failed: int
    given_up: int
    waiting: int
    problem: str


class Outbox:
    """One recipient's notices and the thread that sends them."""

    def __init__(self, addressee: Addressee, broker: str) -> None:
        self._addressee, self._broker = addressee, broker
        self._waiting: deque[Notice] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._failure, self._attempt_began = "", 0.0
        self._sent = self._failed = self._given_up = 0
        self._thread = threading.Thread(target=self._run, name=f"venus-alarms-{addressee.name}", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Let it end after what waits, or after an attempt that fails."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def join(self, seconds: float) -> None:
        """Wait for its end, not longer than this."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def put(self, notices: Iterable[Notice]) -> None:
        """Take what this recipient wants; returns at once."""
        wanted = [notice for notice in notices if self._addressee.wants(notice)]
        if not wanted:
            return
        with self._changed:
            self._waiting.extend(wanted)
            while len(self._waiting) > WAITING_MAX:
                self._waiting.popleft()
                self._given_up += 1
            self._changed.notify()

    def state(self) -> Sent:
        """Return how it stands."""
        with self._changed:
            return Sent(
                name=self._addressee.name,
                way=self._addressee.way.where,
                sent=self._sent,
                failed=self._failed,
                given_up=self._given_up,
                waiting=len(self._waiting),
                problem=self._problem(),
            )

    def _problem(self) -> str:
        began, failure = self._attempt_began, self._failure
        took_s = time.monotonic() - began if began else 0.0
        if took_s > self._addressee.timeout_s + GRACE_S:
            failure = f"{self._addressee.way.where}: an attempt has lasted {took_s:.0f} s"
        if not failure:
            return ""
        lost = f", {self._given_up:,} were given up" if self._given_up else ""
        name = self._addressee.name
        return (
            f"alarms cannot be sent to {name}: {failure} ({len(self._waiting)} wait{lost}); "
            f"correct [alarms.to.{name}], then try `venus alarms test --to {name}`"
        )

    def _run(self) -> None:
        delay_s = RETRY_MIN_S
        while (batch := self._next()) is not None:
            if self._try(batch):
                delay_s = RETRY_MIN_S
            else:
                self._pause(delay_s)
                delay_s = min(delay_s * 2, RETRY_MAX_S)

    def _next(self) -> Sequence[Notice] | None:
        with self._changed:
            while not self._waiting and not self._stopping:
                self._changed.wait()
            if not self._waiting or (self._stopping and self._failure):
                return None
            self._attempt_began = time.monotonic()
            return list(self._waiting)[:NOTICES_MAX]

    def _try(self, batch: Sequence[Notice]) -> bool:
        failure = ""
        try:
            self._addressee.way.send(Message(self._broker, batch))
        except OSError as error:
            failure = str(error)
        except Exception as error:
            logger.exception("sending an alarm to %s failed", self._addressee.name)
            failure = f"{self._addressee.way.where}: {type(error).__name__}"
        with self._changed:
            self._attempt_began = 0.0
            if failure and failure != self._failure:
                logger.warning("alarms cannot be sent to %s: %s", self._addressee.name, failure)
            self._failure = failure
            self._failed += bool(failure)
            if not failure:
                self._sent += len(batch)
                told = set(map(id, batch))
                self._waiting = deque(notice for notice in self._waiting if id(notice) not in told)
        return not failure

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)


class Notifier:
    """All recipients."""

    def __init__(self, everybody: Sequence[Addressee], broker: str) -> None:
        self._outboxes = [Outbox(addressee, broker) for addressee in everybody]

    def start(self) -> None:
        """Begin to send."""
        for outbox in self._outboxes:
            outbox.start()

    def stop(self) -> None:
        """Let what waits be sent if that takes no time; a message that hangs is left behind."""
        for outbox in self._outboxes:
            outbox.ask_to_stop()
        until = time.monotonic() + STOP_S
        for outbox in self._outboxes:
            outbox.join(max(0.0, until - time.monotonic()))

    def tell(self, notices: Sequence[Notice]) -> None:
        """Hand notices over; returns at once."""
        for outbox in self._outboxes:
            outbox.put(notices)

    def states(self) -> list[Sent]:
        """Return how it stands with each recipient."""
        return [outbox.state() for outbox in self._outboxes]

    def problems(self) -> list[str]:
        """Return a sentence for each recipient that cannot be reached."""
        return [state.problem for state in self.states() if state.problem]
