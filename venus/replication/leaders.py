"""Which broker should lead which business: elections after a death, hand-overs, balancing (Minos 3.4.2).

Every broker reads the same records, so all of them compute the same plan. The businesses of a dead broker therefore
spread over all survivors, although each business has its own election. Correctness does not depend on it: a plan from
old records only balances less well.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from venus.network.scheduling import grade_loads
from venus.replication.records import Leadership, LiveBroker, Member

#: The busiest broker hands over without a request once it has led more than this multiple of the mean for this long.
UNEVEN = 1.5
UNEVEN_S = 600.0
#: Interval to the next attempt after a hand-over that failed.
AGAIN_S = 60.0
#: Weight of a load grade: more than any number of businesses.
GRADE = 1 << 32

Live = Mapping[Member, LiveBroker]


class LeaderSchedule:
    """Order of the living brokers by load grade and number of businesses they lead; counts what it assigns."""

    def __init__(self, records: Iterable[Leadership], live: Live) -> None:
        self._live = live
        self._grades = grade_loads({member.broker: broker.load for member, broker in live.items()})
        self.led = Counter(_expected_leader(known, self._grades) for known in records if known.leader in live)

    def rank(self, broker: str) -> int:
        """Return the rank of a broker: the smallest is the best, and equally good brokers share one."""
        return self._grades.get(broker, 0) * GRADE + self.led[broker]

    def assign(self, candidates: Collection[Member], first: Member | None = None) -> Member:
        """Return the best living candidate, and count one more business that it leads.

        Among equals `first` is chosen, then the first name.
        """

        def order(member: Member) -> tuple[object, ...]:
            """Return a sort key of a candidate: the best comes first."""
            broker = self._live[member]
            rank = self.rank(member.broker)
            return broker.draining, bool(broker.unhealthy), rank, broker.priority, member != first, member

        chosen = min(candidates, key=order)
        self.led[chosen.broker] += 1
        return chosen


def _expected_leader(known: Leadership, living: Collection[str]) -> str:
    """Return the broker that leads after the requested hand-over."""
    return known.successor if known.successor in living else _leader_name(known)


def plan_elections(records: Collection[Leadership], live: Live) -> dict[str, dict[str, int]]:
    """Return for each business without a living leader the ranks of its candidates, by broker.

    The plan of each business counts the expected leaders of the earlier plans. So one broker does not win all elections
    at the same time.
    """
    orphans = sorted((known for known in records if known.leader not in live), key=lambda known: known.business)
    if not orphans:
        return {}
    schedule = LeaderSchedule(records, live)
    plans = {}
    for known in orphans:
        able = [member for member in live if member.broker in known.replicas or member in known.candidates]
        plans[known.business] = {member.broker: schedule.rank(member.broker) for member in able}
        if complete := [member for member in able if member in known.candidates] or able:
            schedule.assign(complete)
    return plans


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A planned hand-over, and the numbers of led businesses before it."""

    business: str
    source: str
    target: str
    source_leads: int
    target_leads: int
    mean: float

    @property
    def reason(self) -> str:
        """Why the business moves."""
        return f"{self.source} leads {self.source_leads}, {self.target} {self.target_leads}, the mean is {self.mean:g}"


class _Balance:
    """Numbers of led businesses, and which of them could be handed over from broker to broker."""

    def __init__(self, records: Iterable[Leadership], live: Live) -> None:
        self._grades = grade_loads({member.broker: broker.load for member, broker in live.items()})
        names = sorted(member.broker for member, broker in live.items() if not broker.draining)
        self.led = dict.fromkeys(names, 0)
        self._targets: dict[str, set[str]] = {}  # by business
        self._edges: dict[str, dict[str, dict[str, None]]] = {name: {} for name in names}
        for known in sorted(records, key=lambda known: known.business):
            if known.leader is None or known.leader not in live or known.leader.broker not in self.led:
                continue
            able = {member.broker for member in known.in_sync if member in live}
            able &= set(known.staying_replicas) & set(names)
            self._targets[known.business] = able | {known.leader.broker}
            self.led[known.leader.broker] += 1
            self._connect(known.business, known.leader.broker)

    @property
    def mean(self) -> float:
        """The mean number of businesses that a broker leads."""
        return sum(self.led.values()) / max(1, len(self.led))

    def find_path(self) -> list[str]:
        """Return a path from a broker that leads too many to one that leads at least two fewer; [] = none is needed."""
        for source in sorted(self.led, key=lambda name: (-self.led[name], name)):
            before: dict[str, str] = {source: ""}
            waiting = deque([source])
            while waiting:
                at = waiting.popleft()
                for target in sorted(self._edges[at], key=lambda name: (self.led[name], name)):
                    if target in before or not self._edges[at][target] or self._grades[target] > self._grades[at]:
                        continue
                    before[target] = at
                    if self.led[target] <= self.led[source] - 2:
                        path = [target]
                        while before[path[0]]:
                            path.insert(0, before[path[0]])
                        return path
                    waiting.append(target)
        return []

    def move(self, source: str, target: str) -> Move:
        """Hand the first possible business over."""
        business = next(iter(self._edges[source][target]))
        move = Move(
            business=business,
            source=source,
            target=target,
            source_leads=self.led[source],
            target_leads=self.led[target],
            mean=round(self.mean, 1),
        )
        for other in self._targets[business] - {source}:
            del self._edges[source][other][business]
        self.led[source] -= 1
        self.led[target] += 1
        self._connect(business, target)
        return move

    def _connect(self, business: str, leader: str) -> None:
        """Record to which brokers the leader could hand a business over."""
        for other in self._targets[business] - {leader}:
            self._edges[leader].setdefault(other, {})[business] = None


