"""Where the log of a replica stands, as its state machine knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from venus.replication.messages import LogChanged
from venus.replication.terms import TermCache


@dataclass(slots=True, kw_only=True)
class Position:
    """`high` < `durable_end` <= `end`, but for moments in which the log is ahead of what was said here.

    `whole` = no installation of the full data has begun without having ended.
    """

    start: int = 1
    end: int = 1
    durable_end: int = 1
    terms: TermCache = field(default_factory=TermCache)
    high: int = 0
    whole: bool = True
    ordered: int = 0  # the order of the newest Append or Truncate that was wanted of the log
    done: int = 0  # the newest that was carried out

    @property
    def settled(self) -> bool:
        """Whether what is known of the log is on disk, and nothing is about to change it."""
        return self.done == self.ordered and self.durable_end == self.end

    @property
    def last_term(self) -> int:
        """The term of the newest entry; 0 before the first one."""
        return self.terms.of(self.end - 1)

    def next_order(self) -> int:
        """Return the number of another order to the log."""
        self.ordered += 1
        return self.ordered

    def changed(self, event: LogChanged) -> None:
        """Take up what the log says of itself."""
        self.start, self.end, self.durable_end, self.terms = event.start, event.end, event.durable_end, event.terms
        self.done = max(self.done, event.done)
