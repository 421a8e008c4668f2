"""Host of all replicas of a broker: it passes events to them and executes their effects. One thread, no waiting.

`venus.replication` makes the decisions. The host publishes a changed standing before it executes the effects of the
same step, because the commit thread reads the standing when an effect wakes that thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from venus.broker.machine.loss import unrecorded_terms
from venus.broker.replicas.effects import Coordination, Effects, Installations, Logs, Post, Transport
from venus.broker.replicas.placement import (
    ClusterView,
    KnownBrokers,
    Rebalancer,
    ReplicaPlacement,
    can_be_removed,
    clear_successor,
)
from venus.broker.replicas.replicated_logs import ReplicaStanding, ReplicatedLogs
from venus.replication import messages as m
from venus.replication.leaders import LeaderSchedule, plan_elections
from venus.replication.leading import Leading
from venus.replication.messages import HandOverRequest
from venus.replication.position import LogChanged, Position, ReplicationTimes
from venus.replication.records import NEAR_ENTRIES, Ballot, Leadership, LiveBroker, Member
from venus.replication.replica import Replica, silence_refusal

logger = logging.getLogger(__name__)

#: Interval at which this broker updates its own description at the coordinator.
TELL_EVERY_S = 1.0
ELSEWHERE = "this broker has no replica of it"
#: Interval between hand-overs by a draining broker; each delays writes until the successor has everything.
DRAIN_EVERY_S = 5.0
#: Interval between two checks of the balance.
BALANCE_EVERY_S = 1.0
#: A business that this broker has just created counts in its placements until it reads the record, at most this long.
CREATED_S = 10.0
#: A request for another leader is withdrawn after this time if that broker has not caught up.
AWAIT_SUCCESSOR_S = 30.0

Take = Callable[[str, HandOverRequest], None]


class Host:
    """The replicas of one broker. Every method is called in the host's thread.

    `health` returns why another broker should lead instead; empty = this one is healthy. `load` adds this broker's
    load to its description, given the number of its replicas.
    """

    def __init__(
        self,
        me: LiveBroker,
        *,
        logs: Logs,
        shared: ReplicatedLogs,
        transport: Transport,
        coordination: Coordination,
        installations: Installations,
        wanted: ReplicaPlacement,
        patience: ReplicationTimes,
        monotonic: Callable[[], float],
        post: Post,
        health: Callable[[], str] = lambda: "",
        load: Callable[[LiveBroker, int], LiveBroker] = lambda me, _: me,
        rebalance: bool = False,
    ) -> None:
        self.me = me
        self._health, self._load, self._described_at = health, load, float("-inf")
        self.replicas: dict[str, Replica] = {}
        self.brokers = KnownBrokers()
        self._effects = Effects(
            self.brokers,
            self.replicas,
            logs,
            transport,
            coordination,
            post,
            self._make_install_callback(installations),
            self.halt,
        )
        self.troubles = self._effects.troubles
        self._logs, self._shared, self._transport, self._coordination = logs, shared, transport, coordination
        self._wanted, self._installations = wanted, installations
        self._requests = LeaderRequests(me.member, wanted, coordination, self.handle, monotonic, rebalance=rebalance)
        self.records: dict[str, Leadership] = {}  # of every business of the cluster
        self._created: dict[str, tuple[Leadership, float]] = {}  # created here, but not read yet
        self._ranks: dict[str, dict[str, int]] = {}  # the scheduler's order for businesses without a living leader
        self._dropping: set[str] = set()
        self._early: dict[str, dict[Member, m.FetchRequest]] = {}  # fetches of a term whose record was not read yet
        self._patience = patience
        self._monotonic = monotonic
        self._lease_until = m.NO_LEASE
        self._begun: set[str] = set()  # businesses that this process created
        self._halted: set[str] = set()
        shared.subscribe(
            lambda business, position: post(lambda: self.handle(business, position)),
            lambda business, reason: post(lambda: self.halt(business, reason)),
        )

    # -- one event of one replica ----------------------------------------------------------------------------------

    def handle(self, business: str, event: m.Event) -> None:
        """Pass an event to a replica and execute its effects; ignored if there is no replica."""
        replica = self.replicas.get(business)
        if replica is None or business in self._halted:
            return
        effects = replica.step(event, self._monotonic())
        self._publish_standing(business, replica)
        for effect in effects:
            self._effects.carry_out(business, effect)

    def halt(self, business: str, reason: str) -> None:
        """Stop a replica after an error: it fetches nothing, gives no ballot and does not lead."""
        if business not in self._halted:
            logger.critical("%s: %s", business, reason)
        self._halted.add(business)
        self.troubles[business] = reason
        self._shared.publish(business, replace(self._shared.standing(business), leads=False, refusal=reason))

    def _publish_standing(self, business: str, replica: Replica) -> None:
        now = self._monotonic()
        leader = replica.known.leader if replica.known is not None else None
        standing = ReplicaStanding(
            term=replica.known.term if replica.known is not None else 0,
            leads=replica.leads,
            catches_up=replica.catches_up,
            hands_over=replica.leading is not None and replica.leading.handing_over is not None,
            refusal=replica.refusal(now) or silence_refusal(replica, now, self._patience.silent_s),
            leader=self.brokers.address_of(leader) if leader != self.me.member else "",
            high=replica.high,
            leads_until=replica.lease_until if replica.leads else 0.0,
            needed_from=first_needed_entry(replica),
            doubted=unrecorded_terms(replica.known) if replica.known is not None else (),
        )
        before = self._shared.standing(business)
        self._shared.publish(business, standing)
        stuck = replica.leading is not None and replica.leading.handing_over is None and standing.refusal
        if stuck and before.leads and not before.refusal:
            logger.warning("%s: nothing can be written: %s", business, standing.refusal)
            self._logs.refuse(business)

    def _make_install_callback(self, installations: Installations) -> Callable[[str, LiveBroker], None]:
        def on_installed(business: str, log: LogChanged) -> None:
            self.troubles.pop(business, None)
            self.handle(business, m.CopyInstalled(log=log))

        return lambda business, leader: installations.begin(business, leader, partial(on_installed, business))

    # -- from other brokers ----------------------------------------------------------------------------------------

    def on_fetch(self, business: str, event: m.FetchRequest) -> None:
        """Handle a follower's fetch.

        A fetch of a newer term waits until the record was read. Otherwise a follower that learned of the new leader
        before that leader did would be rejected, and retry seconds later, while every write waits for it.
        """
        replica = self.replicas.get(business)
        if replica is None:
            self._transport.reply(event.sender, business, m.NotLeading(term=0))
        elif replica.known is not None and event.term > replica.known.term:
            self._early.setdefault(business, {})[event.sender] = event
            self._coordination.read_soon()
        else:
            self.handle(business, event)

    def _handle_early(self, business: str) -> None:
        """Handle the fetches that waited until the record of their term was read."""
        for event in self._early.pop(business, {}).values():
            self.on_fetch(business, event)

    def on_fetch_reply(self, business: str, event: m.FetchReply) -> None:
        """Handle the reply to a fetch of this broker."""
        if isinstance(event.answer, m.Entries) and business not in self._halted:
            self.troubles.pop(business, None)
        self.handle(business, event)

    def on_connection_lost(self, to: Member) -> None:
        """Handle the loss of a connection: fetches sent to that broker get no reply."""
        for business in list(self.replicas):
            self.handle(business, m.FetchReply(leader=to, answer=None))

    def on_ballot_request(self, business: str, by: Member, term: int) -> Ballot | None:
        """Return the ballot that another broker requests; None = it gets none."""
        self._effects.ballot = None
        self.handle(business, m.BallotRequest(sender=by, term=term))
        return self._effects.ballot

    def on_ballot(self, business: str, term: int, ballot: Ballot) -> None:
        """Handle a requested ballot."""
        self.handle(business, m.BallotReceived(term=term, ballot=ballot))

    # -- from the coordinator --------------------------------------------------------------------------------------

    def on_topology(self, leaderships: Iterable[Leadership], brokers: Iterable[LiveBroker]) -> None:
        """Handle the newest leaderships and living brokers."""
        self.brokers.update(brokers)
        self.records = {leadership.business: leadership for leadership in leaderships}
        self._ranks = plan_elections(self.records.values(), self.brokers.live)
        for leadership in self.records.values():
            if self._has_part_in(leadership):
                self._open_replica(leadership.business)
            self.handle(leadership.business, m.RecordRead(leadership=leadership))
            self._handle_early(leadership.business)
            self._release_replica(leadership)
        for business in list(self.replicas):  # an election needs living brokers that were read after the record
            self._pass_living_brokers(business)
            if business not in self.records:
                self._coordination.ask_forgotten(business)
        self._requests.execute(self.replicas, self.records, self._cluster_view())

    def _pass_living_brokers(self, business: str) -> None:
        self.handle(business, m.BrokersRead(brokers=self.brokers.live, ranks=self._ranks.get(business, {})))

    def _cluster_view(self) -> ClusterView:
        """Return the cluster as it was read last, with the businesses that this broker has created since."""
        now = self._monotonic()
        self._created = {
            business: (record, at)
            for business, (record, at) in self._created.items()
            if business not in self.records and now < at + CREATED_S
        }
        records = [*self.records.values(), *(record for record, _ in self._created.values())]
        return ClusterView(self.brokers.live.values(), records, self.brokers.sites)

    def _has_part_in(self, known: Leadership) -> bool:
        """Whether this broker has a replica, or a removed one that may still lead next."""
        member = self.me.member
        return member.broker in known.replicas or (member in known.candidates and self._logs.has(known.business))

    def on_forgotten_term(self, business: str, term: int) -> None:
        """Remove the data of a business that was forgotten in `term`; 0 = it was not forgotten."""
        replica = self.replicas.get(business)
        known = replica.known if replica is not None else None
        if known is not None and term >= known.term and business not in self.records:
            self.drop(business, "it was forgotten")

    def _release_replica(self, known: Leadership) -> None:
        """Publish that this broker has no replica, and remove the data of one that was taken away."""
        business = known.business
        if business not in self.replicas and self.me.member.broker not in known.replicas:
            self._shared.publish(
                business,
                ReplicaStanding(term=known.term, refusal=ELSEWHERE, leader=self.brokers.address_of(known.leader)),
            )
        if can_be_removed(known, self.me.member) and (business in self.replicas or self._logs.has(business)):
            self.drop(business, ELSEWHERE)

    def drop(self, business: str, why: str) -> None:
        """Close a replica and remove its data."""
        if business in self._dropping:
            return
        logger.info("%s: removing this broker's replica: %s", business, why)
        self._dropping.add(business)
        self.replicas.pop(business, None)
        self.troubles.pop(business, None)
        known = self.records.get(business)
        leader = self.brokers.address_of(known.leader) if known is not None else ""
        self._shared.publish(business, ReplicaStanding(refusal=why, leader=leader))
        if self._logs.has(business):
            self._logs.retire(business, leader)
        self._installations.remove(business, partial(self._on_dropped, business))

    def is_dropping(self, business: str) -> bool:
        """Whether this broker's data of a business is being removed."""
        return business in self._dropping

    def _on_dropped(self, business: str) -> None:
        self._dropping.discard(business)
        self._shared.forget(business)
        self._coordination.read_soon()

    def _open_replica(self, business: str) -> None:
        if business in self.replicas or business in self._dropping:
            return
        log, applied, whole = self._logs.open(business)
        position = Position(high=applied, whole=whole)
        position.update(log)
        self.replicas[business] = Replica(
            self.me.member, position, patience=self._patience, begins=business in self._begun
        )
        self._pass_living_brokers(business)
        self.handle(business, m.LeaseChanged(until=self._lease_until))

    def on_lease(self, until: float) -> None:
        """Set the deadline of this broker's lease; NO_LEASE = it has ended."""
        self._lease_until = until
        for business in list(self.replicas):
            self.handle(business, m.LeaseChanged(until=until))

    def on_swap_result(self, event: m.SwapResult) -> None:
        """Handle the result of a swap."""
        self.handle(event.before.business, event)
        self._handle_early(event.before.business)

    def tick(self) -> None:
        """Advance the timers; called a few times a second."""
        unhealthy = self._health()
        for business, replica in list(self.replicas.items()):
            replica.healthy = not unhealthy
            self.handle(business, m.Tick())
        now = self._monotonic()
        if now >= self._described_at + TELL_EVERY_S:
            self._described_at = now
            me = replace(self.me, unhealthy=unhealthy, installing=self._installations.progress())
            self.publish_self(self._load(me, len(self.replicas)))

    def publish_self(self, me: LiveBroker) -> None:
        """Publish a changed description of this broker."""
        if me != self.me:
            self.me = me
            self._coordination.publish(me)

    # -- businesses ------------------------------------------------------------------------------------------------

    def record_created(self, businesses: Iterable[str]) -> None:
        """Note businesses that this process has created in etcd: they had no earlier leader."""
        self._begun.update(businesses)

    def create(self, business: str, *, term: int = 1) -> None:
        """Create a business that the cluster does not know; this broker leads it first."""
        record = self._wanted.new_record(business, self.me.member, self._cluster_view(), term)
        self._created[business] = record, self._monotonic()
        self._begun.add(business)
        self._coordination.create(record)

    def hand_over(self) -> bool:
        """Hand over every business that this broker leads; False = no other broker can lead any of them."""
        schedule, under_way = LeaderSchedule(self.records.values(), self.brokers.live), False
        for business, replica in sorted(self.replicas.items()):
            known, leading = replica.known, replica.leading
            if known is None or leading is None:
                continue
            able = (known.in_sync & self.brokers.live.keys()) - {self.me.member}
            under_way = under_way or bool(able)
            if able and leading.handing_over not in able:
                self.handle(business, m.HandOverRequest(to=schedule.assign(able)))
        return under_way


