"""Delivery of notifications, and the file that remembers the notified alarms.

Each recipient has its own thread, so a recipient that hangs delays neither the data nor the other recipients. A failed
message is retried at growing intervals, and the failure is itself an alarm until a message arrives. The queue of a
recipient is bounded: the oldest notifications are dropped first, and an alarm says how many.

A restarted broker reads the file, so it does not repeat notifications, and announces when an alarm is over.
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

from venus.alarms.alarm_state import ALARMS_MAX, NOTIFICATIONS_MAX, Alarm, Message, Notification
from venus.alarms.recipients import AlarmRecipient

logger = logging.getLogger(__name__)

ALARMS_FILE = "alarms.json"
FORMAT = 1
FILE_BYTES_MAX = 8 << 20
_TEXTS = {"business", "rule", "subject", "hop", "text"}
#: Fields that have another name in the file.
_NAMES_IN_FILE = {"notified_s": "told_s"}
_OPTIONAL = {"notified_s", "gone_s"}


def load_alarms(path: Path) -> list[Alarm]:
    """Read the remembered alarms. A missing or damaged file yields none, and active alarms are notified again."""
    try:
        return _read_alarms(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s is not used, active alarms are notified again: %s", path, error)
        return []


def save_alarms(path: Path, alarms: Iterable[Alarm]) -> None:
    """Write the notified alarms to the file. A failure is only logged, because a full disk has its own alarm."""
    notified = [_to_document(alarm) for alarm in alarms if alarm.notified_s is not None]
    temporary = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, "alarms": notified}, file, ensure_ascii=False)
        temporary.replace(path)
    except OSError as error:
        logger.warning("%s cannot be written: %s", path, error.strerror)


def _read_alarms(path: Path) -> list[Alarm]:
    """Return the alarms in the file. Raises ValueError or OSError if the file is damaged or missing."""
    if path.stat().st_size > FILE_BYTES_MAX:
        raise ValueError("it is too large")
    document = json.loads(path.read_text("utf-8"))
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("it has another format")
    return [_parse_alarm(found) for found in document["alarms"][:ALARMS_MAX]]


def _to_document(alarm: Alarm) -> dict[str, Any]:
    """Return an alarm as the JSON object that the file holds."""
    return {_NAMES_IN_FILE.get(name, name): value for name, value in asdict(alarm).items()}


def _parse_alarm(found: Any) -> Alarm:
    """Return the alarm that a JSON object of the file holds. Raises ValueError for unexpected fields."""
    names = {_NAMES_IN_FILE.get(field.name, field.name): field.name for field in fields(Alarm)}
    if not isinstance(found, dict) or set(found) != set(names):
        raise ValueError("an alarm in it has other fields")
    found = {names[name]: value for name, value in found.items()}
    for name, value in found.items():
        wanted = isinstance(value, str) if name in _TEXTS else isinstance(value, int | float)
        if not wanted and not (name in _OPTIONAL and value is None):
            raise ValueError(f"an alarm in it has no usable {_NAMES_IN_FILE.get(name, name)}")
    return Alarm(**found)


WAITING_MAX = 200
RETRY_MIN_S, RETRY_MAX_S = 5.0, 300.0
#: Allowance beyond the time limit: the C library waits for a name server that does not answer.
GRACE_S = 5.0
STOP_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryState:
    """Counters and state of the messages to one recipient since the start."""

    name: str
    way: str  # its name in the JSON of the status
    sent: int
    failed: int
    given_up: int
    waiting: int
    problem: str


class RecipientQueue:
    """Queue of notifications for one recipient, and the thread that sends them."""

    def __init__(self, addressee: AlarmRecipient, broker: str) -> None:
        self._addressee, self._broker = addressee, broker
        self._waiting: deque[Notification] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._failure, self._attempt_began = "", 0.0
        self._sent = self._failed = self._given_up = 0
        self._thread = threading.Thread(target=self._run, name=f"venus-alarms-{addressee.name}", daemon=True)

    def start(self) -> None:
        """Start the thread that sends the queued notifications."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Ask the thread to end after the queue is empty or an attempt has failed."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def join(self, seconds: float) -> None:
        """Wait at most this long for the end of the thread."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def put(self, notices: Iterable[Notification]) -> None:
        """Queue the notifications that this recipient wants; return at once."""
        wanted = [notice for notice in notices if self._addressee.should_receive(notice)]
        if not wanted:
            return
        with self._changed:
            self._waiting.extend(wanted)
            while len(self._waiting) > WAITING_MAX:
                self._waiting.popleft()
                self._given_up += 1
            self._changed.notify()

    def state(self) -> DeliveryState:
        """Return the counters of this recipient's messages and its present problem."""
        with self._changed:
            return DeliveryState(
                name=self._addressee.name,
                way=self._addressee.channel.destination,
                sent=self._sent,
                failed=self._failed,
                given_up=self._given_up,
                waiting=len(self._waiting),
                problem=self._describe_problem(),
            )

    def _describe_problem(self) -> str:
        """Return a sentence if messages to the recipient fail or hang; empty if they arrive."""
        began, failure = self._attempt_began, self._failure
        took_s = time.monotonic() - began if began else 0.0
        if took_s > self._addressee.timeout_s + GRACE_S:
            failure = f"{self._addressee.channel.destination}: an attempt has lasted {took_s:.0f} s"
        if not failure:
            return ""
        lost = f", {self._given_up:,} were given up" if self._given_up else ""
        name = self._addressee.name
        return (
            f"alarms cannot be sent to {name}: {failure} ({len(self._waiting)} wait{lost}); "
            f"correct [alarms.to.{name}], then try `venus alarms test --to {name}`"
        )

    def _run(self) -> None:
        """Send queued notifications, with growing pauses after failures, until the thread must end."""
        delay_s = RETRY_MIN_S
        while (batch := self._next_batch()) is not None:
            if self._try_send(batch):
                delay_s = RETRY_MIN_S
            else:
                self._pause(delay_s)
                delay_s = min(delay_s * 2, RETRY_MAX_S)

    def _next_batch(self) -> Sequence[Notification] | None:
        """Wait for notifications, and return them for one message; None = the thread must end."""
        with self._changed:
            while not self._waiting and not self._stopping:
                self._changed.wait()
            if not self._waiting or (self._stopping and self._failure):
                return None
            self._attempt_began = time.monotonic()
            return list(self._waiting)[:NOTIFICATIONS_MAX]

    def _try_send(self, batch: Sequence[Notification]) -> bool:
        """Send one message; return whether that succeeded."""
        failure = ""
        try:
            self._addressee.channel.send(Message(self._broker, batch))
        except OSError as error:
            failure = str(error)
        except Exception as error:
            logger.exception("sending an alarm to %s failed", self._addressee.name)
            failure = f"{self._addressee.channel.destination}: {type(error).__name__}"
        with self._changed:
            self._attempt_began = 0.0
            if failure and failure != self._failure:
                logger.warning("alarms cannot be sent to %s: %s", self._addressee.name, failure)
            self._failure = failure
            self._failed += bool(failure)
            if not failure:
                self._sent += len(batch)
                sent = set(map(id, batch))
                self._waiting = deque(notice for notice in self._waiting if id(notice) not in sent)
        return not failure

    def _pause(self, seconds: float) -> None:
        """Wait for some seconds, or until the thread must end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)


class Notifier:
    """Delivery of notifications to all recipients, with a queue and a thread for each."""

    def __init__(self, recipients: Sequence[AlarmRecipient], broker: str) -> None:
        self._outboxes = [RecipientQueue(addressee, broker) for addressee in recipients]

    def start(self) -> None:
        """Start the threads that send the queued notifications."""
        for outbox in self._outboxes:
            outbox.start()

    def stop(self) -> None:
        """Wait briefly until the threads have sent what is queued; a message that hangs is abandoned."""
        for outbox in self._outboxes:
            outbox.ask_to_stop()
        until = time.monotonic() + STOP_S
        for outbox in self._outboxes:
            outbox.join(max(0.0, until - time.monotonic()))

    def notify(self, notices: Sequence[Notification]) -> None:
        """Queue notifications for all recipients; return at once."""
        for outbox in self._outboxes:
            outbox.put(notices)

    def states(self) -> list[DeliveryState]:
        """Return the state of each recipient."""
        return [outbox.state() for outbox in self._outboxes]

    def problems(self) -> list[str]:
        """Return a sentence for each recipient that cannot be reached."""
        return [state.problem for state in self.states() if state.problem]
