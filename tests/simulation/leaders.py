"""Many businesses on brokers at several sites: which broker leads each business, and where its replicas are.

There are no logs: a member of the in-sync set is complete, and another replica becomes complete after a while.
Placement, elections and balance are the product's code, and work on records that each broker reads late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from tests.simulation.judge import Violation
from tests.simulation.loop import Loop
from venus.broker.replicas.host import AWAIT_SUCCESSOR_S
from venus.broker.replicas.placement import ClusterView, Rebalancer, ReplicaPlacement, clear_successor
from venus.replication import leading, records
from venus.replication.leaders import AGAIN_S, UNEVEN, Move, is_uneven, plan_elections, plan_moves
from venus.replication.records import Ballot, Leadership, LiveBroker, Member

READ_S = 1.0
LEASE_S = 2.0
#: Maximum age of the records on which a broker acts.
LATE_S = LEASE_S + READ_S + 0.5
FAULTS_S = 60.0
BUSINESSES = 12
UNEVEN_S = 20.0
CONVERGED_S = 600.0


class Broker:
    """A broker process that reads the records every second and acts on them, perhaps late."""

    def __init__(self, world: LeaderWorld, name: str, site: str, after_s: float = 0.0) -> None:
        self.world, self.name, self.site, self.store, self.life = world, name, site, 1, 0
        self.draining = self.drained = self.degraded = self.sick = self.up = False
        if after_s:
            world.loop.after(after_s, self.start_first)
        else:
            self.start()

    @property
    def me(self) -> Member:
        return Member(broker=self.name, store=f"{self.name}{self.store}")

    @property
    def description(self) -> LiveBroker:
        reason = "lane 4 (details) is degraded" if self.degraded else "sub-healthy" if self.sick else ""
        return LiveBroker(
            member=self.me, address=f"{self.name}:1", site=self.site, draining=self.draining, unhealthy=reason
        )

    def start(self) -> None:
        self.up, self.life = True, self.life + 1
        self.whole_at: dict[str, float] = {}  # time at which its replica has caught up
        self.sites: dict[str, str] = {}
        self.awaited: dict[tuple[str, int], float] = {}  # since when a leader has been requested, by business and term
        self.rebalancer = Rebalancer(self.name, UNEVEN_S)
        self.world.loop.after(self.world.loop.random.random(), self._read, self.life)

    def start_first(self) -> None:
        """Start as a new broker, unless the broker has been started before."""
        if not self.up:
            self.start()

    def end(self) -> None:
        self.up = False
        self.world.loop.after(LEASE_S, self.world.expire, self.me)

    def _read(self, life: int) -> None:
        """Read the records, and act on them a little later; repeat that."""
        if self.life == life and self.up:
            self.world.live[self.me] = self.description
            records, live = dict(self.world.records), dict(self.world.live)
            loop = self.world.loop
            loop.after(0.2 * loop.random.random(), self._act, life, records, live)
            loop.after(READ_S * (0.5 + loop.random.random() / 2), self._read, life)

    def _act(self, life: int, records: dict[str, Leadership], live: dict[Member, LiveBroker]) -> None:
        """Act on the records of an earlier read: lead, elect, create and balance businesses."""
        if self.life != life or not self.up:
            return
        self.sites |= {member.broker: broker.site for member, broker in live.items()}
        view = ClusterView(live.values(), records.values(), self.sites)
        ranks = plan_elections(records.values(), live)
        for business, known in records.items():
            if known.leader == self.me:
                self._lead_business(known, view)
            elif known.leader not in live and self.name in known.replicas:
                self._elect(known, live, ranks[business])
        found = self.rebalancer.next_record(records, view, self.world.loop.now)
        if found is not None:
            self._balance(records[found[0].business], found[0])
        if len(self.world.records) < BUSINESSES and self.world.loop.random.random() < self.world.creates:
            self._create(view)

    def _balance(self, before: Leadership, after: Leadership) -> None:
        """Write the record of a hand-over or of a replica's move for balance."""
        if after.successor != before.successor:
            self.world.judge_move(self.name, after.business)
            self.world.swap(before, after)
        elif self.world.swap(before, after):
            self.world.judge_replica_move(after)

    def _create(self, view: ClusterView) -> None:
        """Create a new business with this broker as leader."""
        name = f"x{len(self.world.records)}"
        record = self.world.wanted.new_record(name, self.me, view, 1)
        if name not in self.world.records:
            self.world.records[name] = replace(record, version=1)
            self.world.judge_new(record, view)

    def _elect(self, known: Leadership, live: dict[Member, LiveBroker], ranks: dict[str, int]) -> None:
        """Elect a leader for a business whose leader is gone."""
        voters = [self.world.find(member) for member in records.eligible_members(known, live)]
        ballots = {
            voter.me: Ballot(member=voter.me, last_term=known.term, end=5, high=1, healthy=not voter.sick)
            for voter in voters
            if voter is not None and voter.up
        }
        after = records.choose_leader(known, ballots, live, ranks)
        if after is not None and self.world.swap(known, replace(after, successor="")):
            self.world.judge_election(known, after, ballots)

    def _lead_business(self, known: Leadership, view: ClusterView) -> None:
        """Write the next record of a business that this broker leads, if any is due."""
        after = self.world.wanted.next_record(known, view)
        if after is None and known.successor:
            after = self._hand_over(known, view)
        if after is None:
            after = self._leave(known, view) or self._maintain(known, view)
        if after is not None:
            self.world.swap(known, after)

    def _hand_over(self, known: Leadership, view: ClusterView) -> Leadership | None:
        """Return the record with the requested leader, or without the request; None while that leader catches up."""
        able = [member for member in known.in_sync & view.live.keys() if member.broker == known.successor]
        since = self.awaited.setdefault((known.business, known.term), self.world.loop.now)
        late = self.draining or self.world.loop.now - since > AWAIT_SUCCESSOR_S
        if not able and known.successor in known.replicas and known.successor in view.by_name and not late:
            return None
        if self.world.loop.now - since < self.world.hand_over_s and not late:
            return None  # the next leader catches up with the last writes
        fails = self.world.loop.random.random() < self.world.failing or self.world.is_immovable(known)
        self.world.counts["hand-over"] += 1
        if not able or fails:
            return clear_successor(known)
        return replace(known, term=known.term + 1, leader=able[0], successor="")

    def _leave(self, known: Leadership, view: ClusterView) -> Leadership | None:
        """Return the record with another leader, if this broker drains or no longer has a replica."""
        able = [
            member
            for member in known.in_sync & view.live.keys()
            if member != self.me and member.broker in known.replicas and not view.live[member].draining
        ]
        if not able or not (self.draining or self.name not in known.replicas):
            return None
        return replace(known, term=known.term + 1, leader=view.leaders.assign(able))

    def _maintain(self, known: Leadership, view: ClusterView) -> Leadership | None:
        """Return the record with another in-sync set."""
        now, present = self.world.loop.now, frozenset(view.live)
        gone = leading.members_behind(known, present)
        back = set()
        for name in sorted(set(known.replicas) - {member.broker for member in known.in_sync}):
            broker = view.by_name.get(name)
            found = self.world.find(broker.member) if broker is not None else None
            if found is not None and found.up:
                ready = found.whole_at.setdefault(known.business, now + self.world.loop.random.choice((1.0, 5.0)))
                back |= {found.me} if now >= ready else set()
        return leading.with_members(known, gone, frozenset(back)) if gone or back else None


