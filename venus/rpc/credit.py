"""Credit: how many bytes a consumer lets the broker send; both ends count alike, here.

The broker never sends beyond the credit. A message that is larger than the whole credit would then wait for ever,
so it may go alone, when nothing else is outstanding.
"""

from __future__ import annotations

from venus.wire import broker_pb2

OVERHEAD_BYTES = 64


def cost(message: broker_pb2.Increment | broker_pb2.SnapshotChunk) -> int:
    """Return what a message takes from the credit."""
    return len(message.body) + OVERHEAD_BYTES


class Credit:
    """The broker's account of one consumer."""

    def __init__(self, granted: int) -> None:
        self.balance = self._whole = granted

    def grant(self, nbytes: int) -> None:
        """Take credit that the consumer gives, back or for the first time."""
        self.balance += nbytes
        self._whole = max(self._whole, self.balance)

    def allows(self, nbytes: int) -> bool:
        """Whether a message of this cost may go now."""
        return self.balance > 0 and (nbytes <= self.balance or self.balance == self._whole)

    def spend(self, nbytes: int) -> None:
        """Note that a message went."""
        self.balance -= nbytes
