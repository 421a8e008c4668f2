"""Where the log of a replica stands, as its state machine knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from venus.replication.messages import LogChanged
from venus.replication.terms import TermCache


@dataclass(slots=True, kw_only=True)
class Position:
    """`high` < `durable_end` <= `end`, but for moments in which the log is ahead of what was said here."""

    start: int = 1
    end: int = 1
    durable_end: int = 1
    terms: TermCache = field(default_factory=TermCache)
    high: int = 0

    def changed(self, event: LogChanged) -> None:
        """Take up what the log says of itself."""
        self.start, self.end, self.durable_end, self.terms = event.start, event.end, event.durable_end, event.terms