def plan_moves(records: Iterable[Leadership], live: Live) -> list[Move]:
    """Return the hand-overs that balance the led businesses, in their order.

    A business moves only to a replica that is in sync, on a broker whose load is no higher. If the broker that leads
    least has no such replica, several businesses move, each by one step of a path of brokers.
    """
    balance, moves = _Balance(records, live), list[Move]()
    while path := balance.find_path():
        moves += [balance.move(source, target) for source, target in reversed(list(pairwise(path)))]
    return moves


def count_roles(records: Iterable[Leadership]) -> dict[str, tuple[int, int]]:
    """Return how many businesses each broker leads, and how many it follows."""
    leads, follows = Counter[str](), Counter[str]()
    for known in records:
        leader = _leader_name(known)
        leads[leader] += 1
        follows.update(name for name in known.replicas if name != leader)
    return {name: (leads[name], follows[name]) for name in sorted((leads + follows).keys() - {""})}


def is_uneven(records: Iterable[Leadership], live: Live) -> bool:
    """Whether the busiest broker leads more than UNEVEN times the mean."""
    able = {member for member, broker in live.items() if not broker.draining}
    led = Counter(known.leader for known in records if known.leader in able)
    return max(led.values(), default=0) * len(able) > UNEVEN * led.total()


def find_obstacle(records: Iterable[Leadership], live: Live) -> str:
    """Return why no business may be handed over now for the sake of balance; empty = one may."""
    for broker in live.values():
        if broker.is_degraded:
            return f"broker {broker.member.broker}: {broker.unhealthy}"
    alive = set(live)
    for known in records:
        if known.leader not in alive:
            return f"{known.business} has no living leader"
        missing = set(known.replicas) - {member.broker for member in known.in_sync & alive}
        if missing:
            return f"{known.business} is not in sync at {', '.join(sorted(missing))}"
        if known.leaving:
            return f"a replica of {known.business} moves away from {', '.join(known.leaving)}"
        if known.successor:
            return f"{known.business} is handed over to {known.successor}"
    return ""


class Balancer:
    """Automatic balancing, in every broker: one that leads too many businesses hands some over, one at a time.

    For AGAIN_S after a failed hand-over, plans leave its business where it is, so that it does not block the others.
    """

    def __init__(self, me: str, uneven_s: float = UNEVEN_S) -> None:
        self._me, self._uneven_s = me, uneven_s
        self._since: float | None = None  # since when it has been uneven, or not balanced yet
        self._asked: dict[str, tuple[int, float]] = {}  # by business: the record's version at a hand-over, and when
        #: By another broker and the number of businesses that it leads: since when it should hand over.
        self._awaited: dict[tuple[str, int], float] = {}

    def next_move(self, records: Mapping[str, Leadership], live: Live, now: float) -> Move | None:
        """Return the hand-over that this broker should begin now; None = none."""
        known = list(records.values())
        if self._since is None:
            if not is_uneven(known, live):
                return None
            self._since = now
        waits = now - self._since < self._uneven_s
        moves = plan_moves(known, live)
        if not moves or (waits and not is_uneven(known, live)):
            self._since = None
            return None
        if waits or find_obstacle(known, live):
            return None
        failed = self._find_failed(records, now)
        if any(records[name].version == self._asked[name][0] for name in failed):
            return None  # the newest request is not visible yet
        if failed:
            moves = plan_moves(_pin(known, failed), live)
        move = self._choose(known, live, moves, failed, now)
        if move is not None:
            self._asked[move.business] = records[move.business].version, now
        return move

    def _find_failed(self, records: Mapping[str, Leadership], now: float) -> list[str]:
        """Return the businesses that this broker leads although it has recently requested a hand-over."""
        self._asked = {name: asked for name, asked in self._asked.items() if now - asked[1] < AGAIN_S}
        return [name for name in self._asked if name in records and _leader_name(records[name]) == self._me]

    def _choose(
        self, known: Sequence[Leadership], live: Live, moves: Sequence[Move], failed: Collection[str], now: float
    ) -> Move | None:
        """Return the plan's first move if it is this broker's, skipping moves that another broker fails to make."""
        fixed, before, self._awaited = set(failed), self._awaited, {}
        while moves and moves[0].source != self._me:
            source = moves[0].source
            leads = source, moves[0].source_leads
            since = self._awaited[leads] = before.get(leads, now)
            if now - since < 2 * AGAIN_S:
                return None
            fixed |= {one.business for one in known if _leader_name(one) == source}
            moves = plan_moves(_pin(known, fixed), live)
        return moves[0] if moves else None


def _leader_name(known: Leadership) -> str:
    return known.leader.broker if known.leader is not None else ""


def _pin(records: Sequence[Leadership], fixed: Collection[str]) -> list[Leadership]:
    """Return the records without the candidates of the fixed businesses, so that no plan moves these."""
    return [replace(one, in_sync=frozenset()) if one.business in fixed else one for one in records]
