"""Writers that race with capture: how long they run, and a naive reader that shows whether the race is hard enough."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

#: The test fails if too few events have occurred by then.
RACE_S_MAX = 150.0


@dataclass(slots=True)
class Race:
    """A race of some seconds, which on a slow machine lasts until every kind of event has occurred often enough."""

    seconds: float
    ended: Counter[str]  # transactions, by outcome
    cuts_min: int
    began: float = field(default_factory=time.monotonic)

    def has_enough(self, cuts: int) -> bool:
        """Return whether every kind of event has occurred often enough."""
        return cuts > self.cuts_min and self.ended["commit"] > 100 and self.ended["rollback"] > 5

    def is_over(self, cuts: int, *, is_hard: bool = True) -> bool:
        """Return whether the race may end; `is_hard` = a naive reader would have missed some of its changes."""
        took = time.monotonic() - self.began
        return took > RACE_S_MAX or (took > self.seconds and is_hard and self.has_enough(cuts))


@dataclass(slots=True)
class NaiveReader:
    """Reads log rows with numbers above the last one read, which loses rows; the log is never purged.

    `cursor` needs a connection with autocommit. The log's number is its column `seq`.
    """

    cursor: Any
    log: str
    numbers: set[int] = field(default_factory=set)
    missed: set[int] = field(default_factory=set)
    last: int = 0
    polls: int = 0

    def poll(self) -> None:
        """Read once; until a row was missed, sometimes check for missed rows as well."""
        new = self._read("> %s")
        self.numbers |= new
        self.last = max(new, default=self.last)
        self.polls += 1
        if self.polls % 20 == 0 and not self.missed:
            self.missed = self._read("<= %s") - self.numbers

    def _read(self, condition: str) -> set[int]:
        self.cursor.execute(f"SELECT seq FROM {self.log} WHERE seq {condition}", (self.last,))
        return {int(number) for (number,) in self.cursor.fetchall()}
