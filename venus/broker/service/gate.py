"""Admission of clients: a standalone broker admits all of them, a broker of a cluster redirects to the leader."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Gate(Protocol):
    """Admits or redirects clients. Used in the service's event loop."""

    async def admit_producer(self, business: str) -> None:
        """Admit a producer; create the business if needed. Raises NotLeader, Unavailable."""

    def admit_consumer(self, business: str) -> None:
        """Admit a consumer group, whose position is logged. Raises NotLeader, Unavailable."""

    def admit_snapshot(self, business: str, holder: str) -> None:
        """Admit a snapshot. A named holder relies on the queue behind the snapshot. Raises NotLeader."""

    def admit_reader(self, business: str) -> None:
        """Admit a client that only reads. Raises NotLeader if this broker has no replica of the business."""

    def term(self, business: str) -> int:
        """Return the term in which this broker leads, as far as it knows; 0 if it does not lead or has no cluster."""

    async def confirm_leadership(self, business: str, term: int) -> None:
        """Confirm that this broker led in the term at the time of the call. Raises Unavailable.

        A deposed leader that does not know it yet lacks entries that the new leader has acknowledged.
        """

    async def forget(self, business: str) -> bool:
        """Remove a business from the whole cluster. False means that only this broker has it and must remove it."""

    async def close_losses(self, business: str, group: str, terms: Collection[int]) -> list[str]:
        """Record that a group's target was repaired after unclean elections; return the groups still to compare."""


class StandaloneGate:
    """The gate of a standalone broker: it admits every client."""

    async def admit_producer(self, business: str) -> None:
        """Admit a producer."""

    def admit_consumer(self, business: str) -> None:
        """Admit a consumer group."""

    def admit_snapshot(self, business: str, holder: str) -> None:
        """Admit a snapshot."""

    def admit_reader(self, business: str) -> None:
        """Admit a reader."""

    def term(self, business: str) -> int:
        """Return 0: a standalone broker has no terms."""
        return 0

    async def confirm_leadership(self, business: str, term: int) -> None:
        """Return at once: no other broker could lead."""

    async def forget(self, business: str) -> bool:
        """Return False: only this broker has the business."""
        return False

    async def close_losses(self, business: str, group: str, terms: Collection[int]) -> list[str]:
        """Return no groups: a standalone broker has no elections."""
        return []
