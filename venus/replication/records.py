"""Records at the coordinator: living brokers, the leadership of each business, and the choice of the next leader.

VENUS 3.1; RocketMQ part 2; Tensor IV-C. The coordinator offers compare-and-swap and leases, nothing else. Correctness
rests on `swap` alone. A watch is a hint to read again; a result may be old when it arrives.

The next leader is one of the complete replicas. Health only breaks ties among them: excluding sub-healthy brokers
first, as Tensor does, loses acknowledged writes. The scheduler's order (venus/replication/leaders.py) also only breaks
ties: complete replicas have everything acknowledged, and may differ by what was proposed since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import Protocol

from venus.model import count_phrase
from venus.network.scheduling import Load

#: A follower that is behind by less than this is about to be in sync.
NEAR_ENTRIES = 1000


class Policy(StrEnum):
    """Behaviour of a business with too few replicas (VENUS 3.1)."""

    CONSISTENCY = "consistency"  # refuses writes; nothing that was acknowledged is ever lost
    AVAILABILITY = "availability"  # continues with the living brokers; possible losses are recorded


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Member:
    """A broker with its store: a broker that returns with an empty disk is another member."""

    broker: str
    store: str

    def __str__(self) -> str:
        return f"{self.broker}/{self.store}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationProgress:
    """Progress of an installation, as its broker reports it."""

    business: str
    leader: str  # the broker that provides the copy
    records: int  # received, including those of an interrupted attempt
    records_expected: int  # approximate; 0 = not known yet
    nbytes: int
    bytes_per_s: int
    seconds_left: int = -1  # approximate; -1 = not known yet


#: The first characters of `unhealthy` while a lane is degraded.
LANE = "lane "


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBroker:
    """Description of a broker, under a lease that it refreshes."""

    member: Member
    address: str  # HOST:PORT of its gRPC listener
    site: str = ""
    priority: int = 0  # among equals, the broker with the lowest is chosen
    draining: bool = False  # it is about to leave: it gets nothing new, and leads only if no other broker can
    version: str = ""
    unhealthy: str = ""  # why others should lead instead; empty = healthy
    installing: tuple[InstallationProgress, ...] = ()
    load: Load | None = None  # None = not reported
    businesses: int = 0  # number of its replicas
    report: int = 0  # number of the load report

    @property
    def is_degraded(self) -> bool:
        """Whether the broker has partly given up a lane of work because of its load."""
        return self.unhealthy.startswith(LANE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossWindow:
    """Possible loss of an unclean election, until it is closed: offsets from `first_offset` to below `end_offset`.

    -1 = the end is not known yet: the producer reports it, because the source has every change. `verified` are the
    consumer groups whose targets were compared with the source after the election, and repaired.
    """

    term: int
    first_offset: int
    end_offset: int = -1
    first_batch: int = 0
    last_batch: int = 0
    rows: int = 0
    verified: tuple[str, ...] = ()

    @property
    def is_measured(self) -> bool:
        """Whether the end of the window is known."""
        return self.end_offset >= 0

    def __str__(self) -> str:
        if not self.is_measured:
            return f"offsets from {self.first_offset} on, up to where the producer says, once it is back"
        batches = f"batches {self.first_batch} to {self.last_batch}"
        return (
            f"offsets {self.first_offset} to {self.end_offset - 1} ({count_phrase(self.rows, 'change')} in {batches})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """Leadership of a business. Changed only by compare-and-swap on `version`.

    Members in `in_sync` have every acknowledged entry, except what unclean elections lost. While they are fewer than
    `min_in_sync`, nothing is acknowledged, so the members that left last (`last_in_sync`) are complete as well.
    """

    business: str
    term: int
    leader: Member | None
    in_sync: frozenset[Member]
    last_in_sync: frozenset[Member] = frozenset()
    replicas: tuple[str, ...] = ()  # the brokers that should have a replica
    policy: Policy = Policy.CONSISTENCY
    min_in_sync: int = 1
    unclean_terms: tuple[int, ...] = ()  # terms of leaders that may have been incomplete; until closed
    losses: tuple[LossWindow, ...] = ()  # their known possible losses
    successor: str = ""  # the broker requested as leader; the leader waits for it, tries one hand-over, clears this
    leaving: tuple[str, ...] = ()  # replicas that the leader removes once all others are in sync
    replicas_wanted: int = 0  # wanted number of replicas; 0 = as in [cluster] of its leader
    min_in_sync_wanted: int = 0  # `min_in_sync` is raised to this once that many are in sync; 0 = it stays
    version: int = field(default=0, compare=False)  # compared by the coordinator; 0 = never stored

    def without_losses(self, terms: Collection[int]) -> Leadership:
        """Return the record without the loss windows of these terms."""
        return replace(
            self,
            losses=tuple(window for window in self.losses if window.term not in terms),
            unclean_terms=tuple(term for term in self.unclean_terms if term not in terms),
        )

    @property
    def staying_replicas(self) -> tuple[str, ...]:
        """The brokers whose replicas are not leaving."""
        return tuple(name for name in self.replicas if name not in self.leaving)

    @property
    def candidates(self) -> frozenset[Member]:
        """The members that may lead and are known to have everything that was acknowledged."""
        return self.in_sync if len(self.in_sync) >= self.min_in_sync else self.in_sync | self.last_in_sync


class Coordinator(Protocol):
    """Blocking calls with a time limit, from any thread. All raise Unavailable without an answer.

    A `swap` that raises may have been carried out: the caller reads again.
    """

    def register(self, broker: LiveBroker) -> None:
        """Register this broker under a lease; call it again to change the description.

        Raises Refused if another living broker has this id, with another store or address.
        """

    def refresh(self) -> bool:
        """Renew the lease; False = it has ended: call `register` again."""

    @property
    def lease(self) -> int:
        """Id of this broker's lease. A new id means that the broker may have had no lease for a time."""

    def leave(self) -> None:
        """Revoke the lease: the broker stops cleanly."""

    def brokers(self) -> tuple[LiveBroker, ...]:
        """Return the brokers whose leases have not ended."""

    def drain(self, broker: str, *, draining: bool) -> None:
        """Set or remove the draining mark of a broker; the mark is independent of its lease."""

    def draining_brokers(self) -> frozenset[str]:
        """Return the brokers with a draining mark."""

    def save_newest_write(self, store: str, sequence: int) -> None:
        """Store the newest durable write of a store; the stored number never decreases."""

    def newest_write(self, store: str) -> int:
        """Return the newest known durable write of a store; 0 = none is known.

        A store without that write was restored from a backup: the in-sync sets do not refer to it.
        """

    def leaderships(self) -> tuple[Leadership, ...]:
        """Return every business of the cluster."""

    @property
    def invalid(self) -> tuple[str, ...]:
        """Problems of records that were unusable at the last listing; an unusable record does not affect the others."""

    def read(self, business: str) -> Leadership | None:
        """Return the record of a business; None = the cluster does not know it."""

    def create(self, leadership: Leadership) -> Leadership | None:
        """Store a new business; return it with its version, None if there is one already.

        Its term is raised above those of an earlier business of this name.
        """

    def swap(self, before: Leadership, after: Leadership) -> Leadership | None:
        """Replace `before` by `after`; return it with its version, None if `before` is no longer current."""

    def remove(self, leadership: Leadership) -> bool:
        """Remove a business that was forgotten; False if `leadership` is no longer current.

        Its term is kept: a later business of this name begins with a higher one, so that entries of the old one, which
        brokers may still have, are never mistaken for those of the new one.
        """

    def last_forgotten_term(self, business: str) -> int:
        """Return the last term of a business of this name that was forgotten; 0 = none is known.

        Brokers remove their data of that term or an older one. A record that cannot be read was not forgotten.
        """

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed`, from any thread, when something may have changed. Best effort."""

    def close(self) -> None:
        """Close every connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """State of a replica's log on disk, as a candidate reports it."""

    member: Member
    last_term: int
    end: int
    high: int
    healthy: bool = True


def eligible_members(known: Leadership, live: Iterable[Member]) -> frozenset[Member]:
    """Return the members to request ballots from; empty = no member may lead now."""
    living = frozenset(live)
    clean = known.candidates & living
    if clean or known.policy is Policy.CONSISTENCY:
        return clean
    return frozenset(member for member in living if member.broker in known.replicas)


def explain_hindrance(known: Leadership, live: Iterable[Member]) -> str:
    """Return why writes are refused until a broker returns; empty = the living brokers can accept them."""
    living = frozenset(live)
    leads = known.leader is not None and known.leader in living
    if not leads and not eligible_members(known, living):
        missing = ", ".join(sorted({member.broker for member in known.candidates}))
        return f"no broker leads, and no complete replica is alive: {missing}"
    able = sum(member.broker in known.replicas or member == known.leader for member in living)
    if able < known.min_in_sync:
        return f"{able} of {len(known.replicas)} replicas are alive, {known.min_in_sync} are needed"
    return ""


def choose_leader(
    known: Leadership,
    ballots: Mapping[Member, Ballot],
    live: Mapping[Member, LiveBroker],
    ranks: Mapping[str, int],
) -> Leadership | None:
    """Return the leadership of the next term; None = no member may lead. `ranks` is the scheduler's order."""
    clean = [ballots[member] for member in known.candidates if member in ballots]
    if clean:
        end = max(ballot.end for ballot in clean) - NEAR_ENTRIES
        chosen = min(
            clean,
            key=lambda ballot: (
                *_suitability(ballot, live[ballot.member], end),
                ballot.member != known.leader,  # it has restarted within its lease
                *_preference(ballot, live[ballot.member], ranks),
            ),
        )
    elif known.policy is Policy.AVAILABILITY and ballots:
        chosen = min(ballots.values(), key=lambda ballot: _unclean_order(ballot, live[ballot.member]))
    else:
        return None
    # above the terms of all logs: records may be lost if the coordinator was restored from a backup
    term = max([known.term, *(ballot.last_term for ballot in ballots.values())]) + 1
    rest = frozenset[Member]()
    if clean and known.min_in_sync > 1:  # a leader alone acknowledges nothing, so the others stay complete
        rest = known.candidates - {chosen.member}
    return replace(
        known,
        term=term,
        leader=chosen.member,
        in_sync=frozenset({chosen.member}),
        last_in_sync=rest,
        unclean_terms=known.unclean_terms if clean else (*known.unclean_terms, term),
    )


def _suitability(ballot: Ballot, broker: LiveBroker, near_end: int) -> tuple[bool, ...]:
    """Return a sort key: brokers that stay, are healthy and nearly up to date come first."""
    return broker.draining, not ballot.healthy, ballot.end < near_end


def _preference(ballot: Ballot, broker: LiveBroker, ranks: Mapping[str, int]) -> tuple[object, ...]:
    """Return a sort key for equally suitable brokers: the scheduler's order, then the longer log."""
    return ranks.get(ballot.member.broker, inf), -ballot.last_term, -ballot.end, broker.priority, ballot.member


def _unclean_order(ballot: Ballot, broker: LiveBroker) -> tuple[object, ...]:
    """Return a sort key for an unclean election: the newest term first, then the longest log."""
    return (-ballot.last_term, -ballot.end, not ballot.healthy, broker.draining, broker.priority, ballot.member)
