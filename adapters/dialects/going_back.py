"""Tells a session that its source was put back to a backup under it: the checkpoint row is not as it was left.

Where a restore ends every session nothing has to be told, because the next one asks the broker. A file that is copied
back and a dump that is loaded end none, and the epoch may be the one that was in force at the backup as well.
"""

from __future__ import annotations

from venus.adapters.dialects.contract import SourceState
from venus.errors import DatabaseUnavailable
from venus.model import BatchNo


class WentBack(DatabaseUnavailable):
    """The source is not where this session left it: begin a new one, which reads everything again."""


class LeftAt:
    """The newest batch that a session has found or left at its source."""

    def __init__(self) -> None:
        self._batch: BatchNo | None = None

    def at(self, batch: BatchNo) -> None:
        """Take note of it."""
        self._batch = batch

    def check(self, place: object, held: SourceState) -> None:
        """Raise WentBack if the checkpoint row, which the caller holds, has another one."""
        if self._batch not in (None, held.last_batch):
            raise WentBack(f"{place}: its newest batch is {held.last_batch}, and was {self._batch}: it was restored")
