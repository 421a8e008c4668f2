"""State machine of a producer's stream: which half messages it takes next, and which it asks for again. Pure.

After a damaged or refused half message the stream takes nothing above it until it comes again: it is *expected*. The
producer sends again exactly the half messages that are not acknowledged as on disk. So a half message on disk must
never be expected: the stream would wait for it for ever and skip everything above it.
"""

from __future__ import annotations


class Intake:
    """The numbers of one stream."""

    def __init__(self, through: int) -> None:
        self.through = through  # on disk and acknowledged
        self.newest = through  # handed to the core
        self.expected: int | None = None  # the stream takes nothing above it
        self._submitted = 0
        self._void_through = 0  # submissions up to here came before the newest request to send again

    def can_take(self, batch_no: int) -> bool:
        """Return whether the stream takes a half message now. One above the expected one comes again."""
        return self.expected is None or batch_no <= self.expected

    def record_arrival(self, batch_no: int) -> None:
        """Record that a half message arrived undamaged."""
        if batch_no == self.expected:
            self.expected = None

    def record_submission(self, newest: int = 0) -> int:
        """Record a submission to the core with half messages up to `newest`; return its number."""
        self.newest = max(self.newest, newest)
        self._submitted += 1
        return self._submitted

    def is_void(self, number: int) -> bool:
        """Return whether a newer request to send again covers a submission."""
        return number <= self._void_through

    def request_again(self, batch_no: int) -> int:
        """Expect half messages from this one on; return the first that the producer still has."""
        self.expected = max(batch_no, self.through + 1)
        self.newest = self.expected - 1
        self._void_through = self._submitted
        return self.expected

    def record_persisted(self, through: int) -> None:
        """Record that half messages up to `through` are on disk."""
        self.through = max(self.through, through)
        self.newest = max(self.newest, self.through)
        if self.expected is not None:
            self.expected = max(self.expected, self.through + 1)

    def record_rollback(self, batch_no: int) -> None:
        """Record that every half message from this one on was rolled back; the number may be used again."""
        self.expected = None
        self.through = min(self.through, batch_no - 1)
        self.newest = min(self.newest, batch_no - 1)
