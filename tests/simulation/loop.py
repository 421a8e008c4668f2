"""Virtual time with a queue of callbacks. The same seed gives the same history, byte for byte."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any


class Loop:
    """Event loop in virtual time. A callback takes no time, and every callback is scheduled by `at`."""

    def __init__(self, seed: int, say: Callable[[str], None] | None = None) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.counts: Counter[str] = Counter()  # counts of rare states, by name
        self.steps = 0
        self._say = say
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    @property
    def traces(self) -> bool:
        """Return whether the history is printed."""
        return self._say is not None

    def say(self, text: str) -> None:
        """Add a line to the printed history."""
        if self._say is not None:
            self._say(f"{self.now:9.4f} {text}")

    def at(self, time: float, what: Callable[..., None], *arguments: Any) -> None:
        """Schedule a callback at a time; callbacks for the same time run in the order in which they were scheduled."""
        self._number += 1
        heapq.heappush(self._due, (time, self._number, what, arguments))

    def after(self, delay: float, what: Callable[..., None], *arguments: Any) -> None:
        """Schedule a callback after a number of seconds."""
        self.at(self.now + delay, what, *arguments)

    def run_until(self, time: float, done: Callable[[], bool] | None = None) -> bool:
        """Run callbacks until `time`, or until `done`; return whether it is done."""
        due = self._due
        while due and due[0][0] <= time:
            self.now, _, what, arguments = heapq.heappop(due)
            self.steps += 1
            what(*arguments)
            if done is not None and done():
                return True
        self.now = max(self.now, time)
        return False
