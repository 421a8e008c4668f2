"""Events and effects of `Replica.step`: its inputs, and what the host has to carry out.

The host gives a replica one event at a time, and carries out its effects in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from venus.replication.position import LogChanged
from venus.replication.records import Ballot, Leadership, LiveBroker, Member

# -- replies of a leader to a fetch --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """Stored entries from `first` on (none = nothing new), and the high watermark."""

    term: int
    first: int
    high: int
    entries: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsDiverge:
    """The follower's log is no prefix of the leader's.

    `index` and `last_term` are those of the fetch: a late reply must not truncate a log that has changed since.
    `known_term` is the leader's newest term that is not above `last_term`; its entries end at `end`.
    """

    term: int
    index: int
    last_term: int
    known_term: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTrimmed:
    """The leader's log starts after the entries that the follower needs: it must install the full data."""

    term: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLeading:
    """The receiver does not lead in the term of the fetch; `term` is the newest one that it knows."""

    term: int


Answer: TypeAlias = Entries | LogsDiverge | LogTrimmed | NotLeading

#: Deadline of a broker without a lease.
NO_LEASE = float("-inf")

# -- events --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRead:
    """The record of the business was read from the coordinator; it may be old."""

    leadership: Leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersRead:
    """The brokers with a lease were read from the coordinator.

    `ranks` orders brokers of equal health and nearly equal logs in the next election: the smallest first.
    """

    brokers: Mapping[Member, LiveBroker]
    ranks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseChanged:
    """The lease of this broker holds until `until`, counted from before its refresh was sent; NO_LEASE = it has ended.

    NO_LEASE is also sent before a new lease, because the broker's clock may not show the time without a lease.
    """

    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyInstalled:
    """The full data of a leader is installed, and the log begins after it: everything below `log.end` is applied."""

    log: LogChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A follower fetches entries from `index` on; the one before it, of `last_term`, is on its disk.

    `version` is that of the follower's record. `start` is 0 except in a fetch ahead: there the reply begins at this
    entry, because the leader has sent this follower everything before it, in this term.
    """

    sender: Member
    term: int
    index: int
    last_term: int
    version: int
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchReply:
    """The leader's reply to a fetch of this replica; None = the connection broke or timed out."""

    leader: Member
    answer: Answer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BallotRequest:
    """Another broker runs an election for `term`."""

    sender: Member
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BallotReceived:
    """A replica's ballot for `term`."""

    term: int
    ballot: Ballot


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapResult:
    """Result of a swap. `stored` is the new record, None = refused; `certain` False = the swap may have happened."""

    before: Leadership
    after: Leadership
    stored: Leadership | None
    certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverRequest:
    """Request to hand the leadership over to another member, so that no acknowledgement fails."""

    to: Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed."""


Event: TypeAlias = (
    RecordRead
    | BrokersRead
    | LeaseChanged
    | LogChanged
    | CopyInstalled
    | FetchRequest
    | FetchReply
    | BallotRequest
    | BallotReceived
    | SwapResult
    | HandOverRequest
    | Tick
)

# -- effects -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFetch:
    """Fetch entries of the leader; its reply, or the lack of one, returns as a FetchReply."""

    to: Member
    term: int
    index: int
    last_term: int
    version: int
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReply:
    """Reply to a follower's fetch.

    If the reply is an Entries, the host adds the entries from `first` on that fit into a frame. It reads them before
    any later order changes the log.
    """

    to: Member
    answer: Answer
    is_bulk: bool = False  # the frame may be larger


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Append stored entries at `first`, verify each, make them durable; LogChanged returns.

    Only LogChanged follows if the log ends elsewhere by now, or if an entry's seal is broken. Orders to the log are
    executed one after the other; LogChanged names the newest.
    """

    order: int
    first: int
    entries: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """Remove every entry from `end` on; LogChanged returns."""

    order: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """Everything up to `high` is safe: apply it."""

    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """Start to lead: append the entry that begins `term`, then proposals."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """Stop leading: reject proposals, and fail requests that wait for the high watermark."""

    leader: Member | None  # the new leader, None = unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinstall:
    """The replica cannot follow from its log: install the leader's full data; CopyInstalled returns.

    The host retries until it succeeds, or until another Reinstall names another leader. From the first change of the
    store until the last one is durable, a process that starts reports `whole=False` in its position.
    """

    leader: Member
    reason: str
    diverged: bool = False  # this log has applied entries that the leader does not have


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Ask the coordinator to replace `before` by `after`; a SwapResult returns."""

    before: Leadership
    after: Leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecords:
    """Read the record of the business and the living brokers; a RecordRead and a BrokersRead return, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBallot:
    """Request a ballot from a replica."""

    to: Member
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBallot:
    """Send a ballot to the broker that runs an election."""

    to: Member
    term: int
    ballot: Ballot


Effect: TypeAlias = (
    SendFetch
    | SendReply
    | Append
    | Truncate
    | Advance
    | Lead
    | Retire
    | Reinstall
    | Swap
    | ReadRecords
    | RequestBallot
    | SendBallot
)
