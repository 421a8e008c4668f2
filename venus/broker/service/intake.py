"""Which half messages a producer's stream takes next, and which are asked for again. Pure.

After a half message was damaged or refused, nothing above it is taken until it comes: it is *expected*. Its producer
sends again whatever it has not been told to be on disk, and nothing else. So what is on disk is never expected: a
refused copy of it would be waited for for good, and everything above it skipped.
"""

from __future__ import annotations


class Intake:
    """The numbers of one stream."""

    def __init__(self, through: int) -> None:
        self.through = through  # on disk; the producer is told, or knows
        self.newest = through  # handed to the core
        self.expected: int | None = None  # nothing above it is taken
        self._submitted = 0
        self._void_through = 0  # submissions up to here were made before the newest request to send again

    def takes(self, batch_no: int) -> bool:
        """Whether a half message is taken now. One above the expected one comes again."""
        return self.expected is None or batch_no <= self.expected

    def arrived(self, batch_no: int) -> None:
        """Take note that a half message has come undamaged."""
        if batch_no == self.expected:
            self.expected = None

    def submitted(self, newest: int = 0) -> int:
        """Take note that something goes to the core, half messages up to `newest`; return its number."""
        self.newest = max(self.newest, newest)
        self._submitted += 1
        return self._submitted

    def is_void(self, number: int) -> bool:
        """Whether a submission was made before the newest request to send again, which covers it."""
        return number <= self._void_through

    def again(self, batch_no: int) -> int:
        """Expect half messages from this one on; return the first that the producer still has."""
        self.expected = max(batch_no, self.through + 1)
        self.newest = self.expected - 1
        self._void_through = self._submitted
        return self.expected

    def persisted(self, through: int) -> None:
        """Take note of what is on disk."""
        self.through = max(self.through, through)
        self.newest = max(self.newest, self.through)
        if self.expected is not None:
            self.expected = max(self.expected, self.through + 1)

    def rolled_back(self, batch_no: int) -> None:
        """Take note that every half message from this one on is gone; the number may be used again."""
        self.expected = None
        self.through = min(self.through, batch_no - 1)
        self.newest = min(self.newest, batch_no - 1)