def first_needed_entry(replica: Replica) -> int:
    """Return the first entry that a follower lacks; 0 = one has not fetched yet, 2**63 = none, or not leading."""
    known, leading = replica.known, replica.leading
    if known is None or leading is None:
        return 2**63
    ends = {member.broker: progress.end for member, progress in leading.followers.items()}
    return min([2**63, *(ends.get(name, 0) for name in known.replicas if name != replica.me.broker)])


@dataclass(slots=True)
class LeaderRequests:
    """Executes requests of operators and of the balancer after each read of the coordinator, in the host's thread."""

    me: Member
    wanted: ReplicaPlacement
    coordination: Coordination
    take: Take
    monotonic: Callable[[], float]
    rebalance: bool = field(kw_only=True)
    _tried: dict[str, tuple[int, str]] = field(default_factory=dict)  # term and successor of the last attempt
    _awaited: dict[str, tuple[tuple[int, str], float]] = field(default_factory=dict)  # term and successor, since when
    _drained_at: dict[str, float] = field(default_factory=dict)
    _balanced_at: float = float("-inf")
    _rebalancer: Rebalancer = field(init=False)

    def __post_init__(self) -> None:
        self._rebalancer = Rebalancer(self.me.broker)

    def execute(self, replicas: Mapping[str, Replica], records: Mapping[str, Leadership], view: ClusterView) -> None:
        """Execute the requests of the businesses that this broker leads."""
        for replica in list(replicas.values()):
            known, leading = replica.known, replica.leading
            if known is None or leading is None:
                continue
            after = self.wanted.next_record(known, view)
            if after is not None:
                self.coordination.swap(known, after)
            elif leading.handing_over is None:
                self._hand_over(replica, known, leading, view)
        now = self.monotonic()
        if self.rebalance and now >= self._balanced_at + BALANCE_EVERY_S:
            self._balanced_at = now
            self._balance(records, view, now)

    def _balance(self, records: Mapping[str, Leadership], view: ClusterView, now: float) -> None:
        """Request one hand-over, or move one replica, if it is time and this broker should."""
        found = self._rebalancer.next_record(records, view, now)
        if found is not None:
            after, reason = found
            logger.info("%s: %s", after.business, reason)
            self.coordination.swap(records[after.business], after)

    def _hand_over(self, replica: Replica, known: Leadership, leading: Leading, view: ClusterView) -> None:
        business, now = known.business, self.monotonic()
        if known.successor:
            to, request = self._find_able(known, known.successor, view), (known.term, known.successor)
            tried = self._tried.get(business) == request
            if to is None and not tried and self._can_catch_up(known, view, now):
                return
            if to is None or tried:
                self.coordination.swap(known, clear_successor(known))
                return
            self._tried[business] = request
            self.take(business, HandOverRequest(to=to))
            return
        self._tried.pop(business, None)
        self._awaited.pop(business, None)
        own = view.live.get(self.me)
        if own is None or not own.draining or now < self._drained_at.get(business, -DRAIN_EVERY_S) + DRAIN_EVERY_S:
            return
        successor = self._find_successor(replica, known, leading, view)
        if successor is not None:
            self._drained_at[business] = now
            self.take(business, HandOverRequest(to=successor))

    def _can_catch_up(self, known: Leadership, view: ClusterView, now: float) -> bool:
        """Whether the requested leader may still join the in-sync set in time; a draining leader does not wait."""
        broker, own, request = view.by_name.get(known.successor), view.live.get(self.me), (known.term, known.successor)
        if broker is None or broker.draining or known.successor not in known.staying_replicas:
            return False
        if own is None or own.draining or own is broker:
            return False
        if self._awaited.get(known.business, (None, now))[0] != request:
            self._awaited[known.business] = request, now
        return now < self._awaited[known.business][1] + AWAIT_SUCCESSOR_S

    def _find_able(self, known: Leadership, broker: str, view: ClusterView) -> Member | None:
        """Return the broker's member if it can take over, else None."""
        others = (known.in_sync & view.live.keys()) - {self.me}
        return next((member for member in others if member.broker == broker), None)

    def _find_successor(
        self, replica: Replica, known: Leadership, leading: Leading, view: ClusterView
    ) -> Member | None:
        """Return the best successor for a draining broker; None = no follower has nearly caught up."""
        near = replica.position.end - NEAR_ENTRIES
        able = [
            member
            for member, progress in leading.followers.items()
            if progress.end >= near and self._find_able(known, member.broker, view) == member
            if not view.live[member].draining
        ]
        return view.leaders.assign(able) if able else None
