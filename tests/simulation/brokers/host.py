"""One broker: the product's core and its host of replicas, with a simulated network, disk and coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation import faults, states
from tests.simulation.brokers.clients import Clients
from tests.simulation.brokers.core import SimulatedCore
from tests.simulation.brokers.disk import BUSINESS, BrokerDisk
from tests.simulation.brokers.installer import SimulatedInstaller
from tests.simulation.brokers.process import ThreadedProcess
from tests.simulation.client import Lane
from tests.simulation.coordinator import describe
from tests.simulation.host import Host, describe_message
from tests.simulation.judge import Violation
from venus.broker.machine.business import Business
from venus.broker.replicas.host import Host as ReplicaHost
from venus.broker.replicas.placement import ReplicaPlacement
from venus.broker.replicas.replicated_logs import CoreLogs, ReplicatedLogs
from venus.broker.snapshot import scrub
from venus.errors import Corruption
from venus.replication import messages as m
from venus.replication.position import LogChanged, Position
from venus.replication.records import Leadership, LiveBroker, Member
from venus.replication.replica import Replica

if TYPE_CHECKING:
    from tests.simulation.brokers.world import BrokerWorld

SPACE_BYTES = 1 << 30
#: Bytes of a log that are kept for a replica that lags.
BACKLOG_BYTES = 3000


class BrokerHost(ThreadedProcess, Host):
    """A broker with its disk."""

    world: BrokerWorld
    disk: BrokerDisk  # type: ignore[assignment]
    core: SimulatedCore

    def __init__(self, world: BrokerWorld, name: str, priority: int) -> None:
        super().__init__(world, name, priority)
        self.disk = BrokerDisk(f"{name}1")
        self.clock_ahead_s = 0.0
        self.free_bytes = SPACE_BYTES
        self._no_replica = Replica(self.me, Position(), patience=world.patience)

    # -- the process -----------------------------------------------------------------------------------------------

    def clock_us(self) -> int:
        """Return the time of this machine's clock."""
        return int((1_700_000_000 + self.loop.now + self.clock_ahead_s) * 1e6)

    @property
    def business(self) -> Business | None:
        """Return this process's business, or None while it has none or installs a copy."""
        return self.core.catalogue._stored.get(BUSINESS) if self.up else None

    def start(self, *, begins: bool = False) -> None:
        self.begin()
        self.disk.host = None
        self._no_replica = Replica(self.me, Position(), patience=self.world.patience)
        self.shared = ReplicatedLogs(backlog_bytes=BACKLOG_BYTES)
        self.core = SimulatedCore(self, self.disk.memory, self.shared)
        self.clients = Clients(self)
        self.leases = Lane(self.name, "leases", self.loop, self.world.network, self.world.coordinator)
        self.records = Lane(self.name, "records", self.loop, self.world.network, self.world.coordinator)
        try:
            self.core.start()
            if self.world.damaged == self.disk.store:
                self._scrub()
        except Corruption as error:
            self._on_damage(error)
            return
        self.disk.host = self
        self._make_host(begins)
        self.registered = self.stopping = self.draining = False
        self.living_at = float("-inf")
        self.loop.say(f"{self.me} starts: {self.disk.content}")
        self.world.judge.on_start(self)
        self.every(self.world.tick_s, self._tick)
        self.every(1.0, self._keep_lease)
        self.every(0.3, self.clients.tick)
        self.core.publisher.add_listener(lambda _b, _o: self.soon(0.0005, self.clients.deliver))

    def _make_host(self, begins: bool) -> None:
        me = LiveBroker(member=self.me, address=self.name, priority=self.priority)
        self.product = _JudgedHost(
            self,
            me,
            logs=_JudgedLogs(self),
            shared=self.shared,
            transport=_Lines(self),
            coordination=_Coordination(self),
            installations=SimulatedInstaller(self),
            wanted=ReplicaPlacement(replicas=1),
            patience=self.world.patience,
            monotonic=lambda: self.loop.now,
            post=lambda call: self.soon(0.0003, call),
        )
        if begins:
            self.product.record_created([BUSINESS])

    def end(self) -> None:
        """End the process at once."""
        self.life += 1
        self.up = False
        self.acknowledges_in = None
        self.disk.host = None
        self.leases.close()
        self.records.close()

    def fails(self, error: BaseException) -> None:
        """End the process, as a store failure does; an operator restarts it."""
        self.loop.counts["the store failed"] += 1
        self.loop.say(f"{self.me} fails: {error}")
        if isinstance(error, Corruption):
            self._on_damage(error)
        elif self.up:
            self.end()
            self.disk.memory.fails_after = None
            self.loop.after(0.5, self._again, self.life)

    def _again(self, life: int) -> None:
        """Start the next process, unless one runs already."""
        if not self.up and self.life == life:
            self.start()

    def _on_damage(self, error: Corruption) -> None:
        """Replace a damaged store: the broker restarts empty, as another member."""
        if self.world.damaged != self.disk.store:
            raise Violation("damage is found where it was done", f"{self.me}: {error}")
        self.loop.counts["damage was found"] += 1
        self.loop.say(f"{self.me} is damaged: {error}")
        self.world.damaged = ""
        self.end()
        self.stores += 1
        self.disk = BrokerDisk(f"{self.name}{self.stores}")
        self.loop.after(0.5, self._again, self.life)

    def _scrub(self) -> None:
        """Search for damage that the start did not find: flipped bits. Raises Corruption."""
        for business in self.core.catalogue.list_stored():
            for _ in scrub.check_business(self.core.store, business, keep=False):
                pass
            for _ in business.log.read_entries(self.core.store, business.log.start, business.log.end):
                pass
        raise Violation("damage is reported", str(self.me))

    def lines_to(self, to: Member, call: Callable[[BrokerHost], None]) -> None:
        """Call another broker over the network."""
        target = self.world.hosts[to.broker]

        def on_arrival() -> None:
            if target.up:
                target.run(target.life, call, (target,))

        self.world.network.send(self.name, to.broker, on_arrival)

    def _tick(self) -> None:
        self.product.tick()
        self.core.tick()

    # -- the coordinator -------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read the record, then the living brokers."""
        if len(self.records) > 1:
            return
        coordinator = self.world.coordinator

        def on_record(record: Leadership, answered: bool, _: float) -> None:
            if answered:
                self.ask(
                    self.records, read_living, lambda live, heard, _: on_both_read(record, live) if heard else None
                )

        def read_living() -> Any:
            return coordinator.brokers(), self.loop.now

        def on_both_read(record: Leadership, live: Any) -> None:
            brokers, self.living_at = live
            self.product.on_topology((record,), brokers.values())

        self.ask(self.records, coordinator.read, on_record)

    # -- the replica -----------------------------------------------------------------------------------------------

    @property
    def replica(self) -> Replica:
        """Return the replica, or an empty one until the cluster state has been read."""
        return self.product.replicas.get(BUSINESS, self._no_replica) if self.up else self._no_replica

    @replica.setter
    def replica(self, _: Replica) -> None:
        raise AssertionError("the product makes it")

    def step(self, event: m.Event) -> None:
        """Give the replica an event."""
        match event:
            case m.SwapResult():
                self.product.on_swap_result(event)
            case m.LeaseChanged():
                self.product.on_lease(event.until)
            case _:
                self.product.handle(BUSINESS, event)

    def order(self, _: tuple[Any, ...]) -> None:
        """Trim soon, as far as the retention rules allow; it has the interface of `order` of the abstract log."""
        self.core.upkeep._maintained_at = min(self.core.upkeep._maintained_at, self.loop.now - 1.0)

    @property
    def log(self) -> BrokerHost:  # type: ignore[override]
        """Return the object that takes the faults' orders for the log: this one."""
        return self


