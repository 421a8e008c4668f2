"""Interfaces that the host of the replicas needs; the simulation implements its own.

Every method returns at once. Results reach the host in its thread, by calls of its methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from venus.replication.messages import Answer, Append, LogChanged, SendFetch, Truncate
from venus.replication.records import InstallationProgress, Leadership, LiveBroker, Member

#: Runs a call in the host's thread, in the order of posting; from any thread.
Post = Callable[[Callable[[], None]], None]


class Transport(Protocol):
    """Connections to other brokers. Lost messages are requested again; messages arrive in order."""

    def fetch(self, to: LiveBroker, business: str, fetch: SendFetch) -> None:
        """Send a fetch to a leader; `Host.answered` or `Host.on_connection_lost` follows."""

    def reply(self, to: Member, business: str, answer: Answer) -> None:
        """Reply to a follower's fetch; ignored if the follower is gone."""

    def ask_ballot(self, to: LiveBroker, business: str, term: int) -> None:
        """Request a ballot from a replica; `Host.on_ballot` follows, or nothing."""


class Logs(Protocol):
    """The logs of this broker."""

    def open(self, business: str) -> tuple[LogChanged, int, bool]:
        """Return the state of a log, its applied index, and False if an installation was interrupted.

        Creates an empty log if there is none.
        """

    def has(self, business: str) -> bool:
        """Whether the business has a log."""

    def append(self, business: str, effect: Append, sender: str) -> None:
        """Append a leader's entries; LogChanged with its order follows in any case."""

    def truncate(self, business: str, effect: Truncate) -> None:
        """Remove every entry from an index on; LogChanged with its order follows in any case."""

    def advance(self, business: str) -> None:
        """Apply the entries that the standing reports as safe."""

    def lead(self, business: str, term: int) -> None:
        """Begin a leadership; LogChanged follows."""

    def refuse(self, business: str) -> None:
        """Fail waiting requests with the standing's refusal: this broker leads, but can no longer acknowledge."""

    def retire(self, business: str, leader: str) -> None:
        """Fail waiting requests; `leader` is the address of the present leader, empty if unknown."""

    def recent(self, business: str, first: int) -> tuple[bytes, ...] | None:
        """Return stored entries from `first` on, as many as one frame holds, if they are in memory."""

    def read(self, business: str, first: int, then: Callable[[tuple[bytes, ...]], None]) -> None:
        """Read the same from the disk; `then` is called from any thread."""


class Installations(Protocol):
    """Copies of leaders for replicas that cannot follow."""

    def begin(self, business: str, leader: LiveBroker, done: Callable[[LogChanged], None]) -> None:
        """Install a leader's copy, with retries; `done` follows in the host's thread."""

    def progress(self) -> tuple[InstallationProgress, ...]:
        """Return the progress of the running installations."""

    def remove(self, business: str, done: Callable[[], None]) -> None:
        """Remove all data of a business and cancel its installation; `done` follows in the host's thread."""


class Coordination(Protocol):
    """Calls of the coordinator that do not block the host."""

    def read_soon(self) -> None:
        """Read leaderships and living brokers soon; `Host.seen` follows."""

    def swap(self, before: Leadership, after: Leadership) -> None:
        """Replace a record; `Host.swapped` follows."""

    def create(self, leadership: Leadership) -> None:
        """Store a new business; `Host.seen` follows."""

    def publish(self, me: LiveBroker) -> None:
        """Publish a changed description of this broker."""

    def ask_forgotten(self, business: str) -> None:
        """Ask whether a business without a record was forgotten; `Host.forgotten` follows."""
