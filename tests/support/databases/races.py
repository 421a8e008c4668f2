"""Writers that race with capture: how long they do, and the reader that shows that the race is a hard one."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

#: A machine that is so slow that there was not enough by then fails the test.
RACE_S_MAX = 150.0


@dataclass(slots=True)
class Race:
    """A race of some seconds, and on a slow machine of as many as it takes until there was enough of everything."""

    seconds: float
    ended: Counter[str]  # transactions, by how they ended
    cuts_min: int
    began: float = field(default_factory=time.monotonic)

    def has_enough(self, cuts: int) -> bool:
        """Whether there was enough of everything."""
        return cuts > self.cuts_min and self.ended["commit"] > 100 and self.ended["rollback"] > 5

    def is_over(self, cuts: int, *, is_hard: bool = True) -> bool:
        """Whether the race may end; `is_hard` = a naive reader would have missed changes of it."""
        took = time.monotonic() - self.began
        return took > RACE_S_MAX or (took > self.seconds and is_hard and self.has_enough(cuts))


@dataclass(slots=True)
class NaiveReader:
    """Reads what has a higher number than the last one read, from a log that nothing consumes: the way that loses rows.

    `cursor` belongs to a connection with autocommit. The log's number is its column `seq`.
    """

    cursor: Any
    log: str
    numbers: set[int] = field(default_factory=set)
    missed: set[int] = field(default_factory=set)
    last: int = 0
    polls: int = 0

    def poll(self) -> None:
        """Read once; look back at times until something was missed."""
        new = self._read("> %s")
        self.numbers |= new
        self.last = max(new, default=self.last)
        self.polls += 1
        if self.polls % 20 == 0 and not self.missed:
            self.missed = self._read("<= %s") - self.numbers

    def _read(self, condition: str) -> set[int]:
        self.cursor.execute(f"SELECT seq FROM {self.log} WHERE seq {condition}", (self.last,))
        return {int(number) for (number,) in self.cursor.fetchall()}
