"""What is decided about rows that the target refuses (features 2.16): the row waits, or its table halts.

A refusal ends the target transaction. The verdict is remembered, and the same cuts are applied again with it: the
table is left out, or the row goes to quarantine, in the same transaction as everything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from venus.adapters.targets.postgresql.session import Session, Superseded
from venus.errors import TargetError

#: More refused rows of one table in one group of cuts than this are no bad rows but a bad table.
SUSPECTS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A change that the target refused."""

    record_id: bytes
    offset: int
    sqlstate: str
    message: str
    summary: str  # without values of the row


class RowsRefused(TargetError):
    """The target refuses changes of one table; the transaction is over."""

    def __init__(self, table_id: int, reason: str, suspects: list[Suspect], candidates: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.table_id = table_id
        self.reason = reason
        #: Empty: the table as a whole cannot be applied to.
        self.suspects = suspects
        #: The tables of which one is at fault, where that is all that can be told.
        self.candidates = tuple(candidates)


class CommitRefused(TargetError):
    """The target refuses the transaction at its COMMIT, where it does not say of which table it speaks."""


@contextmanager
def halting(session: Session, table_id: int) -> Iterator[None]:
    """Whatever the target says within this is about one table, which halts (RowsRefused): the others go on."""
    try:
        yield
    except (RowsRefused, Superseded):
        raise
    except TargetError as error:
        if session.closed:
            raise
        raise RowsRefused(table_id, str(error), []) from error


def guarded(session: Session, table_id: int, text: str) -> None:
    """Run a statement about a whole table; if it fails, the table halts (RowsRefused)."""
    with halting(session, table_id):
        session.run(text)


@dataclass(slots=True)
class Verdicts:
    """What was found out while applying one group of cuts."""

    #: table -> why it halts.
    halts: dict[int, str] = field(default_factory=dict)
    #: table -> record_id -> the refused change; later changes of the key wait behind it.
    suspects: dict[int, dict[bytes, Suspect]] = field(default_factory=dict)
    #: Whether what is checked at COMMIT is to be checked before it, table by table.
    one_by_one: bool = False
    #: A table that halts on trial, because one of several is at fault; those for which that was not enough.
    _on_trial: int | None = None
    _acquitted: set[int] = field(default_factory=set)

    def add(self, refused: RowsRefused | CommitRefused, *, quarantine: bool) -> None:
        """Take note of a refusal; each one makes the next attempt smaller, so that attempts end."""
        if isinstance(refused, CommitRefused):
            self.one_by_one = True  # which it is not twice
            return
        if self._on_trial is not None:
            self._acquitted.add(self._on_trial)
            del self.halts[self._on_trial]
            self._on_trial = None
        known = self.suspects.setdefault(refused.table_id, {})
        fresh = [s for s in refused.suspects if s.record_id not in known]
        known.update((s.record_id, s) for s in fresh)
        if not quarantine or not fresh or len(known) > SUSPECTS_MAX:
            self.halts[self._blamed(refused)] = refused.reason

    def _blamed(self, refused: RowsRefused) -> int:
        """Return the table that halts: of several the next one that was not on trial yet."""
        left = [table_id for table_id in refused.candidates if table_id not in self._acquitted]
        chosen = left[0] if left else refused.table_id
        self._on_trial = chosen if len(left) > 1 else None
        return chosen

    def __bool__(self) -> bool:
        return bool(self.halts or self.suspects)
