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

    async def forget(self, business: str) -> bool:
        """Leave it to the broker."""
        return False

    async def close_losses(self, business: str, group: str, terms: Collection[int]) -> list[str]:
        """Nothing is ever lost by a broker on its own."""
        return []
