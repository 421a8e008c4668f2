"""Where brokers agree: compare-and-swap and leases, nothing else.

Correctness rests on `swap` alone. A watch is a hint to read again; what was read may be old when it arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from venus.replication.records import Leadership, LiveBroker


class Coordinator(Protocol):
    """Blocking calls, each with a time limit; from any thread. All raise Unavailable when nobody answers.

    A `swap` that raises may have happened all the same: whoever called reads again.
    """

    def register(self, broker: LiveBroker) -> None:
        """Say that this broker lives, under a lease; call again to change what it says. Raises Refused.

        Refused: another living broker has this id, with another store or address.
        """

    def refresh(self) -> bool:
        """Renew the lease; False = it has ended, `register` again."""

    @property
    def lease(self) -> int:
        """Which lease this broker has: another number is another one, before which there may have been none."""

    def leave(self) -> None:
        """End the lease now: the broker stops cleanly."""

    def brokers(self) -> tuple[LiveBroker, ...]:
        """Return the brokers whose leases have not ended."""

    def drain(self, broker: str, *, draining: bool) -> None:
        """Mark a broker as draining, or take the mark away; it stands whether the broker lives or not."""

    def drained(self) -> frozenset[str]:
        """Return the brokers that are marked."""

    def note(self, store: str, sequence: int) -> None:
        """Remember that a store has had a write on disk; what was remembered never falls."""

    def noted(self, store: str) -> int:
        """Return the newest write that a store is remembered to have had; 0 = nothing is.

        A store that comes back without it was set back: it is another one than the in-sync sets mean.
        """

    def leaderships(self) -> tuple[Leadership, ...]:
        """Return every business of the cluster."""

    @property
    def invalid(self) -> tuple[str, ...]:
        """What is wrong with records that could not be used when they were listed last: each costs itself alone."""

    def read(self, business: str) -> Leadership | None:
        """Return one business; None = the cluster does not know it."""

    def create(self, leadership: Leadership) -> Leadership | None:
        """Store a new business; return it with its version, None if there is one already.

        Its term is raised above those of an earlier business of this name.
        """

    def swap(self, before: Leadership, after: Leadership) -> Leadership | None:
        """Replace `before` by `after`; return it with its version, None if `before` is not current any more."""

    def remove(self, leadership: Leadership) -> bool:
        """Remove a business that was forgotten; False if `leadership` is not current any more.

        Its term is remembered: a later business of this name is created with a higher one, so that what somebody may
        still have of the old one is never taken for entries of the new one.
        """

    def forgotten(self, business: str) -> int:
        """Return the last term of a business of this name that was forgotten; 0 = none ever was, as far as is known.

        What somebody has of that term, or an older one, is removed: a record that cannot be read was not forgotten.
        """

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed`, from any thread, when something may have changed. Best effort."""

    def close(self) -> None:
        """Let every connection go."""
