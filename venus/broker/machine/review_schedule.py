"""When the broker asks a silent producer about its half messages (VENUS 3.3, message review), without any I/O.

Only a review that reached a producer counts: an adapter that is away for a day was not asked. After `ASKED_MAX` answers
that decided nothing, an alarm is raised. A half message is never discarded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

#: The pause doubles up to this maximum.
PAUSE_MAX_S = 60.0
#: After this many delivered reviews an operator must act.
ASKED_MAX = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewState:
    """Reviews of one undecided batch: since when it waits, when the next question is due, how many were sent."""

    due_at: float
    since: float
    delivered: int = 0


def pause_s(delivered: int, first_s: float) -> float:
    """Return the pause after `delivered` reviews: 6, 12, 24, 48, 60, 60, ..."""
    return min(first_s * 2.0 ** min(delivered, 30), max(PAUSE_MAX_S, first_s))


@dataclass(slots=True, kw_only=True)
class ReviewSchedule:
    """The review times of one business, by batch number; `now` is monotonic time."""

    first_s: float
    asked: dict[int, ReviewState] = field(default_factory=dict)

    def expect(self, batch_no: int, now: float) -> None:
        """Schedule the first review of a new half message."""
        self.asked[batch_no] = ReviewState(due_at=now + self.first_s, since=now)

    def settle(self, batch_nos: Iterable[int]) -> None:
        """Cancel the reviews of decided half messages."""
        for batch_no in batch_nos:
            self.asked.pop(batch_no, None)

    def due_batches(self, now: float) -> list[int]:
        """Return the batch numbers of half messages whose review is due, the oldest first."""
        return sorted(batch_no for batch_no, asked in self.asked.items() if asked.due_at <= now)

    def record_delivered(self, batch_nos: Iterable[int], now: float) -> int:
        """Record reviews that reached a producer, and schedule the next ones; return how many batches are undecided."""
        counted = 0
        for batch_no in batch_nos:
            asked = self.asked.get(batch_no)
            if asked is not None:
                times = asked.delivered + 1
                self.asked[batch_no] = replace(asked, due_at=now + pause_s(times, self.first_s), delivered=times)
                counted += 1
        return counted

    def delivered_times(self, batch_no: int) -> int:
        """Return how many reviews of a half message have reached a producer."""
        asked = self.asked.get(batch_no)
        return asked.delivered if asked else 0

    def waited_s(self, batch_no: int, now: float) -> float:
        """Return how long a half message has been known here without a decision; 0 = it is unknown."""
        asked = self.asked.get(batch_no)
        return max(0.0, now - asked.since) if asked else 0.0

    def exhausted_batches(self) -> list[int]:
        """Return the half messages that ASKED_MAX reviews have not decided; an operator must decide them."""
        return sorted(n for n, asked in self.asked.items() if asked.delivered >= ASKED_MAX)
