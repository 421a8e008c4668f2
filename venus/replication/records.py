"""What the coordinator keeps: which brokers live, and who leads each business (VENUS 3.1; RocketMQ part 2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from venus.model import counted
from venus.network.scheduling import Load


class Policy(StrEnum):
    """What a business does when too few of its replicas are there (VENUS 3.1)."""

    CONSISTENCY = "consistency"  # refuses writes; nothing that was acknowledged is ever lost
    AVAILABILITY = "availability"  # goes on with whoever lives; what may be lost is named


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Member:
    """A broker with the store that it has: a broker that comes back with an empty disk is another member."""

    broker: str
    store: str

    def __str__(self) -> str:
        return f"{self.broker}/{self.store}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installing:
    """How far the installation of a replica has come, as its broker says."""

    business: str
    leader: str  # the broker whose copy it is
    records: int  # that have come, those of an interrupted attempt included
    records_expected: int  # about; 0 = not known yet
    nbytes: int
    bytes_per_s: int
    seconds_left: int = -1  # about; -1 = not known yet


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBroker:
    """What a broker says of itself, under a lease that it refreshes."""

    member: Member
    address: str  # HOST:PORT of its gRPC listener
    site: str = ""
    priority: int = 0  # the lower, the sooner it is chosen, among equals
    draining: bool = False  # it is about to leave: nothing new is placed on it, it leads only if nobody else can
    version: str = ""
    unhealthy: str = ""  # why others should rather lead; empty = it is healthy
    installing: tuple[Installing, ...] = ()
    load: Load | None = None  # None = it does not say
    businesses: int = 0  # of which it has a replica
    report: int = 0  # goes up with each word about its load


@dataclass(frozen=True, slots=True, kw_only=True)
class LossWindow:
    """What an unclean election may have lost, until it is closed: offsets from `first_offset` to below `end_offset`.

    -1 = the end is not known yet: the producer says it, because the source is the record. `verified` are the consumer
    groups whose targets were compared with the source since, and repaired.
    """

    term: int
    first_offset: int
    end_offset: int = -1
    first_batch: int = 0
    last_batch: int = 0
    rows: int = 0
    verified: tuple[str, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether its end is known."""
        return self.end_offset >= 0

    def __str__(self) -> str:
        if not self.measured:
            return f"offsets from {self.first_offset} on, up to where the producer says, once it is back"
        batches = f"batches {self.first_batch} to {self.last_batch}"
        return f"offsets {self.first_offset} to {self.end_offset - 1} ({counted(self.rows, 'change')} in {batches})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """Who leads a business. Changed by compare-and-swap on `version` alone.

    `in_sync` have everything that was ever acknowledged. While there are fewer of them than `min_in_sync`, nothing is
    acknowledged, so that those who left last (`last_in_sync`) have everything as well.
    """

    business: str
    term: int
    leader: Member | None
    in_sync: frozenset[Member]
    last_in_sync: frozenset[Member] = frozenset()
    replicas: tuple[str, ...] = ()  # the brokers that shall have a replica
    policy: Policy = Policy.CONSISTENCY
    min_in_sync: int = 1
    unclean_terms: tuple[int, ...] = ()  # terms whose leader was not known to have everything, until that is closed
    losses: tuple[LossWindow, ...] = ()  # what they may have lost, as far as it is known
    successor: str = ""  # the broker that shall lead; the leader tries it once, and takes the wish back
    leaving: tuple[str, ...] = ()  # replicas that the leader takes away once all others are in sync
    replicas_wanted: int = 0  # how many brokers shall have a replica; 0 = as many as [cluster] of its leader says
    min_in_sync_wanted: int = 0  # `min_in_sync` becomes this once so many are in sync; 0 = it stays
    version: int = field(default=0, compare=False)  # what the coordinator compares; 0 = never stored

    @property
    def candidates(self) -> frozenset[Member]:
        """Whoever may lead and is known to have everything that was acknowledged."""
        return self.in_sync if len(self.in_sync) >= self.min_in_sync else self.in_sync | self.last_in_sync
