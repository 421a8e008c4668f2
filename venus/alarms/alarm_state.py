"""State of all alarms of a broker, the notifications they cause, and the text of messages. Pure: time is an argument.

The business, the rule and the subject identify an alarm, so an alarm whose figures change remains the same one. A
notification is sent once the alarm has lasted as long as its rule requires, again every `repeat_s`, and once more when
the alarm has been gone for `clear_s`. The restart of an adapter therefore causes no extra messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum

from venus.config import AlarmsSettings
from venus.text.alarm_rules import classify_sentence, find_commands, hop_of, min_duration_s, prefix_business

#: Maximum number of alarms; the others are only counted.
ALARMS_MAX = 1000
#: How long a started broker waits for its adapters before it considers an alarm as over.
SETTLING_S = 60.0
TEXT_CHARS_MAX = 1000
FORMAT = 1
#: Maximum number in one message; the rest follow in the next one.
NOTIFICATIONS_MAX = 50
Key = tuple[str, str, str]


class AlarmEvent(Enum):
    """What a notification reports: an alarm was raised, still stands, or has recovered."""

    RAISED = "raised"
    STANDS = "stands"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A condition that needs attention. `business` is empty for the broker itself; times are Unix seconds."""

    business: str
    rule: str
    subject: str
    hop: str
    text: str
    since_s: float
    #: When its last notification was made, None = none yet.
    notified_s: float | None = None
    #: Since when it has been gone, None = it is active.
    gone_s: float | None = None

    @property
    def key(self) -> Key:
        """The identity of the alarm."""
        return self.business, self.rule, self.subject

    @property
    def sentence(self) -> str:
        """The sentence that describes the alarm, with its business in front."""
        return prefix_business(self.business, self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """A notification that is due: an event of one alarm, and the time."""

    event: AlarmEvent
    alarm: Alarm
    at_s: float


class AlarmState:
    """State machine of all alarms of a broker."""

    def __init__(self, settings: AlarmsSettings, started_s: float, remembered: Iterable[Alarm] = ()) -> None:
        self._settings, self._started_s = settings, started_s
        self._alarms = {alarm.key: _clamp_times(alarm, started_s) for alarm in remembered}
        #: Number of alarms beyond the maximum at the last step.
        self.left_out = 0

    def shift_times(self, by_s: float) -> None:
        """Shift all times after the clock was set forward by `by_s` seconds, so that durations stay the same.

        Without the shift, a clock set back would delay every alarm, repetition and recovery until it catches up.
        """
        self._started_s += by_s
        self._alarms = {key: _shift_alarm(alarm, by_s) for key, alarm in self._alarms.items()}

    def update(
        self, found: Iterable[tuple[str, str]], now_s: float, elsewhere: Set[str] = frozenset()
    ) -> list[Notification]:
        """Update all alarms from the present problems, (business, sentence) each; return the due notifications.

        `elsewhere`: businesses that another broker reports now; their alarms are dropped silently.
        """
        self._alarms = {key: alarm for key, alarm in self._alarms.items() if key[0] not in elsewhere}
        seen: set[Key] = set()
        self.left_out = 0
        for business, text in found:
            if (key := self._record(business, text, now_s)) is not None:
                seen.add(key)
        notices = [self._due_notification(self._alarms[key], now_s) for key in seen]
        notices += [self._recover(self._alarms[key], now_s) for key in [*self._alarms] if key not in seen]
        return sorted((n for n in notices if n is not None), key=lambda n: (n.alarm.since_s, n.alarm.key))

    def all_alarms(self) -> list[Alarm]:
        """Return every alarm, including those that have just ended."""
        return list(self._alarms.values())

    def active_alarms(self) -> list[Alarm]:
        """Return the active alarms, the oldest first."""
        found = [alarm for alarm in self._alarms.values() if alarm.gone_s is None]
        return sorted(found, key=lambda alarm: (alarm.since_s, alarm.key))

    def _record(self, business: str, text: str, now_s: float) -> Key | None:
        """Record a present problem as an alarm, and return its key; None = there are too many alarms."""
        rule, subject = classify_sentence(text)
        known = self._alarms.get((business, rule.name, subject))
        if known is not None:
            self._alarms[known.key] = replace(known, text=text[:TEXT_CHARS_MAX], gone_s=None)
            return known.key
        if len(self._alarms) >= ALARMS_MAX:
            self.left_out += 1
            return None
        alarm = Alarm(
            business=business,
            rule=rule.name,
            subject=subject,
            hop=hop_of(rule, text),
            text=text[:TEXT_CHARS_MAX],
            since_s=now_s,
        )
        self._alarms[alarm.key] = alarm
        return alarm.key

    def _due_notification(self, alarm: Alarm, now_s: float) -> Notification | None:
        """Return the first or repeated notification of an active alarm if it is due."""
        rule = self._settings.rule_settings(alarm.rule)
        if alarm.notified_s is None:
            wait_s = rule.after_s or min_duration_s(alarm.rule)
            return self._notify(AlarmEvent.RAISED, alarm, now_s) if now_s - alarm.since_s >= wait_s else None
        again = now_s - alarm.notified_s >= (rule.repeat_s or self._settings.repeat_s)
        return self._notify(AlarmEvent.STANDS, alarm, now_s) if again else None

    def _notify(self, event: AlarmEvent, alarm: Alarm, now_s: float) -> Notification:
        """Record that an alarm is notified now; return the notification."""
        notified = self._alarms[alarm.key] = replace(alarm, notified_s=now_s)
        return Notification(event=event, alarm=notified, at_s=now_s)

    def _recover(self, alarm: Alarm, now_s: float) -> Notification | None:
        """End an alarm that has been gone for long enough; return the notification of its end, if any."""
        if alarm.gone_s is None:
            alarm = self._alarms[alarm.key] = replace(alarm, gone_s=now_s)
        assert alarm.gone_s is not None
        over = now_s - alarm.gone_s >= self._settings.clear_s and now_s - self._started_s >= SETTLING_S
        if alarm.notified_s is None and now_s - self._started_s >= SETTLING_S:
            del self._alarms[alarm.key]  # without a notification there is no recovery to announce
            return None
        if not over:
            return None
        del self._alarms[alarm.key]
        return Notification(event=AlarmEvent.RECOVERED, alarm=alarm, at_s=alarm.gone_s)


def _shift_alarm(alarm: Alarm, by_s: float) -> Alarm:
    """Return an alarm with all of its times shifted."""

    def shift_time(at_s: float | None) -> float | None:
        return None if at_s is None else at_s + by_s

    return replace(
        alarm, since_s=alarm.since_s + by_s, notified_s=shift_time(alarm.notified_s), gone_s=shift_time(alarm.gone_s)
    )


def _clamp_times(alarm: Alarm, now_s: float) -> Alarm:
    """Return a remembered alarm without times in the future, which come from a clock that was ahead."""

    def clamp_time(at_s: float | None) -> float | None:
        return None if at_s is None else min(at_s, now_s)

    return replace(
        alarm,
        since_s=min(alarm.since_s, now_s),
        notified_s=clamp_time(alarm.notified_s),
        gone_s=clamp_time(alarm.gone_s),
    )


#: The first word of a line.
_WORDS = {AlarmEvent.RAISED: "ALARM", AlarmEvent.STANDS: "STILL", AlarmEvent.RECOVERED: "OVER"}


@dataclass(frozen=True, slots=True)
class Message:
    """One message to one recipient, which reports one or more notifications."""

    broker: str
    notifications: Sequence[Notification]

    @property
    def subject(self) -> str:
        """The subject line: event and sentence of the first notification."""
        first, more = self.notifications[0], len(self.notifications) - 1
        rest = f" (and {more} more)" if more else ""
        return f"VENUS {self.broker}: {_WORDS[first.event]} {_shorten(first.alarm.sentence, 150)}{rest}"

    @property
    def text(self) -> str:
        """The body of the message: a paragraph for each notification."""
        return "\n".join(_format_paragraph(notice) for notice in self.notifications)

    def to_json(self) -> bytes:
        """Return the document for webhooks and commands; `text` is the field that chat servers show."""
        alarms = [
            {
                "event": notice.event.value,
                "rule": notice.alarm.rule,
                "business": notice.alarm.business,
                "hop": notice.alarm.hop,
                "text": notice.alarm.text,
                "since": _format_time(notice.alarm.since_s),
                "until": _format_time(notice.at_s) if notice.event is AlarmEvent.RECOVERED else None,
                "commands": find_commands(notice.alarm.text),
            }
            for notice in self.notifications
        ]
        document = {"format": FORMAT, "broker": self.broker, "text": f"{self.subject}\n{self.text}", "alarms": alarms}
        return json.dumps(document, ensure_ascii=False).encode()


def _format_paragraph(notice: Notification) -> str:
    alarm, until = notice.alarm, f", until {_format_time(notice.at_s)}" if notice.event is AlarmEvent.RECOVERED else ""
    typed = (
        "" if notice.event is AlarmEvent.RECOVERED else "".join(f"\n  $ {line}" for line in find_commands(alarm.text))
    )
    return f"{_WORDS[notice.event]} {alarm.sentence}\n  {alarm.rule}, since {_format_time(alarm.since_s)}{until}{typed}"


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _shorten(text: str, characters_max: int) -> str:
    """Return a text as one line of limited length."""
    line = " ".join(text.split())
    return line if len(line) <= characters_max else line[: characters_max - 3] + "..."
