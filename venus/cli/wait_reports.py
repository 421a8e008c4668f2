"""Messages about what a command of hours waits for, in the words of `venus status`.

A fill waits for room on the broker's disk and for capture; a load waits for the broker's full data. The command itself
learns of neither: it just gets no answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from venus.cli.overview import broker_problems, no_capture_problem
from venus.flow.degradation import Lane
from venus.text.alarm_rules import classify_sentence

if TYPE_CHECKING:
    from venus.cli.overview import BrokerView
    from venus.config import Settings

#: How often the broker is checked, and how often a message is repeated.
LOOK_S = 5.0
REPEAT_S = 300.0
#: Kinds of alarms that hold up all work of the broker for this command.
_HOLDING = ("disk_space", "store_failed", "no_leader", "not_writable", "full_data_behind")


def load_obstacles(broker: BrokerView) -> list[str]:
    """Return the problems that hold up a load."""
    return _obstacles(broker, Lane.FULL_DATA)


def fill_obstacles(broker: BrokerView) -> list[str]:
    """Return the problems that hold up a first fill in this process."""
    return _obstacles(broker, Lane.HALVES)


def watched_fill_obstacles(broker: BrokerView) -> list[str]:
    """Return the problems that hold up a first fill in another process."""
    found = fill_obstacles(broker)
    if not broker.error and not broker.producer:
        found.append(no_capture_problem(broker))
    return found + list(broker.reported.get("", ()))


def _obstacles(broker: BrokerView, lane: Lane) -> list[str]:
    found = []
    for problem in broker_problems(broker):
        rule, subject = classify_sentence(problem.removeprefix("broker: "))
        is_lane = rule.name == "lane_degraded" and subject == str(lane.value)
        if broker.error or is_lane or rule.name in _HOLDING:
            found.append(problem)
    return found


class WaitReporter:
    """Writer of the reasons for waiting: when they change, repeatedly while they last, and when they are over."""

    def __init__(self, say: Callable[[str], None], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._monotonic = monotonic
        self._written: dict[tuple[str, str], float] = {}

    def update(self, sentences: Sequence[str]) -> None:
        """Update the reasons. A sentence is not repeated only because its figures have changed."""
        now, current = self._monotonic(), {_reason_key(text): text for text in sentences}
        for key, text in current.items():
            if now >= self._written.get(key, float("-inf")) + REPEAT_S:
                self._written[key] = now
                self._say(f"waits: {text}")
        if self._written and not current:
            self._say("continues: nothing holds it up any more")
        self._written = {key: at for key, at in self._written.items() if key in current}


def _reason_key(text: str) -> tuple[str, str]:
    rule, subject = classify_sentence(text.removeprefix("broker: "))
    return rule.name, subject


@contextmanager
def report_waits(
    settings: Settings, say: Callable[[str], None], judge: Callable[[BrokerView], list[str]]
) -> Iterator[None]:
    """While the block runs, check the broker and write what holds up the work."""
    from venus.cli.probes import read_broker

    ended, waits = threading.Event(), WaitReporter(say)

    def look() -> None:
        while not ended.wait(LOOK_S):
            found = judge(read_broker(settings))
            if not ended.is_set():
                waits.update(found)

    threading.Thread(target=look, name="venus-waits", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