class LeaderWorld:
    """Brokers, records and faults of one history, which its seed determines."""

    def __init__(self, seed: int, say: Callable[[str], None] | None = None) -> None:
        self.loop = Loop(seed, say)
        self.counts: Counter[str] = self.loop.counts
        random = self.loop.random
        self.records: dict[str, Leadership] = {}
        self.live: dict[Member, LiveBroker] = {}
        self.creates, self.failing = random.choice((0.1, 0.4)), random.choice((0.0, 0.2))
        #: Name of a business whose hand-over for balance always fails, or of a broker whose hand-overs all fail.
        self.immovable = {3: "x0", 7: "a"}.get(seed % 8, "")
        #: Duration of a hand-over; in most histories it ends before a broker reads the records again.
        self.hand_over_s = 6.0 if seed % 10 == 5 else 0.0
        names = "abcdefgh"[: random.choice((3, 3, 4, 6, 8))]
        sites = random.choice((("",), ("east", "west"), ("east", "west", "north"), ("east", "west", "")))
        minimum = random.choice((2, 2, 1))
        self.wanted = ReplicaPlacement(replicas=random.choice((2, 3, 3)), min_in_sync=minimum)
        self._moved_at = self._even_at = 0.0
        self._even_since: float | None = None
        self._missing_since: dict[str, float] = {}  # start time by missing part
        self._asked: dict[str, tuple[int, str, int, float]] = {}  # the last hand-over: term, broker, process life, time
        late = (
            names[-1] if seed % 4 == 2 and len(names) > self.wanted.replicas else ""
        )  # joins when every business has all replicas
        self.brokers = {
            name: Broker(self, name, random.choice(sites), FAULTS_S / 2 if name == late else 0.0) for name in names
        }

    def find(self, member: Member) -> Broker | None:
        """Return the broker that has this store, or None."""
        broker = self.brokers[member.broker]
        return broker if broker.me == member else None

    def expire(self, member: Member) -> None:
        """End a broker's lease, unless it has restarted."""
        broker = self.find(member)
        if broker is None or not broker.up:
            self.live.pop(member, None)

    def swap(self, before: Leadership, after: Leadership) -> bool:
        """Replace a record, if it is still the current one."""
        current = self.records[before.business]
        if current.version != before.version:
            return False
        self.loop.say(f"{after.business}: {after}")
        self._judge_replicas(current, after)
        self.records[before.business] = replace(after, version=current.version + 1)
        return True

    # -- invariants ------------------------------------------------------------------------------------------------

    def judge_new(self, record: Leadership, view: ClusterView) -> None:
        """Raise if a draining broker gets a new business or replica while another broker can have it."""
        assert record.leader is not None
        self.counts["new business"] += 1
        leader = view.by_name.get(record.successor or record.leader.broker)
        if leader is not None and leader.draining and not all(other.draining for other in view.live.values()):
            raise Violation("a draining broker gets nothing new", f"{record.business}: {leader}")

    def judge_election(self, before: Leadership, after: Leadership, ballots: dict[Member, Ballot]) -> None:
        """Raise unless the new leader is complete, and healthy if any candidate is."""
        assert after.leader is not None
        self.counts["election"] += 1
        if after.leader not in before.candidates:
            raise Violation("only complete members lead", f"{after.business}: {after.leader}")
        if not ballots[after.leader].healthy and not self.live[after.leader].draining:
            others = [one for one in ballots.values() if one.healthy and not self.live[one.member].draining]
            if others:
                raise Violation("an unhealthy broker is the last choice", f"{after.business}: {after.leader}")

    def _judge_replicas(self, before: Leadership, after: Leadership) -> None:
        """Check that a record takes no replica away too early, and not the leader's."""
        taken = set(before.replicas) - set(after.replicas)
        if taken and not {member.broker for member in after.in_sync} >= set(after.replicas):
            raise Violation("a replica is taken away once all others are in sync", f"{after.business}: {taken}")
        if taken:
            self.counts["replica replaced"] += 1
        leader = self.brokers[after.leader.broker] if after.leader is not None else None
        if leader is not None and leader.name in set(after.leaving) - set(before.leaving) and not leader.drained:
            raise Violation("the leader's replica stays", after.business)

    def judge_move(self, by: str, business: str) -> None:
        """Raise unless a broker hands over its own business, no part is missing, and the last hand-over has ended."""
        self.counts["hand-over for balance"] += 1
        known, now = self.records[business], self.loop.now
        if known.leader is not None and known.leader.broker != by and now - self._moved_at > READ_S:
            raise Violation("a broker hands over what it leads", f"{by}: {business}")
        if missing := self._find_lasting_faults():
            raise Violation("nothing is handed over while a replica is missing or a lane is degraded", str(missing))
        others = [
            other
            for other, one in self.records.items()
            if one.successor and other != business and other in self._asked  # a new business does not count
        ]
        if others and now - self._moved_at > LATE_S:
            raise Violation("one hand-over at a time", f"{business} and {others}")
        if now - self._even_at < UNEVEN_S - LATE_S:
            raise Violation("a short imbalance is left alone", business)
        life = self.brokers[by].life  # a restarted process has forgotten which hand-overs failed
        term, asker, asker_life, at = self._asked.get(business, (0, "", 0, 0.0))
        if (term, asker, asker_life) == (known.term, by, life) and now - at < AGAIN_S:
            raise Violation("a hand-over that failed is not repeated at once", business)
        self._asked[business] = known.term, by, life, now
        self._moved_at = now

    def judge_replica_move(self, after: Leadership) -> None:
        """Raise unless one replica moves at a time, while no part is missing."""
        self.counts["replica moved for balance"] += 1
        if missing := self._find_lasting_faults():
            raise Violation("no replica moves for balance while another one is missing or moves", str(missing))

    def _find_lasting_faults(self) -> list[str]:
        """Return the parts that have been missing for so long that every broker knows it.

        Each part has its own time: a broker may read the end of one fault before the beginning of the next.
        """
        now = self.loop.now
        return [what for what in self._find_missing() if now - self._missing_since.get(what, now) > LATE_S]

    def _find_missing(self) -> set[str]:
        """Return the missing brokers, leaders and replicas."""
        alive = {broker.me for broker in self.brokers.values() if broker.up} & self.live.keys()
        found = {f"a lane of {broker.name}" for broker in self.brokers.values() if broker.degraded and broker.up}
        for known in self.records.values():
            if known.leader not in alive:
                found.add(f"the leader of {known.business}")
            in_sync = {member.broker for member in known.in_sync & alive}
            found |= {f"{known.business} at {name}" for name in set(known.replicas) - in_sync}
            found |= {f"{known.business} leaves {name}" for name in known.leaving}
        return found

    def _look(self) -> None:
        """Record the missing parts, and the time at which the cluster was balanced."""
        since, now = self._missing_since, self.loop.now
        self._missing_since = {what: since.get(what, now) for what in self._find_missing()}
        if plan_moves(self.records.values(), self.live):
            self._even_since = None
        else:
            self._even_since = now if self._even_since is None else self._even_since
            if now - self._even_since >= LATE_S:  # for so long that every broker knows it
                self._even_at = now
        self.loop.after(0.2, self._look)

    # -- a history -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run faults for a while, then end them and check the result."""
        self.loop.at(0.0, self._look)
        self.loop.at(5.0, self._cause_fault)
        self.loop.run_until(FAULTS_S)
        for broker in self.brokers.values():
            broker.draining = broker.degraded = broker.sick = False
            if not broker.up:
                broker.start()
        if self._is_lost():
            self.counts["no complete store is left"] += 1
            return
        if not self.loop.run_until(self.loop.now + CONVERGED_S, self._is_settled):
            self._explain()
        if self.wanted.replicas == len(self.brokers):
            self._lose_one()

    def _lose_one(self) -> None:
        """Kill a broker while no part is missing: its businesses spread, because every broker has a replica."""
        for move in plan_moves(self.records.values(), self.live):  # as `venus cluster balance` does
            known = self.records[move.business]
            self.swap(known, replace(known, term=known.term + 1, leader=self.brokers[move.target].me))
        self.loop.run_until(self.loop.now + 2 * READ_S)
        dead = self.loop.random.choice(list(self.brokers.values()))
        dead.end()
        self.loop.run_until(self.loop.now + LEASE_S + 3 * READ_S)
        led = Counter(known.leader.broker for known in self.records.values() if known.leader in self.live)
        counts = [led[name] for name in self.brokers if name != dead.name]
        self.counts["a broker died while all was well"] += 1
        if max(counts) - min(counts) > 2:
            raise Violation("the businesses of a dead broker spread over the survivors", str(counts))

    def _cause_fault(self) -> None:
        """Cause a random fault at a random broker, and plan the next one."""
        if self.loop.now >= FAULTS_S:
            return
        random, broker = self.loop.random, self.loop.random.choice(list(self.brokers.values()))
        what = random.choice(("kill", "kill", "replace", "drain", "degrade", "sicken", "site"))
        up = sum(other.up for other in self.brokers.values())
        if what in ("kill", "replace") and broker.up and up > len(self.brokers) // 2 + 1:
            broker.end()
            self.loop.after(random.choice((0.5, 4.0, 15.0)), self._return, broker, what == "replace")
        elif what == "drain":
            broker.draining, broker.drained = not broker.draining, True
        elif what == "degrade":
            broker.degraded = not broker.degraded
        elif what == "sicken":
            broker.sick = not broker.sick
        self.counts[f"fault: {what}"] += 1
        self.loop.after(random.expovariate(1 / 6.0), self._cause_fault)

    def _return(self, broker: Broker, empty: bool) -> None:
        """Start a broker that is down, with an empty disk if no business would be lost by that."""
        if not broker.up:
            if empty and not any({broker.me} >= known.candidates for known in self.records.values()):
                self.live.pop(broker.me, None)
                broker.store += 1
            broker.start()

    def _is_lost(self) -> bool:
        """Return whether a business has lost every complete replica."""
        stores = {broker.me for broker in self.brokers.values()}
        return any(not known.candidates & stores for known in self.records.values())

    def _is_settled(self) -> bool:
        """Return whether every business is led and in sync, and nothing is left to balance."""
        records = self.records.values()
        stores = {broker.me for broker in self.brokers.values()}
        return (
            all(known.leader in stores and not known.leaving for known in records)
            and all({member.broker for member in known.in_sync} == set(known.replicas) for known in records)
            and not self._crowded_businesses()
            and not self._is_a_broker_unused()
            and not (is_uneven(records, self.live) and self._possible_moves())
            and self.loop.now > FAULTS_S + UNEVEN_S
        )

    def is_immovable(self, known: Leadership) -> bool:
        """Return whether every requested hand-over of a business fails."""
        return self.immovable in (known.business, known.leader.broker if known.leader is not None else "")

    def _possible_moves(self) -> list[Move]:
        """Return the hand-overs that would balance the cluster, without those that always fail."""
        records = self.records.values()
        return plan_moves(
            [replace(known, in_sync=frozenset()) if self.is_immovable(known) else known for known in records], self.live
        )

    def _is_a_broker_unused(self) -> bool:
        """Return whether a broker has far fewer replicas than the others, although sites allow more."""
        counts = Counter(name for known in self.records.values() for name in known.replicas)
        alone = len({broker.site for broker in self.brokers.values()}) == 1
        return alone and any(counts[name] * UNEVEN * len(self.brokers) < counts.total() for name in self.brokers)

    def _crowded_businesses(self) -> list[str]:
        """Return the businesses with two replicas at one site while another site has a broker without one."""
        view = ClusterView(self.live.values(), sites={name: broker.site for name, broker in self.brokers.items()})
        sites = {view.site_of(name) for name in self.brokers}
        return [
            known.business
            for known in self.records.values()
            if len({view.site_of(name) for name in known.replicas}) < min(len(sites), len(known.replicas))
        ]

    def _explain(self) -> None:
        """Raise the invariant that keeps the cluster from settling."""
        if found := self._crowded_businesses():
            raise Violation("replicas are at different sites", str(found))
        if self._is_a_broker_unused():
            raise Violation(
                "replicas move to a new broker", str(Counter(n for k in self.records.values() for n in k.replicas))
            )
        unled = [known for known in self.records.values() if known.leader not in self.live]
        if unled:
            raise Violation("each business is led", str(unled[0]))
        behind = [known for known in self.records.values() if {m.broker for m in known.in_sync} != set(known.replicas)]
        if behind:
            raise Violation("all replicas are complete", str(behind[0]))
        raise Violation("no broker leads far more than the others", str(self._possible_moves()))
