"""A replica that follows: it fetches, appends, truncates where its log is no prefix of the leader's."""

from __future__ import annotations

from venus.replication import divergence
from venus.replication.messages import (
    Advance,
    Answered,
    Append,
    Diverge,
    Effect,
    Entries,
    Fetch,
    NotLeading,
    Read,
    Reinstall,
    Trimmed,
    Truncate,
)
from venus.replication.position import Position
from venus.replication.records import Member
from venus.replication.settings import Patience


class Following:
    """One fetch is under way at a time; the next one says what is on this disk."""

    def __init__(self, position: Position, leader: Member, term: int, patience: Patience) -> None:
        self.leader = leader
        self.term = term
        self._position = position
        self._patience = patience
        self._asked_at: float | None = None  # when the fetch under way was sent
        self._log_is_busy = False

    def begin(self, now: float) -> list[Effect]:
        """Ask for what follows our log."""
        return self._fetch(now)

    def tick(self, now: float) -> list[Effect]:
        """Repeat a fetch that nobody answers."""
        if self._log_is_busy:
            return []
        if self._asked_at is None or now - self._asked_at > self._patience.fetch_s:
            return self._fetch(now)
        return []

    def log_changed(self, now: float) -> list[Effect]:
        """Go on once what was wanted of the log is done."""
        if not self._log_is_busy or self._position.durable_end < self._position.end:
            return []
        self._log_is_busy = False
        return self._fetch(now)

    def answered(self, event: Answered, now: float) -> list[Effect]:
        """Take an answer of the leader; one of another leader or term is stale."""
        if event.leader != self.leader or self._log_is_busy:
            return []
        match event.answer:
            case None:
                self._asked_at = None  # with the next tick
                return []
            case NotLeading():
                self._asked_at = now  # again when the fetch would have timed out, unless the record changes
                return [Read()]
            case Entries() | Diverge() | Trimmed() if event.answer.term != self.term:
                return []
            case Entries():
                return self._append(event.answer, now)
            case Diverge():
                return self._truncate(event.answer, now)
            case Trimmed():
                return self._reinstall(f"its log starts at entry {event.answer.start}, ours ends before that", now)

    def _append(self, answer: Entries, now: float) -> list[Effect]:
        position = self._position
        if answer.first != position.end:
            return self._fetch(now)  # an answer to an earlier fetch
        effects: list[Effect] = []
        if answer.entries:
            effects.append(Append(first=answer.first, entries=answer.entries))
            self._log_is_busy = True
        # What is below the first entry of this answer is on this disk, and equal to the leader's.
        high = min(answer.high, position.durable_end - 1)
        if high > position.high:
            position.high = high
            effects.append(Advance(high=high))
        return effects if self._log_is_busy else [*effects, *self._fetch(now)]

    def _truncate(self, answer: Diverge, now: float) -> list[Effect]:
        position = self._position
        end = divergence.truncation(position.terms, position.end, answer.last_term, answer.end)
        if end <= position.high:
            return self._reinstall(
                f"its log has other entries from {end} on, of which ours up to {position.high} are applied", now
            )
        if end == position.end:
            return self._fetch(now)
        self._log_is_busy = True
        return [Truncate(end=end)]

    def _reinstall(self, reason: str, now: float) -> list[Effect]:
        self._log_is_busy = True  # until the log says that it is another one
        self._asked_at = now
        return [Reinstall(leader=self.leader, reason=reason)]

    def _fetch(self, now: float) -> list[Effect]:
        position = self._position
        self._asked_at = now
        last_term = position.terms.of(position.end - 1)
        return [Fetch(to=self.leader, term=self.term, index=position.end, last_term=last_term)]
