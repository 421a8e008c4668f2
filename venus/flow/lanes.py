"""The lanes of a broker: what must never wait behind what. The smaller the number, the later it is given up."""

from __future__ import annotations

from enum import IntEnum


class Lane(IntEnum):
    """What a piece of work is for."""

    CONTROL = 0  # replication, decisions, reviews, health, leases
    HALVES = 1  # half messages, in the commit thread
    INCREMENTS = 2
    FULL_DATA = 3
    DETAILS = 4  # the page, detailed metrics, the scrub

    @property
    def label(self) -> str:
        """What people call it."""
        return self.name.lower().replace("_", " ")


#: How many blocking calls of a lane run at once; half messages have the commit thread to themselves.
THREADS = {Lane.CONTROL: 2, Lane.INCREMENTS: 2, Lane.FULL_DATA: 4, Lane.DETAILS: 1}
