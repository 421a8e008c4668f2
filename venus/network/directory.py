"""Directory of broker sets for clients and sets (Minos 3.4.1), and the rule for moving back to the nearest. Pure.

Producers use core sets, a set of level S uses sets of level S - 1, consumers use access sets: nearest first by
configuration, by load among equally near ones. A client that loses its set moves to the next one, and back once a
nearer one has been healthy for a minute without a break.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from venus.network.topology import BrokerSet, Tier, Topology

#: How long a nearer choice must have been healthy before a client moves back to it.
BACK_AFTER_S = 60.0
#: Interval of the health checks of choices nearer than the one in use.
LOOK_EVERY_S = 5.0
#: A longer gap between health checks breaks the period in which a choice counts as healthy.
LOOKS_APART_S = 3 * LOOK_EVERY_S

NameT = TypeVar("NameT")


@dataclass(frozen=True, slots=True)
class SetDirectory:
    """Directory of one topology. `near` lists sets by site, the nearest first; `load` is 0 (idle) to 1 by set."""

    topology: Topology
    near: Mapping[str, Sequence[str]] = field(default_factory=dict)
    load: Mapping[str, float] = field(default_factory=dict)

    def for_producer(self, site: str = "") -> tuple[BrokerSet, ...]:
        """Return the core sets, the preferred one first."""
        return self._sort(self.topology.sets_at(0), site)

    def for_set(self, name: str) -> tuple[BrokerSet, ...]:
        """Return the upstream sets of a set; () for a core set and for an unknown one.

        The order is that of the set's `upstream`; without it, all sets of the level above, nearest first.
        """
        lower = self.topology.find_set(name)
        if lower is None or not lower.level:
            return ()
        above = self.topology.upstreams_of(lower)
        return above if lower.upstream else self._sort(above, lower.site)

    def for_consumer(self, site: str = "") -> tuple[BrokerSet, ...]:
        """Return the access sets; if there are none, the sets of the deepest level."""
        found = tuple(one for one in self.topology.sets if one.tier is Tier.ACCESS)
        return self._sort(found or self.topology.sets_at(max(self.topology.levels, default=0)), site)

    def _sort(self, sets: Iterable[BrokerSet], site: str) -> tuple[BrokerSet, ...]:
        listed = list(self.near.get(site, ()))

        def key(one: BrokerSet) -> tuple[int, bool, float, str]:
            place = listed.index(one.name) if one.name in listed else len(listed)
            return place, not (site and one.site == site), self.load.get(one.name, 0.0), one.name

        return tuple(sorted(sets, key=key))


class Preference(Generic[NameT]):
    """State machine of the choice in use among several; the first is the nearest. Times are monotonic seconds."""

    def __init__(self, choices: Sequence[NameT], *, back_after_s: float = BACK_AFTER_S) -> None:
        assert choices, "at least one choice is needed"
        self.choices = tuple(choices)
        self._back_after_s = back_after_s
        self._in_use = 0
        #: Since when a nearer choice is healthy, and when it was checked last.
        self._healthy: dict[NameT, tuple[float, float]] = {}
        self._looked: dict[NameT, float] = {}

    @property
    def in_use(self) -> NameT:
        """The choice in use."""
        return self.choices[self._in_use]

    def in_order(self) -> tuple[NameT, ...]:
        """Return every choice once: the one in use, those behind it, then the nearer ones that were lost."""
        return self.choices[self._in_use :] + self.choices[: self._in_use]

    def record_failure(self, choice: NameT) -> None:
        """Record that a choice has failed; if it is in use, switch to the next one."""
        self._healthy.pop(choice, None)
        if choice == self.in_use:
            self._in_use = (self._in_use + 1) % len(self.choices)

    def record_success(self, choice: NameT) -> None:
        """Record that a choice has served a request: it is now in use.

        So a nearer one that served because all others failed is in use at once.
        """
        self._in_use = self.choices.index(choice)
        self._healthy.pop(choice, None)

    def nearer(self) -> tuple[NameT, ...]:
        """Return the choices that are nearer than the one in use."""
        return self.choices[: self._in_use]

    def take_due(self, now: float) -> tuple[NameT, ...]:
        """Return the nearer choices to check now; each is then not due for LOOK_EVERY_S."""
        found = tuple(one for one in self.nearer() if now >= self._looked.get(one, float("-inf")) + LOOK_EVERY_S)
        self._looked.update(dict.fromkeys(found, now))
        return found

    def record_check(self, choice: NameT, now: float, *, healthy: bool) -> None:
        """Record a health check of a nearer choice."""
        if not healthy:
            self._healthy.pop(choice, None)
            return
        since, seen = self._healthy.get(choice, (now, now))
        self._healthy[choice] = (since if now - seen <= LOOKS_APART_S else now, now)

    def find_nearer(self, now: float) -> NameT | None:
        """Return the nearest choice that has been healthy for long enough to move back; None = there is none."""
        for one in self.nearer():
            since, seen = self._healthy.get(one, (now, now))
            if one in self._healthy and seen - since >= self._back_after_s and now - seen <= LOOKS_APART_S:
                return one
        return None

    def move_back(self, now: float) -> bool:
        """Move back to a nearer choice if one has been healthy for long enough. Return True if it moved."""
        found = self.find_nearer(now)
        if found is not None:
            self.record_success(found)
        return found is not None
