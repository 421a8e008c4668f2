"""A command of the commit thread, what is answered to its caller, and what a caller is told in place of an answer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from venus.broker.machine.business import Business
from venus.broker.pipeline.group import Group
from venus.errors import StorageError, Unavailable, VenusError

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Command(Generic[T]):
    """Appends log entries to a group and returns what its caller will be told; `nbytes` of half messages with it."""

    work: Callable[[Group], T]
    future: Future[T]
    nbytes: int
    business: Business | None  # the caller is told once everything proposed for it is applied
    submitted_at: float


@dataclass(slots=True, eq=False)
class Answer:
    """What a command's caller will be told once the entry `index` is applied."""

    command: Command[Any]
    index: int
    result: Any = None
    error: BaseException | None = None

    def tell(self) -> None:
        """Tell the caller."""
        if self.error is None:
            self.command.future.set_result(self.result)
        else:
            self.command.future.set_exception(self.error)

    def refuse(self, error: VenusError) -> None:
        """Tell the caller this error in its place."""
        reject(self.command, error)


def reject(command: Command[Any], error: BaseException) -> None:
    """Tell the caller that nothing came of it."""
    try:
        command.future.set_exception(closed(error))
    except InvalidStateError:
        return  # it was answered before the error, or cancelled


def another_leads(business: Business) -> Unavailable:
    """Return what those are told whose entries another leader has taken back."""
    return Unavailable(f"{business.name}: another broker is now the leader; send again")


def closed(error: BaseException | None) -> VenusError:
    """Return what callers are told who come after the end; None = the broker is stopping as it should."""
    if isinstance(error, VenusError):
        return error
    if error is None:
        return Unavailable("the broker is stopping")
    return StorageError(f"the broker has stopped: {error}")
