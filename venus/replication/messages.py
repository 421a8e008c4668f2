"""What a replica is told (events) and what it wants done (effects); the two ends of `Replica.step`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from venus.replication.election import Ballot
from venus.replication.records import Leadership, LiveBroker, Member
from venus.replication.terms import TermCache

# -- what a leader answers to a fetch ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """Stored entries from `first` on, as many as there are (none = nothing new), and the high watermark."""

    term: int
    first: int
    high: int
    entries: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverge:
    """The follower's log is no prefix of the leader's.

    `index` and `last_term` are those of the fetch: an answer that comes late must not cut a log that has changed since.
    `known_term` is the leader's newest term that is not above `last_term`; its entries end at `end`.
    """

    term: int
    index: int
    last_term: int
    known_term: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """The leader's log starts behind what the follower needs: it has to install the full data."""

    term: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLeading:
    """The one who was asked does not lead in the term of the fetch; `term` is the newest that it knows."""

    term: int


Answer: TypeAlias = Entries | Diverge | Trimmed | NotLeading

#: Until when the lease of a broker holds that has none.
NO_LEASE = float("-inf")

# -- events --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The record of the business, as it was read from the coordinator; it may be old."""

    leadership: Leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class Living:
    """The brokers whose leases have not ended, as they were read from the coordinator."""

    brokers: Mapping[Member, LiveBroker]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """The lease of this broker holds until `until`, counted from before its refresh was sent; NO_LEASE = it has ended.

    That is said also by a broker with a new lease: its clock need not show that there was none in between.
    """

    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChanged:
    """The log as it is now: entries from `start` to `end`, those below `durable_end` on disk.

    `done` is the `order` of the newest Append or Truncate that was carried out or given up; 0 = none.
    """

    start: int
    end: int
    durable_end: int
    terms: TermCache
    done: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The full data of a leader is installed, and the log begins behind it: everything below `log.end` is applied."""

    log: LogChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A follower asks for entries from `index` on; the one before it, of `last_term`, is on its disk.

    `version` is that of the record which the follower knew then.
    """

    follower: Member
    term: int
    index: int
    last_term: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The leader's answer to our fetch; None = the line broke, or it took too long."""

    leader: Member
    answer: Answer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BallotAsked:
    """Somebody runs an election for `term`."""

    by: Member
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BallotCame:
    """A replica's ballot for `term`."""

    term: int
    ballot: Ballot


@dataclass(frozen=True, slots=True, kw_only=True)
class Swapped:
    """The coordinator's answer: `stored`, or refused (None); `certain` False = it may have happened."""

    before: Leadership
    after: Leadership
    stored: Leadership | None
    certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Let another member lead, without a refused acknowledgement."""

    to: Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed."""


Event: TypeAlias = (
    Seen
    | Living
    | Leased
    | LogChanged
    | Installed
    | Fetched
    | Answered
    | BallotAsked
    | BallotCame
    | Swapped
    | HandOver
    | Tick
)

# -- effects -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Ask the leader for entries; its answer, or the lack of one, comes back as Answered."""

    to: Member
    term: int
    index: int
    last_term: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answer a follower's fetch. For Entries, put in what the log has from `first` on, as far as one frame goes."""

    to: Member
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Append stored entries at `first`, check each, have them on disk; LogChanged comes back.

    Nothing is done, but for LogChanged, if the log ends elsewhere by now, or if an entry's seal is broken. Orders to
    the log are carried out one after the other; LogChanged says which was the newest.
    """

    order: int
    first: int
    entries: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """Take back every entry from `end` on; LogChanged comes back."""

    order: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """Everything up to `high` is safe: apply it."""

    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """Lead from now on: append an entry that begins `term`, then whatever is proposed."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """Do not lead any more: refuse what is proposed and whoever waits for the high watermark."""

    leader: Member | None  # who does, as far as is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinstall:
    """The log cannot be followed from here: begin again with the leader's full data; Installed comes back.

    Tried again until it has been done, or until another Reinstall names another leader. From the first change to the
    store until the last one is on disk, a process that starts says `whole=False` of its position.
    """

    leader: Member
    reason: str
    diverged: bool = False  # this log has applied entries that the leader does not have


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Ask the coordinator to replace `before` by `after`; Swapped comes back."""

    before: Leadership
    after: Leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Read the record of the business and the living brokers; Seen and Living come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskBallot:
    """Ask a replica for its ballot."""

    to: Member
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBallot:
    """Answer who runs an election."""

    to: Member
    term: int
    ballot: Ballot


Effect: TypeAlias = (
    Fetch | Reply | Append | Truncate | Advance | Lead | Retire | Reinstall | Swap | Read | AskBallot | GiveBallot
)
