"""One broker: a process that passes events to its replica and executes the replica's effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation import faults, states
from tests.simulation.client import Lane
from tests.simulation.coordinator import LEASE_S, describe
from tests.simulation.disk import Disk, decode, encode
from tests.simulation.log_queue import LogQueue
from tests.simulation.process import ProcessHost
from venus.replication import messages as m
from venus.replication.position import LogChanged, Position
from venus.replication.records import Leadership, LiveBroker, Member
from venus.replication.replica import Replica

if TYPE_CHECKING:
    from tests.simulation.world import World


class Host(ProcessHost):
    """A broker with its disk."""

    def __init__(self, world: World, name: str, priority: int) -> None:
        super().__init__(world.loop)
        self.world, self.name, self.priority = world, name, priority
        self.disk = Disk(f"{name}1")
        self._me = Member(broker=name, store=self.disk.store)
        self.stores = 1
        self.stopping = False
        self.draining = False
        self.acknowledges_in: int | None = None  # the term in which this process accepts proposals
        self.pending: dict[int, tuple[int, int]] = {}  # index -> entry that waits for the high watermark
        self.installing: Member | None = None
        self.living_at = float("-inf")  # time of this process's list of living brokers
        self.deaf = False  # to the list of living brokers
        world.coordinator.watchers.append(self._something_changed)

    @property
    def me(self) -> Member:
        if self._me.store != self.disk.store:
            self._me = Member(broker=self.name, store=self.disk.store)
        return self._me

    # -- the process -----------------------------------------------------------------------------------------------

    def start(self, *, begins: bool = False) -> None:
        self.begin()
        content = self.disk.content
        position = Position(
            start=content.start,
            end=content.end,
            durable_end=self.disk.durable_end,
            terms=content.terms,
            high=len(content.applied),
            whole=content.whole,
        )
        self.replica = Replica(self.me, position, patience=self.world.patience, begins=begins)
        self.log = LogQueue(self)
        self.leases = Lane(self.name, "leases", self.loop, self.world.network, self.world.coordinator)
        self.records = Lane(self.name, "records", self.loop, self.world.network, self.world.coordinator)
        self.registered = self.stopping = self.draining = False
        self.living_at = float("-inf")
        self.deaf = False
        self.loop.say(f"{self.me} starts: log {position.start} to {position.end}, high {position.high}")
        self.world.judge.on_start(self)
        self.every(self.world.tick_s, self._tick)
        self.every(1.0, self._keep_lease)

    def end(self) -> None:
        """End the process at once."""
        super().end()
        self.acknowledges_in = self.installing = None
        self.pending.clear()
        self.leases.close()
        self.records.close()

    def _tick(self) -> None:
        self.step(m.Tick())
        self.world.propose(self)

    # -- the coordinator -------------------------------------------------------------------------------------------

    def ask(
        self, lane: Lane, work: Callable[[], Any], done: Callable[[Any, bool, float], None], kind: str = ""
    ) -> None:
        """Call the coordinator; `done` runs only in the process that asked."""
        life = self.life
        lane.call(work, lambda result, answered, sent: self.run(life, done, (result, answered, sent)), kind)

    def lease_again(self) -> None:
        """Acquire a new lease over another connection to the coordinator after the old one has ended."""
        self.leases.close()
        self.leases = Lane(self.name, "leases", self.loop, self.world.network, self.world.coordinator)
        self.registered = False
        self._keep_lease()

    def _keep_lease(self) -> None:
        """Register at the coordinator or renew the lease, then read the record."""
        if len(self.leases) or self.stopping:
            return
        me, coordinator = self.me, self.world.coordinator
        broker = LiveBroker(member=me, address=self.name, priority=self.priority, draining=self.draining)
        registered = self.registered

        def on_lease(held: Any, answered: bool, sent: float) -> None:
            if not answered:
                return
            self.registered = bool(held)
            if held:
                self.step(m.LeaseChanged(until=sent + LEASE_S))

        self.ask(
            self.leases,
            lambda: coordinator.refresh(me) if registered else coordinator.register(broker),
            on_lease,
        )
        self.read()

    def _something_changed(self) -> None:
        """Read the record soon, because the coordinator reports a change."""
        if self.up and self.world.network.passes("@", self.name):
            self.soon(self.world.network.delay(), self.read)

    def read(self) -> None:
        """Read the record, then the living brokers."""
        if len(self.records) > 1:
            return  # one waiting call suffices
        coordinator = self.world.coordinator

        def on_record(record: Leadership, answered: bool, _: float) -> None:
            if answered:
                self.ask(
                    self.records,
                    read_living,
                    lambda live, heard, _: on_both_read(record, live if heard and not self.deaf else None),
                )

        def read_living() -> Any:
            return coordinator.brokers(), self.loop.now

        def on_both_read(record: Leadership, live: Any) -> None:
            self.step(m.RecordRead(leadership=record))
            if live is not None:
                brokers, self.living_at = live
                self.step(m.BrokersRead(brokers=brokers))

        self.ask(self.records, coordinator.read, on_record)

    def swap(self, effect: m.Swap) -> None:
        before, after = effect.before, effect.after
        faults.at_the_worst_moment(self.world, self)

        def on_swap_result(stored: Leadership | None, answered: bool, _: float) -> None:
            if not answered:
                record = self.world.coordinator.record
                happened = record.version > before.version
                name = "swap without an answer that may have happened" if happened else "swap that was lost"
                self.loop.counts[name] += 1
            else:
                states.count_swap(self, before, after, stored)
            self.step(m.SwapResult(before=before, after=after, stored=stored, certain=answered))

        knew = self.living_at
        self.ask(self.records, lambda: self.world.coordinator.swap(before, after, knew), on_swap_result, "swaps")

    # -- the replica -----------------------------------------------------------------------------------------------

    def step(self, event: m.Event) -> None:
        """Pass an event to the replica, check its new state, execute its effects."""
        states.notice(self, event)
        effects = self.replica.step(event, self.loop.now)
        if self.loop.traces and (effects or not isinstance(event, m.Tick | LogChanged)):
            self.loop.say(f"{self.me} {describe_message(event)}")
            for effect in effects:
                self.loop.say(f"    {describe_message(effect)}")
        for effect in effects:
            _DOES[type(effect)](self, effect)
        self.world.judge.on_step(self)

    def _fetch(self, effect: m.SendFetch) -> None:
        event = m.FetchRequest(
            sender=self.me,
            term=effect.term,
            index=effect.index,
            last_term=effect.last_term,
            version=effect.version,
            start=effect.start,
        )
        leader = self.world.hosts[effect.to.broker]
        if not leader.up and self.loop.random.random() < 0.7:
            self.soon(self.world.network.delay(), self.step, m.FetchReply(leader=effect.to, answer=None))
            return
        self._send(effect.to, event)

    def _send(self, to: Member, event: m.Event) -> None:
        target = self.world.hosts[to.broker]
        self.world.network.send(self.name, to.broker, target.take, event)

    def take(self, event: m.Event) -> None:
        """Handle a message if this process runs; whether the broker considers itself healthy is random."""
        if self.up:
            if type(event) is m.BallotRequest:
                self.replica.healthy = self.loop.random.random() < 0.7
            self.run(self.life, self.step, (event,))

    def _reply(self, effect: m.SendReply) -> None:
        answer = effect.answer
        if isinstance(answer, m.Entries):
            content = self.disk.content
            if answer.first < content.start:
                return
            first = answer.first - content.start
            entries = content.entries[first : first + self.loop.random.randint(1, self.world.frame)]
            answer = m.Entries(
                term=answer.term, first=answer.first, high=answer.high, entries=tuple(map(encode, entries))
            )
        self._send(effect.to, m.FetchReply(leader=self.me, answer=answer))

    def _append(self, effect: m.Append) -> None:
        self.log.order(("append", effect.order, effect.first, [decode(data) for data in effect.entries]))

    def _truncate(self, effect: m.Truncate) -> None:
        self.log.order(("truncate", effect.order, effect.end))

    def _advance(self, effect: m.Advance) -> None:
        self.world.judge.on_advance(self, effect.high)

    def _lead(self, effect: m.Lead) -> None:
        self.world.judge.on_lead(self, effect.term)
        faults.at_the_worst_moment(self.world, self)
        self.acknowledges_in = effect.term
        self.log.order(("lead", effect.term))

    def _retire(self, _: m.Retire) -> None:
        self.acknowledges_in = None
        self.pending.clear()

    def _reinstall(self, effect: m.Reinstall) -> None:
        self.world.install(self, effect)

    def _ask_ballot(self, effect: m.RequestBallot) -> None:
        self._send(effect.to, m.BallotRequest(sender=self.me, term=effect.term))

    def _give_ballot(self, effect: m.SendBallot) -> None:
        self._send(effect.to, m.BallotReceived(term=effect.term, ballot=effect.ballot))


_DOES: dict[type, Callable[[Host, Any], None]] = {
    m.SendFetch: Host._fetch,
    m.SendReply: Host._reply,
    m.Append: Host._append,
    m.Truncate: Host._truncate,
    m.Advance: Host._advance,
    m.Lead: Host._lead,
    m.Retire: Host._retire,
    m.Reinstall: Host._reinstall,
    m.Swap: Host.swap,
    m.ReadRecords: lambda host, _: host.read(),
    m.RequestBallot: Host._ask_ballot,
    m.SendBallot: Host._give_ballot,
}


def describe_message(message: Any) -> str:
    """Return a message as one line that is the same in each run; sets are sorted."""
    fields = []
    for name in message.__dataclass_fields__:
        value = getattr(message, name)
        if isinstance(value, Leadership):
            value = f"({describe(value)})"
        elif isinstance(value, dict):
            value = ",".join(map(str, sorted(value)))
        elif hasattr(value, "__dataclass_fields__") and not isinstance(value, Member):
            value = f"({describe_message(value)})"
        fields.append(f"{name}={value}")
    return f"{type(message).__name__} {' '.join(fields)}"
