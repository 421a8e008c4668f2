"""Role of a follower: it fetches, appends, and truncates its log where it differs from the leader's."""

from __future__ import annotations

from venus.replication import terms
from venus.replication.messages import (
    Advance,
    Append,
    Effect,
    Entries,
    FetchReply,
    LogsDiverge,
    LogTrimmed,
    NotLeading,
    ReadRecords,
    Reinstall,
    SendFetch,
    Truncate,
)
from venus.replication.position import Position, ReplicationTimes
from venus.replication.records import Leadership, Member


class Following:
    """State of a follower. At most one fetch is open, and none while the log changes: a fetch reports this disk."""

    def __init__(self, position: Position, leader: Member, known: Leadership, patience: ReplicationTimes) -> None:
        self.leader = leader
        self.term = known.term
        self._version = known.version
        self._position = position
        self._patience = patience
        self._asked_at: float | None = None  # when the open fetch was sent

    def begin(self, now: float) -> list[Effect]:
        """Fetch what follows the log, or continue an installation that another leader's term had begun."""
        if not self._position.whole:
            return self._reinstall("an installation was interrupted")
        return self._fetch(now)

    def on_record(self, known: Leadership, now: float, *, counts: bool) -> list[Effect]:
        """Handle a newer record of the same term. A follower that is not in sync reports its version to the leader."""
        self._version = known.version
        return [] if counts or self._asked_at is None else self._fetch(now)

    def tick(self, now: float) -> list[Effect]:
        """Repeat a fetch without a reply."""
        if self._asked_at is None or now - self._asked_at > self._patience.fetch_s:
            return self._fetch(now)
        return []

    def on_log_changed(self, now: float) -> list[Effect]:
        """Continue once the orders to the log are executed."""
        return self._fetch(now) if self._asked_at is None else []

    def on_fetch_reply(self, event: FetchReply, now: float) -> list[Effect]:
        """Handle a reply of the leader; one of another leader or term, or to an earlier fetch, is stale."""
        if event.leader != self.leader or not self._is_ready:
            return []
        match event.answer:
            case None:
                self._asked_at = None  # the next tick repeats it
                return []
            case NotLeading(term=term):
                patience = self._patience
                # soon if that broker will learn that it leads; else after the timeout, or when the record changes
                self._asked_at = now - patience.fetch_s + patience.idle_s if term < self.term else now
                return [ReadRecords()]
            case Entries() | LogsDiverge() | LogTrimmed() if event.answer.term != self.term:
                return []
            case Entries():
                return self._on_entries(event.answer, now)
            case LogsDiverge():
                return self._on_diverge(event.answer)
            case LogTrimmed():
                return self._on_trimmed(event.answer)

    @property
    def _is_ready(self) -> bool:
        return self._position.whole and self._position.is_settled

    def _on_entries(self, answer: Entries, now: float) -> list[Effect]:
        position = self._position
        if answer.first != position.end:
            return []  # a reply to an earlier fetch
        effects: list[Effect] = []
        # Entries before the first one of this reply are on this disk, and equal to the leader's.
        high = min(answer.high, answer.first - 1)
        if high > position.high:
            position.high = high
            effects.append(Advance(high=high))
        if not answer.entries:
            return [*effects, *self._fetch(now)]
        self._asked_at = None
        return [*effects, Append(order=position.next_order(), first=answer.first, entries=answer.entries)]

    def _on_diverge(self, answer: LogsDiverge) -> list[Effect]:
        position = self._position
        if (answer.index, answer.last_term) != (position.end, position.last_term):
            return []  # a reply to an earlier fetch: the log has changed since
        end = terms.truncation_end(position.terms, position.end, answer.known_term, answer.end)
        if end <= position.high:
            return self._reinstall(
                f"its log has other entries from {end} on, of which ours up to {position.high} are applied",
                diverged=True,
            )
        self._asked_at = None
        return [Truncate(order=position.next_order(), end=end)]

    def _on_trimmed(self, answer: LogTrimmed) -> list[Effect]:
        if answer.start <= self._position.end:
            return []  # a reply to an earlier fetch
        return self._reinstall(f"its log starts at entry {answer.start}, ours ends before that")

    def _reinstall(self, reason: str, *, diverged: bool = False) -> list[Effect]:
        self._position.whole = False  # until CopyInstalled
        self._asked_at = None
        return [Reinstall(leader=self.leader, reason=reason, diverged=diverged)]

    def _fetch(self, now: float) -> list[Effect]:
        position = self._position
        if not self._is_ready:
            self._asked_at = None  # sent once the log has settled
            return []
        self._asked_at = now
        index, last_term = position.end, position.last_term
        return [SendFetch(to=self.leader, term=self.term, index=index, last_term=last_term, version=self._version)]
