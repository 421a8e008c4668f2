"""The cost of matching, and the choice of the broker that does it, so that all have about equal load. Pure.

A broker reports the processor time of the last seconds. Each subspace has two possible clusters, and moves to the other
one if that cluster's brokers have less work. Inside a cluster the least loaded broker is asked.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from venus.network.matching.interests import Events
from venus.network.skipcloud.clusters import Identifier

#: Half of the reported load comes from a period of this many seconds up to now.
HALF_LIFE_S = 5.0
#: Smaller differences in load are ignored: the candidate that was given the fewest changes is then next.
LOAD_STEP = 0.05
#: Subspaces move away from brokers with more than this multiple of the mean work.
EVEN = 1.1

Place = tuple[str, str]  # table and path of a subspace


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedEvents:
    """Changes of one subspace that another broker is asked to match, and the numbers of the subspace's interests."""

    table: str
    path: str
    digest: int
    events: Events
    numbers: frozenset[int]

    @property
    def pairs(self) -> int:
        """How many comparisons of a change with an interest are needed."""
        return self.events.count * len(self.numbers)


@dataclass(slots=True)
class MatchingLoad:
    """Counter of the work of one broker."""

    pairs: int = 0
    changes: int = 0
    busy_s: float = 0.0
    _decayed: float = 0.0
    _at: float = field(default=-math.inf)

    def record(self, changes: int, interests: int, busy_s: float, now: float) -> None:
        """Record that changes were compared with interests."""
        self.pairs += changes * interests
        self.changes += changes
        self.busy_s += busy_s
        self._decayed = self._load_at(now) + busy_s
        self._at = now

    def rate(self, now: float) -> float:
        """Return the load in processor seconds a second."""
        return self._load_at(now) * math.log(2) / HALF_LIFE_S

    def _load_at(self, now: float) -> float:
        """Return the faded load as of `now`."""
        return fade(self._decayed, now - self._at)


def fade(load: float, seconds: float) -> float:
    """Return the remainder of a load after some seconds without work."""
    return load * math.pow(0.5, max(0.0, seconds) / HALF_LIFE_S)


@dataclass(slots=True)
class MatchingCounters:
    """Numbers of changes and requests since the start, by the broker that matched them."""

    asked: int = 0  # requests to other brokers
    changes_elsewhere: int = 0
    changes_here: int = 0
    unanswered: int = 0
    unknown: int = 0
    installed: int = 0  # interests sent, each once for a cluster

    def record_matched(self, changes: int, *, is_here: bool) -> None:
        """Count changes that this broker (`is_here`) or another one matched."""
        if is_here:
            self.changes_here += changes
        else:
            self.changes_elsewhere += changes


@dataclass(slots=True)
class Candidate:
    """A broker that can be asked to match changes: its reported load, and until when it is not asked."""

    load: float = 0.0  # as it reported at `heard_at`
    heard_at: float = 0.0
    pairs: int = 0
    suspended_until: float = 0.0

    def load_at(self, now: float) -> float:
        """Return the broker's last reported load, faded as if it had been idle since, so that it is asked again."""
        return fade(self.load, now - self.heard_at)


class Candidates:
    """The brokers that can be asked to match, by the identifiers that their cluster is responsible for."""

    def __init__(self) -> None:
        self.members: dict[Identifier, list[str]] = {}
        self._known: defaultdict[str, Candidate] = defaultdict(Candidate)

    def __getitem__(self, address: str) -> Candidate:
        return self._known[address]

    def choose(self, target: Identifier, now: float) -> str | None:
        """Return the least loaded candidate of a cluster; among equals, the one that was given the fewest changes."""
        able = [
            (round(one.load_at(now) / LOAD_STEP), one.pairs, address)
            for address in self.members.get(target, ())
            if (one := self._known[address]).suspended_until <= now
        ]
        return min(able)[2] if able else None

    def forget_others(self) -> None:
        """Forget the brokers that are in no cluster any more."""
        living = {address for members in self.members.values() for address in members}
        for address in self._known.keys() - living:
            del self._known[address]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSubspace:
    """A subspace with its recent work, the cluster where it is, and the other cluster where it may be."""

    work: float
    at: Identifier
    other: Identifier


def plan_placements(
    placed: Mapping[Place, PlacedSubspace], members: Mapping[Identifier, Sequence[str]]
) -> dict[Place, Identifier]:
    """Return the subspaces that should move, with their new clusters; the brokers of a cluster share its work."""
    work = dict.fromkeys((address for some in members.values() for address in some), 0.0)
    for one in placed.values():
        _add_share(work, members.get(one.at, ()), one.work)
    mean = sum(work.values()) / max(1, len(work))
    moves: dict[Place, Identifier] = {}
    for name, one in sorted(placed.items(), key=lambda item: (-item[1].work, item[0])):
        here, there = members.get(one.at, ()), members.get(one.other, ())
        if not here or not there or set(here) & set(there):
            continue
        before = _mean_work(work, here)
        if before > EVEN * mean and _mean_work(work, there) + one.work / len(there) < before:
            _add_share(work, here, -one.work)
            _add_share(work, there, one.work)
            moves[name] = one.other
    return moves


def _add_share(work: dict[str, float], members: Sequence[str], amount: float) -> None:
    """Add an equal share of an amount of work to each member."""
    for address in members:
        work[address] += amount / len(members)


def _mean_work(work: Mapping[str, float], members: Sequence[str]) -> float:
    """Return the mean work of some members."""
    return sum(work[address] for address in members) / len(members)
