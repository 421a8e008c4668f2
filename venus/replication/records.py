"""Records at the coordinator: living brokers, and the leadership of each business (VENUS 3.1; RocketMQ part 2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from venus.model import count_phrase
from venus.network.scheduling import Load


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
    records_expected: int  # about; 0 = not known yet
    nbytes: int
    bytes_per_s: int
    seconds_left: int = -1  # about; -1 = not known yet


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LossWindow:
    """Possible loss of an unclean election, until it is closed: offsets from `first_offset` to below `end_offset`.

    -1 = the end is not known yet: the producer reports it, because the source has every change. `verified` are the
    consumer groups whose targets were compared with the source since, and repaired.
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
        """Whether its end is known."""
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

    Members in `in_sync` have everything that was ever acknowledged. While there are fewer of them than `min_in_sync`,
    nothing is acknowledged, so that the members that left last (`last_in_sync`) are complete as well.
    """

    business: str
    term: int
    leader: Member | None
    in_sync: frozenset[Member]
    last_in_sync: frozenset[Member] = frozenset()
    replicas: tuple[str, ...] = ()  # the brokers that should have a replica
    policy: Policy = Policy.CONSISTENCY
    min_in_sync: int = 1
    unclean_terms: tuple[int, ...] = ()  # terms whose leader was not known to be complete, until closed
    losses: tuple[LossWindow, ...] = ()  # their known possible losses
    successor: str = ""  # the broker requested as leader; the leader tries once and clears it
    leaving: tuple[str, ...] = ()  # replicas that the leader removes once all others are in sync
    replicas_wanted: int = 0  # wanted number of replicas; 0 = as in [cluster] of its leader
    min_in_sync_wanted: int = 0  # `min_in_sync` is raised to this once so many are in sync; 0 = it stays
    version: int = field(default=0, compare=False)  # compared by the coordinator; 0 = never stored

    @property
    def candidates(self) -> frozenset[Member]:
        """The members that may lead and are known to have everything that was acknowledged."""
        return self.in_sync if len(self.in_sync) >= self.min_in_sync else self.in_sync | self.last_in_sync
