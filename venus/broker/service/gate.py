"""Who may come in: a broker on its own lets everybody in, one of a cluster says who leads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Gate(Protocol):
    """In the service's event loop."""

    async def producer(self, business: str) -> None:
        """Let a producer in; the business is made if need be. Raises NotLeader, Unavailable."""

    def consumer(self, business: str) -> None:
        """Let a consumer group in, whose position is logged. Raises NotLeader, Unavailable."""

    def snapshot(self, business: str, holder: str) -> None:
        """Let a snapshot be made; whoever names himself relies on the queue behind it. Raises NotLeader."""

    def reader(self, business: str) -> None:
        """Let somebody in who only looks. Raises NotLeader if this broker has nothing of the business."""

    def term(self, business: str) -> int:
        """Return the term in which this broker leads, as far as it knows; 0 = it does not, or needs none."""

    async def led(self, business: str, term: int) -> None:
        """Return once it is certain that this broker led in a term when this was called. Raises Unavailable.

        Whoever leads no more, and has not heard of it, lacks what others have acknowledged.
        """

    async def forget(self, business: str) -> bool:
        """Let a whole cluster forget a business; False = it is this broker's alone, which forgets it by itself."""

    async def close_losses(self, business: str, group: str, terms: Collection[int]) -> list[str]:
        """Note that a group's target was compared and repaired after unclean elections; return who still is to be."""


class OpenGate:
    """Lets everybody in."""

    async def producer(self, business: str) -> None:
        """Let a producer in."""

    def consumer(self, business: str) -> None:
        """Let a consumer group in."""

    def snapshot(self, business: str, holder: str) -> None:
        """Let a snapshot be made."""

    def reader(self, business: str) -> None:
        """Let everybody look."""

    def term(self, business: str) -> int:
        """Nobody else could lead."""
        return 0

    async def led(self, business: str, term: int) -> None:
        """Nobody else could lead."""

    async def forget(self, business: str) -> bool:
        """Leave it to the broker."""
        return False

    async def close_losses(self, business: str, group: str, terms: Collection[int]) -> list[str]:
        """Nothing is ever lost by a broker on its own."""
        return []