class _JudgedHost(ReplicaHost):
    """The product's host, with each event also passed to the judge and written to the history."""

    def __init__(self, host: BrokerHost, me: LiveBroker, **parts: Any) -> None:
        super().__init__(me, **parts)
        self._host = host

    def handle(self, business: str, event: m.Event) -> None:
        host = self._host
        if business in self.replicas:
            states.notice(host, event)
            if host.loop.traces and not isinstance(event, m.Tick | LogChanged):
                host.loop.say(f"{host.me} {describe_message(event)}")
        super().handle(business, event)
        if business in self.replicas and host.up:
            host.world.judge.on_step(host)

    def drop(self, business: str, why: str) -> None:
        super().drop(business, why)
        self._host.world.judge.on_reinstall(self._host)


class _JudgedLogs(CoreLogs):
    """The product's logs, with each order passed to the judge first."""

    def __init__(self, host: BrokerHost) -> None:
        super().__init__(
            host.core,
            host.shared,
            me=str(host.me),
            background=lambda call: host.soon(0.002, call),
            retired=lambda _, error: host.clients.end(error),
        )
        self._host = host

    def truncate(self, business: str, effect: m.Truncate) -> None:
        host = self._host
        host.loop.counts["log truncated"] += 1
        host.world.judge.on_truncate(host, effect.end)
        super().truncate(business, effect)

    def advance(self, business: str) -> None:
        host = self._host
        host.world.judge.on_advance(host, host.replica.high)
        super().advance(business)

    def lead(self, business: str, term: int) -> None:
        host = self._host
        host.world.judge.on_lead(host, term)
        host.acknowledges_in = term
        faults.at_the_worst_moment(host.world, host)
        super().lead(business, term)

    def retire(self, business: str, leader: str) -> None:
        self._host.acknowledges_in = None
        super().retire(business, leader)


