"""Answers that wait for the high watermark: nobody is told what could still be taken back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from venus.broker.machine.business import Business
from venus.errors import VenusError

Tell = Callable[[], None]
Refuse = Callable[[VenusError], None]


@dataclass(frozen=True, slots=True)
class Held:
    """An answer, and how to refuse in its place, once everything up to `index` is applied or taken back."""

    index: int
    tell: Tell
    refuse: Refuse


@dataclass(slots=True)
class Acks:
    """Answers in the order of their entries, by business. Used by the commit thread alone."""

    _waiting: dict[Business, deque[Held]] = field(default_factory=dict)

    def hold(self, business: Business, held: Held) -> None:
        """Give the answer once its index is applied: at once if it is."""
        if held.index <= business.log.applied:
            held.tell()
        else:
            self._waiting.setdefault(business, deque()).append(held)

    def release(self, business: Business) -> None:
        """Give the answers that the newest applied entry allows."""
        waiting = self._waiting.get(business)
        while waiting and waiting[0].index <= business.log.applied:
            waiting.popleft().tell()
        if waiting is not None and not waiting:
            del self._waiting[business]

    def drop(self, business: Business, first: int, error: VenusError) -> None:
        """Refuse whoever waits for an entry from `first` on, which was taken back."""
        waiting = self._waiting.pop(business, deque())
        for held in waiting:
            if held.index < first:
                self.hold(business, held)
            else:
                held.refuse(error)

    def refuse_all(self, error: VenusError) -> None:
        """Refuse everybody: the broker stops."""
        waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            for held in queue:
                held.refuse(error)
