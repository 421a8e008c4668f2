"""What is told, as JSON for programs and as text for people. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from venus.alarm_rules import commands
from venus.alarms.book import Event, Notice

FORMAT = 1
#: Of one message; more are the next message.
NOTICES_MAX = 50
#: How a line begins.
_WORDS = {Event.RAISED: "ALARM", Event.STANDS: "STILL", Event.RECOVERED: "OVER"}


@dataclass(frozen=True, slots=True)
class Message:
    """One message to one recipient."""

    broker: str
    notices: Sequence[Notice]

    @property
    def subject(self) -> str:
        """One line: how it stands, and the first sentence."""
        first, more = self.notices[0], len(self.notices) - 1
        rest = f" (and {more} more)" if more else ""
        return f"VENUS {self.broker}: {_WORDS[first.event]} {_shortened(first.alarm.sentence, 150)}{rest}"

    @property
    def text(self) -> str:
        """A paragraph for each alarm."""
        return "\n".join(_paragraph(notice) for notice in self.notices)

    def json(self) -> bytes:
        """Return what webhooks and commands get; `text` is the field that chat servers show."""
        alarms = [
            {
                "event": notice.event.value,
                "rule": notice.alarm.rule,
                "business": notice.alarm.business,
                "hop": notice.alarm.hop,
                "text": notice.alarm.text,
                "since": _iso(notice.alarm.since_s),
                "until": _iso(notice.at_s) if notice.event is Event.RECOVERED else None,
                "commands": commands(notice.alarm.text),
            }
            for notice in self.notices
        ]
        document = {"format": FORMAT, "broker": self.broker, "text": f"{self.subject}\n{self.text}", "alarms": alarms}
        return json.dumps(document, ensure_ascii=False).encode()


def _paragraph(notice: Notice) -> str:
    alarm, until = notice.alarm, f", until {_iso(notice.at_s)}" if notice.event is Event.RECOVERED else ""
    typed = "" if notice.event is Event.RECOVERED else "".join(f"\n  $ {line}" for line in commands(alarm.text))
    return f"{_WORDS[notice.event]} {alarm.sentence}\n  {alarm.rule}, since {_iso(alarm.since_s)}{until}{typed}"


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _shortened(text: str, characters_max: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= characters_max else line[: characters_max - 3] + "..."
