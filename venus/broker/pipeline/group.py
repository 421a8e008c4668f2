"""A group of commands that share one write batch and one fsync, and the form of a command.

A command only proposes: it appends entries and updates the proposed state. The proposals of a failed command are
undone, so a command does all of its work or none.

Every replica applies the same entries by the same steps. A replica that cannot apply an entry halts; a leader ends its
process. An entry that cannot be applied means that the brokers' versions differ, memory is broken or there is a bug. A
replica that skipped an entry would diverge from the other replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from venus.broker.log.entry import WITH_ENVELOPE, LogEntry
from venus.broker.machine import described_versions
from venus.broker.machine.business import Business, PendingEntry
from venus.broker.machine.envelope import Envelope, build_envelope, parse_body
from venus.broker.machine.machine import EntryEffects, take_step
from venus.broker.store.rocks import StoreBatch
from venus.errors import StorageError, Unavailable, VenusError

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Savepoint:
    """State of a group before a command, so that the command's proposals can be undone."""

    appended: int
    staged: int
    durable: bool


@dataclass(slots=True)
class WrittenEntries:
    """Consecutive entries of one log that a group has written, in stored form."""

    first: int
    stored: list[bytes] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class CommandGroup:
    """Proposed entries and changes of the commands that share one write batch."""

    batch: StoreBatch
    changed: set[Business] = field(default_factory=set)
    applied: dict[Business, EntryEffects] = field(default_factory=dict)
    durable: bool = False
    appended: list[tuple[Business, PendingEntry]] = field(default_factory=list)
    refused: list[tuple[Business, int, VenusError]] = field(default_factory=list)
    log_changed: set[Business] = field(default_factory=set)
    written: dict[Business, WrittenEntries] = field(default_factory=dict)
    _terms: dict[Business, int] = field(default_factory=dict)
    _staged: list[tuple[str, bytes, bytes | None]] = field(default_factory=list)

    def allow(self, business: Business, term: int) -> None:
        """Allow commands of this group to propose entries of this term for a business."""
        self._terms[business] = term

    def append(
        self, business: Business, entry: LogEntry, known: Envelope | None = None, *, durable: bool = True
    ) -> int:
        """Propose an entry at the end of a business's log; return its index. `allow` must come first."""
        term = self._terms[business]
        if entry.term != term:
            entry = replace(entry, term=term)
        index = business.log.end
        taken = take_step(business.proposed, index, entry, known)
        self._append(business, PendingEntry(index=index, entry=entry, content=known, step=taken), durable=durable)
        return index

    def follow(self, business: Business, entry: LogEntry, stored: bytes) -> None:
        """Append an entry of the leader's log in its stored form."""
        index = business.log.end
        content = build_envelope(parse_body(entry.body)) if entry.kind in WITH_ENVELOPE else None
        taken = take_step(business.proposed, index, entry, content)
        pending = PendingEntry(index=index, entry=entry, content=content, step=taken, stored=stored, is_new=False)
        self._append(business, pending, durable=True)

    def _append(self, business: Business, pending: PendingEntry, *, durable: bool) -> None:
        """Add an entry to the end of a log and its step to the proposed state."""
        described_versions.record_proposed_versions(business, pending.step, pending.content)
        business.proposed = pending.step.after
        business.log.end = pending.index + 1
        business.pending.append(pending)
        self.appended.append((business, pending))
        self.durable = self.durable or durable

    def stage(self, family: str, key: bytes, value: bytes | None, *, durable: bool = False) -> None:
        """Set or remove (None) one key that belongs to no log."""
        self._staged.append((family, key, value))
        self.durable = self.durable or durable

    def savepoint(self) -> Savepoint:
        """Return a savepoint, for `take_back`."""
        return Savepoint(len(self.appended), len(self._staged), self.durable)

    def take_back(self, mark: Savepoint) -> None:
        """Undo the proposals since a savepoint."""
        while len(self.appended) > mark.appended:
            business, pending = self.appended.pop()
            assert business.pending.pop() is pending, "nothing is applied while commands run"
            business.proposed, business.log.end = pending.step.before, pending.index
        del self._staged[mark.staged :]
        self.durable = mark.durable

    def truncate(self, business: Business, first: int) -> None:
        """Remove the entries of a log from `first` on, all of which must be above the high watermark."""
        business.log.truncate(self.batch, first)
        while business.pending and business.pending[-1].index >= first:
            business.proposed = business.pending.pop().step.before
        self.appended = [(b, p) for b, p in self.appended if b is not business or p.index < first]
        self.changed.add(business)
        self.log_changed.add(business)
        self.durable = True

    def touched_businesses(self) -> set[Business]:
        """Return every business that a command or the upkeep has changed in memory."""
        return self.changed | {business for business, _ in self.appended}

    def write_log(self, *, keep: bool = False) -> None:
        """Put the proposals into the batch. With `keep`, remember the stored entries for other brokers."""
        for business, pending in self.appended:
            stored = business.log.append(self.batch, pending.index, pending.entry, pending.stored)
            self.changed.add(business)
            if keep:
                self.written.setdefault(business, WrittenEntries(pending.index)).stored.append(stored)
        for family, key, value in self._staged:
            if value is None:
                self.batch.delete(family, key)
            else:
                self.batch.put(family, key, value)


