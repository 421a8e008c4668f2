"""The names of a broker's brakes, and who was braked by which of them, how often and since when."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Brake(Enum):
    """What holds somebody back; the value is what people call it."""

    ROWS = "rows"  # the token bucket on rows
    BYTES = "bytes"  # the token bucket on bytes
    MEMORY = "memory"  # received and not on disk
    TURN = "turn"  # the window that all businesses share
    SLOW = "slow request"  # has waited too long for the disk
    BEHIND = "full data behind"  # the full data is too far behind the queue
    DISK = "disk"  # too little free space
    DEGRADED = "degraded"  # half messages are degraded
    STREAMS = "streams"
    SNAPSHOTS = "snapshots"
    LOADS = "loads"  # readers of full data at once
    FULL_DATA = "full data"  # the leaky bucket
    CONSUMER = "slow consumer"
    SMALL = "small commits"  # large work rests for them


#: So long after the last time a brake counts as released.
RELEASED_S = 5.0
#: Pairs of a brake and a business that are remembered; the ones braked longest ago go first.
REMEMBERED_MAX = 1000


@dataclass(slots=True)
class Braked:
    """What a brake did to a business (or, with an empty name, to anybody)."""

    brake: Brake
    business: str
    who: str
    times: int = 0
    waited_s: float = 0.0
    since: float = 0.0
    #: Until when somebody was held back, which may be still to come.
    until: float = 0.0

    def is_on(self, now: float) -> bool:
        """Whether it brakes now."""
        return now - self.until < RELEASED_S


class Record:
    """All of that."""

    def __init__(self) -> None:
        self._braked: dict[tuple[Brake, str], Braked] = {}

    def told(self, brake: Brake, business: str, who: str, wait_s: float, now: float) -> None:
        """Take note that somebody is told to wait from now on."""
        self._note(brake, business, who, wait_s, now, now + wait_s)

    def waited(self, brake: Brake, business: str, who: str, wait_s: float, now: float) -> None:
        """Take note that somebody has waited until now."""
        self._note(brake, business, who, wait_s, now, now)

    def _note(self, brake: Brake, business: str, who: str, wait_s: float, now: float, until: float) -> None:
        found = self._braked.pop((brake, business), None)
        if found is None:
            found = Braked(brake, business, who, since=now)
            if len(self._braked) >= REMEMBERED_MAX:
                del self._braked[next(iter(self._braked))]
        elif not found.is_on(now):
            found.since = now
        self._braked[brake, business] = found
        found.times += 1
        found.waited_s += wait_s
        found.who, found.until = who, max(found.until, until)

    def all(self) -> list[Braked]:
        """Return them, the most recent last."""
        return list(self._braked.values())
