"""A semaphore that refuses instead of blocking, and says what is in use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Slots:
    """At most `limit` at once."""

    limit: int
    used: int = 0

    def enter(self) -> bool:
        """Take a slot; False = there is none."""
        if self.used >= self.limit:
            return False
        self.used += 1
        return True

    def leave(self) -> None:
        """Give a slot back."""
        assert self.used > 0, "left more often than entered"
        self.used -= 1
