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

    def forgetting(self, business: str) -> None:
        """Let a business be removed. Raises Refused."""

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

    def forgetting(self, business: str) -> None:
        """Let a business be removed."""

    async def close_losses(self, business: str, group: str, terms: Collection[int]) -> list[str]:
        """Nothing is ever lost by a broker on its own."""
        return []