class _Lines:
    """A simulated `Transport` to other brokers."""

    def __init__(self, host: BrokerHost) -> None:
        self._host, self._world = host, host.world

    def fetch(self, to: LiveBroker, business: str, effect: m.SendFetch) -> None:
        host = self._host
        leader = self._world.hosts[to.member.broker]
        event = m.FetchRequest(
            sender=host.me,
            term=effect.term,
            index=effect.index,
            last_term=effect.last_term,
            version=effect.version,
            start=effect.start,
        )
        if not leader.up and host.loop.random.random() < 0.7:
            host.soon(self._world.network.delay(), host.product.on_connection_lost, to.member)
        else:
            self._send(to.member, lambda other: other.product.on_fetch(business, event))

    def reply(self, to: Member, business: str, answer: m.Answer) -> None:
        if isinstance(answer, m.Entries):
            answer = self._mangle(answer)
        event = m.FetchReply(leader=self._host.me, answer=answer)
        self._send(to, lambda other: other.product.on_fetch_reply(business, event))

    def _mangle(self, answer: m.Entries) -> m.Entries:
        """Send only the first entries, and occasionally flip a bit."""
        random, world = self._host.loop.random, self._world
        entries = list(answer.entries[: random.randint(1, world.frame)])
        if entries and random.random() < world.flipping:
            at = random.randrange(len(entries))
            flipped = bytearray(entries[at])
            flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
            entries[at] = bytes(flipped)
            self._host.loop.counts["a bit of a shipped entry flipped"] += 1
        return m.Entries(term=answer.term, first=answer.first, high=answer.high, entries=tuple(entries))

    def ask_ballot(self, to: LiveBroker, business: str, term: int) -> None:
        me = self._host.me

        def ask(other: BrokerHost) -> None:
            other.replica.healthy = other.loop.random.random() < 0.7
            ballot = other.product.on_ballot_request(business, me, term)
            if ballot is not None:
                answer = ballot
                other.lines_to(me, lambda back: back.product.on_ballot(business, term, answer))

        self._send(to.member, ask)

    def _send(self, to: Member, call: Callable[[BrokerHost], None]) -> None:
        """Call another broker over the network."""
        self._host.lines_to(to, call)


class _Coordination:
    """A simulated `Coordination` with the coordinator."""

    def __init__(self, host: BrokerHost) -> None:
        self._host = host

    def read_soon(self) -> None:
        self._host.read()

    def swap(self, before: Leadership, after: Leadership) -> None:
        self._host.loop.say(f"{self._host.me} swaps {describe(before)} for {describe(after)}")
        self._host.swap(m.Swap(before=before, after=after))

    def publish(self, me: LiveBroker) -> None:
        """Do nothing: no test reads the progress of an installation here."""

    def ask_forgotten(self, business: str) -> None:
        """Do nothing: the business's record always exists."""

    def create(self, leadership: Leadership) -> None:
        raise AssertionError(f"the business is there: {leadership}")
