"""Commands of the commit thread, the answers to their callers, and the errors that replace answers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from venus.broker.machine.business import Business
from venus.broker.pipeline.group import CommandGroup
from venus.errors import StorageError, Unavailable, VenusError

T = TypeVar("T")


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
