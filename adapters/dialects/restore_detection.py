"""Detection of a restore under a running session: the checkpoint row differs from the one that the session left.

A restore that ends every session needs no detection, because the next session asks the broker. Copying a file back or
loading a dump ends no session, and the restored epoch may equal the present one.
"""

from __future__ import annotations

from venus.adapters.dialects.contract import SourceState
from venus.errors import DatabaseUnavailable
from venus.model import BatchNo


class SourceRestored(DatabaseUnavailable):
    """The source was restored to a backup: start a new session, which reads everything again."""


class RestoreGuard:
    """The newest batch that a session has found or committed at its source."""

    def __init__(self) -> None:
        self._batch: BatchNo | None = None

    def record_batch(self, batch: BatchNo) -> None:
        """Record the newest batch."""
        self._batch = batch

    def check(self, place: object, checkpoint: SourceState) -> None:
        """Raise SourceRestored if the checkpoint row, which the caller has locked, names another batch."""
        if self._batch not in (None, checkpoint.last_batch):
            raise SourceRestored(
                f"{place}: its newest batch is {checkpoint.last_batch}, and was {self._batch}: it was restored"
            )
