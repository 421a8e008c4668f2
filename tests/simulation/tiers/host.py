"""A broker set of one broker: the product's core and its network membership, on a disk in memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.brokers.core import SimulatedCore
from tests.simulation.brokers.disk import BUSINESS, BrokerDisk
from tests.simulation.brokers.memory_store import MemoryDisk
from tests.simulation.brokers.process import ThreadedProcess
from tests.simulation.tiers.clients import TierClients
from tests.simulation.tiers.replicator import SimulatedReplicator
from tests.simulation.tiers.upstream import SimulatedPoller
from venus.broker.machine.business import Business
from venus.broker.mirrors import network_membership as identity
from venus.broker.mirrors import topology_position
from venus.broker.mirrors.network_membership import NetworkMembership
from venus.broker.mirrors.upstream_selection import SelectionTimes
from venus.config import BrokerSettings, ClusterSettings
from venus.network import row_filters
from venus.rpc.address import NONE
from venus.wire import broker_pb2

if TYPE_CHECKING:
    from tests.simulation.tiers.world import TierWorld

#: Small, so that histories of seconds trim queues, expire leases and forget absent consumers.
SETTINGS = BrokerSettings(
    free_bytes_min=1 << 20,
    buffer_bytes_max=8 << 10,
    retain_bytes=600,
    snapshot_lease_s=5.0,
    consumer_ttl_s=4.0,
    review_after_s=0.6,
)
#: Short, so that a set leaves its upstream and returns within histories of seconds.
TIMES = SelectionTimes(
    back_after_s=3.0, looks_apart_s=15.0, stale_s=1.5, failing_s=1.0, fit_first_s=1.0, moves_apart_s=1.0, trial_s=1.0
)
LABELS = {"one": ("items",), "both": ("items", "others")}


class TierHost(ThreadedProcess):
    """A set with its disk."""

    def __init__(self, world: TierWorld, name: str, tier: str, level: int, upstream: tuple[str, ...]) -> None:
        super().__init__(world.loop)
        self.world, self.name = world, name
        self.tier, self.level, self.upstream = tier, level, upstream
        self.labels: tuple[str, ...] = ()
        self.where: dict[str, str] = {}  # predicates, by table
        self.disk = BrokerDisk(name)
        self.free_bytes = 1 << 30
        self.acknowledges_in: int | None = None
        self.core: SimulatedCore
        self._graves: list[Any] = []  # cores of killed processes: no code of theirs may run at their collection

    # -- the process -----------------------------------------------------------------------------------------------

    def clock_us(self) -> int:
        """Return the time of this machine's clock."""
        return int((1_700_000_000 + self.loop.now) * 1e6)

    @property
    def business(self) -> Business | None:
        """Return the business, or None while this process has none."""
        return self.core.catalogue._stored.get(BUSINESS) if self.up else None

    @property
    def tables(self) -> frozenset[int]:
        """Return the ids of this set's tables."""
        return frozenset({1}) if self.labels == ("one",) else frozenset({1, 2})

    @property
    def stale_labels(self) -> bool:
        """Return whether its data was filled with other labels."""
        mirror = self.business.committed.mirror if self.business is not None else None
        wanted = topology_position.select_tables(LABELS, self.labels, BUSINESS)
        return mirror is not None and mirror.only != wanted

    @property
    def stale_where(self) -> bool:
        """Return whether its data was filled with other predicates."""
        mirror = self.business.committed.mirror if self.business is not None else None
        return mirror is not None and not row_filters.is_same(mirror.where, row_filters.parse_filters(self.where))

    def start(self) -> None:
        """Start a process with the data on the disk."""
        self.begin()
        self.core = SimulatedCore(self, self.disk.memory, None, SETTINGS)  # type: ignore[arg-type]
        self.clients = TierClients(self)  # type: ignore[arg-type]
        self.core.start()
        self.disk.host = self  # type: ignore[assignment]
        self.network = self._place()
        self.loop.say(f"{self.name} starts: {self.disk.content}")
        self.world.judge.on_start(self)
        self.every(0.1, self.core.tick)
        self.every(0.3, self.clients.tick)
        self.core.publisher.add_listener(lambda _b, _o: self._on_commit())

    def _place(self) -> NetworkMembership:
        """Return the set's membership in the network, as its process begins it."""
        cluster: dict[str, Any] = {"set": self.name, "tier": self.tier, "level": self.level}
        cluster |= {"upstream": tuple(f"{name}:1" for name in self.upstream), "labels": self.labels}
        cluster["where"] = {BUSINESS: self.where} if self.where else {}
        network = NetworkMembership(
            self.core,
            ClusterSettings(**cluster),
            LABELS,
            proof=NONE,
            monotonic=lambda: self.loop.now,
            thread_class=SimulatedReplicator,  # type: ignore[arg-type]
            look=partial(SimulatedPoller, self),
            times=TIMES,
        )
        if network._looks is not None:
            network.set_network_ids(identity.read_network_ids(self.core))
            network._looks.start()
        else:
            network.set_network_ids(identity.home_network_ids(self.core))
        return network

    def _on_commit(self) -> None:
        try:
            self.world.judge.check_batches(self)
        except Exception as found:  # an exception of a commit listener would not stop the broker
            self.loop.after(0.0, self.fails, found)
        self.soon(0.0005, self.clients.deliver)

    def end(self) -> None:
        """End the process at once."""
        if self.up:
            self._graves.append((self.core, self.network))
        super().end()
        self.disk.host = None

    def fails(self, error: BaseException) -> None:
        """Raise the error, because no store may fail in these histories."""
        raise error

    def replace_disk(self, memory: MemoryDisk) -> MemoryDisk:
        """Give the machine another disk; return the old one."""
        old, self.disk = self.disk.memory, BrokerDisk(self.name)
        self.disk.memory = memory
        return old

    def status(self) -> broker_pb2.BrokerStatus:
        """Return the set's status: its position in the network, and the state of each business."""
        status = broker_pb2.BrokerStatus()
        for business in self.core.catalogue.list_stored():
            entry = status.businesses.add(business=business.name, next_offset=business.committed.next_offset)
            for figures in business.tables.values():
                entry.tables.add(namespace=figures.namespace, name=figures.name)
        self.network.add_to_status(status)
        return status