@dataclass(slots=True, eq=False)
class CommitCommand(Generic[T]):
    """A function that appends log entries to a group and returns its answer; `nbytes` counts its half messages."""

    work: Callable[[CommandGroup], T]
    future: Future[T]
    nbytes: int
    business: Business | None  # the answer waits until everything proposed for it is applied
    submitted_at: float


@dataclass(slots=True, eq=False)
class CommandAnswer:
    """The answer to a command, given once the entry `index` is applied."""

    command: CommitCommand[Any]
    index: int
    result: Any = None
    error: BaseException | None = None

    def deliver(self) -> None:
        """Give the answer to the caller."""
        if self.error is None:
            self.command.future.set_result(self.result)
        else:
            self.command.future.set_exception(self.error)

    def refuse(self, error: VenusError) -> None:
        """Give the caller this error instead of the answer."""
        reject(self.command, error)


def reject(command: CommitCommand[Any], error: BaseException) -> None:
    """Fail the caller's future: the command had no effect."""
    try:
        command.future.set_exception(closed_error(error))
    except InvalidStateError:
        return  # the future was resolved before the error, or cancelled


def another_leader_error(business: Business) -> Unavailable:
    """Return the error for callers whose entries another leader has truncated."""
    return Unavailable(f"{business.name}: another broker is now the leader; send again")


def closed_error(error: BaseException | None) -> VenusError:
    """Return the error for callers after the end of the thread. None means an orderly stop."""
    if isinstance(error, VenusError):
        return error
    if error is None:
        return Unavailable("the broker is stopping")
    return StorageError(f"the broker has stopped: {error}")


class CannotApply(Exception):
    """The next entry of a business cannot be applied."""

    def __init__(self, business: Business, index: int, error: Exception) -> None:
        super().__init__(_describe_failure(index, error))
        self.business, self.index, self.error = business, index, error


def halt_reason(index: int, error: Exception) -> str:
    """Return why a replica stops, and the way out."""
    return (
        f"{_describe_failure(index, error)}, so this replica has stopped; do all brokers have the same version "
        "of VENUS? If so, "
        "stop this one, remove its broker.data_dir and start it: it installs the leader's copy"
    )


def leader_end_reason(stuck: CannotApply) -> str:
    """Return why a leader ends, and a way out that does not remove what may be the only complete copy."""
    return (
        f"{stuck.business.name}: {_describe_failure(stuck.index, stuck.error)}, and this broker leads, so it "
        "stops and another one "
        "takes over; do all brokers have the same version of VENUS? If so, and as soon as `venus status` at another "
        "one names a leader, remove this one's broker.data_dir and start it: it installs the leader's copy"
    )


def _describe_failure(index: int, error: Exception) -> str:
    """Return the message that a log entry cannot be applied."""
    what = str(error) if isinstance(error, VenusError) else repr(error)
    return f"log entry {index} cannot be applied here ({what})"


def halt(business: Business, index: int, error: Exception) -> None:
    """Stop a replica until this process ends. The host reports it in one line."""
    business.halted = halt_reason(index, error)
    logger.error("%s: log entry %d cannot be applied", business.name, index, exc_info=error)
