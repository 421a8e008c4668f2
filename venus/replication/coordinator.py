"""Interface of the coordinator: compare-and-swap and leases, nothing else.

Correctness rests on `swap` alone. A watch is a hint to read again; a result may be old when it arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from venus.replication.records import Leadership, LiveBroker


class Coordinator(Protocol):
    """Blocking calls with a time limit, from any thread. All raise Unavailable without an answer.

    A `swap` that raises may have been carried out: the caller reads again.
    """

    def register(self, broker: LiveBroker) -> None:
        """Register this broker under a lease; call it again to change the description.

        Raises Refused if another living broker has this id, with another store or address.
        """

    def refresh(self) -> bool:
        """Renew the lease; False = it has ended: call `register` again."""

    @property
    def lease(self) -> int:
        """Id of this broker's lease. After a change of the id there may have been a time without a lease."""

    def leave(self) -> None:
        """Revoke the lease: the broker stops cleanly."""

    def brokers(self) -> tuple[LiveBroker, ...]:
        """Return the brokers whose leases have not ended."""

    def drain(self, broker: str, *, draining: bool) -> None:
        """Set or remove the draining mark of a broker; the mark is independent of its lease."""

    def draining_brokers(self) -> frozenset[str]:
        """Return the brokers with a draining mark."""

    def save_newest_write(self, store: str, sequence: int) -> None:
        """Store the newest durable write of a store; the stored number never decreases."""

    def newest_write(self, store: str) -> int:
        """Return the newest known durable write of a store; 0 = none is known.

        A store without that write was restored from a backup: the in-sync sets do not mean it.
        """

    def leaderships(self) -> tuple[Leadership, ...]:
        """Return every business of the cluster."""

    @property
    def invalid(self) -> tuple[str, ...]:
        """Problems of records that were unusable at the last listing; an unusable record does not affect the others."""

    def read(self, business: str) -> Leadership | None:
        """Return the record of a business; None = the cluster does not know it."""

    def create(self, leadership: Leadership) -> Leadership | None:
        """Store a new business; return it with its version, None if there is one already.

        Its term is raised above those of an earlier business of this name.
        """

    def swap(self, before: Leadership, after: Leadership) -> Leadership | None:
        """Replace `before` by `after`; return it with its version, None if `before` is no longer current."""

    def remove(self, leadership: Leadership) -> bool:
        """Remove a business that was forgotten; False if `leadership` is no longer current.

        Its term is kept: a later business of this name begins with a higher one, so that entries of the old one, which
        brokers may still have, are never mistaken for those of the new one.
        """

    def last_forgotten_term(self, business: str) -> int:
        """Return the last term of a business of this name that was forgotten; 0 = none is known.

        Brokers remove their data of that term or an older one. A record that cannot be read was not forgotten.
        """

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed`, from any thread, when something may have changed. Best effort."""

    def close(self) -> None:
        """Close every connection."""
