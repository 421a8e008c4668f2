"""What the host of the replicas needs from outside; the simulation puts its own in their place.

Every method returns at once. What comes of it is told to the host, in the host's thread, by its methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from venus.replication.messages import Answer, Append, Fetch, LogChanged, Truncate
from venus.replication.records import Installing, Leadership, LiveBroker, Member

#: Runs a call in the host's thread, in the order of posting; from any thread.
Post = Callable[[Callable[[], None]], None]


class Transport(Protocol):
    """The lines to other brokers. What is lost on the way is asked for again; nothing arrives in another order."""

    def fetch(self, to: LiveBroker, business: str, fetch: Fetch) -> None:
        """Ask a leader for entries; `Host.answered` or `Host.line_lost` follows."""

    def answer(self, to: Member, business: str, answer: Answer) -> None:
        """Answer a follower's fetch; nothing happens if it has gone."""

    def ask_ballot(self, to: LiveBroker, business: str, term: int) -> None:
        """Ask a replica for its ballot; `Host.ballot_came` follows, or nothing."""


class Logs(Protocol):
    """The logs of this broker."""

    def open(self, business: str) -> tuple[LogChanged, int, bool]:
        """Return where a log stands, up to where it is applied, and False if an installation was interrupted.

        If there is no log, an empty one begins.
        """

    def has(self, business: str) -> bool:
        """Whether there is a log."""

    def append(self, business: str, effect: Append, sender: str) -> None:
        """Append a leader's entries; LogChanged with its order follows in any case."""

    def truncate(self, business: str, effect: Truncate) -> None:
        """Take back every entry from an end on; LogChanged with its order follows in any case."""

    def advance(self, business: str) -> None:
        """Apply what the standing says is safe."""

    def lead(self, business: str, term: int) -> None:
        """Begin a leadership; LogChanged follows."""

    def refuse(self, business: str) -> None:
        """Refuse whoever waits, in the words of the standing: this broker leads, and cannot acknowledge any more."""

    def retire(self, business: str, leader: str) -> None:
        """Refuse whoever waits; `leader` is the address of the one who leads now, if that is known."""

    def recent(self, business: str, first: int) -> tuple[bytes, ...] | None:
        """Return stored entries from `first` on, as many as one frame holds, if they are in memory."""

    def read(self, business: str, first: int, then: Callable[[tuple[bytes, ...]], None]) -> None:
        """Read the same from the disk; `then` is called from any thread."""


class Installations(Protocol):
    """Copies of leaders for replicas that cannot follow."""

    def begin(self, business: str, leader: LiveBroker, done: Callable[[LogChanged], None]) -> None:
        """Install a leader's copy; `done` follows in the host's thread, however often it has to be tried."""

    def progress(self) -> tuple[Installing, ...]:
        """Return how far the installations under way have come."""

    def remove(self, business: str, done: Callable[[], None]) -> None:
        """Remove all that there is of a business, an installation under way included; `done` follows likewise."""


class Coordination(Protocol):
    """The coordinator, whose calls take their time."""

    def read_soon(self) -> None:
        """Read who lives and who leads; `Host.seen` follows."""

    def swap(self, before: Leadership, after: Leadership) -> None:
        """Replace a record; `Host.swapped` follows."""

    def create(self, leadership: Leadership) -> None:
        """Store a new business; `Host.seen` follows."""

    def say(self, me: LiveBroker) -> None:
        """Say something else of this broker."""

    def ask_forgotten(self, business: str) -> None:
        """Ask whether a business that has no record any more was forgotten; `Host.forgotten` follows."""
