"""Who is sent to which set (Minos 3.4.1), and when somebody goes back to the nearest one. Pure.

Producers go to core sets, a set of level S to sets of level S - 1, consumers to access sets: nearest first by
configuration, by load among those that are equally near. Whoever loses its set goes on at the next, and back once a
nearer one has been healthy for a minute without a break.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from venus.network.topology import BrokerSet, Tier, Topology

#: A nearer choice must have been healthy for so long before anybody goes back to it.
BACK_AFTER_S = 60.0
#: How often those that are nearer than the one in use are looked at meanwhile.
LOOK_EVERY_S = 5.0
#: Longer than this without a look, and nobody knows whether it was healthy all the time.
LOOKS_APART_S = 3 * LOOK_EVERY_S

NameT = TypeVar("NameT")


@dataclass(frozen=True, slots=True)
class Directory:
    """The answers for one topology. `near` lists sets by site, the nearest first; `load` is 0 (idle) to 1 by set."""

    topology: Topology
    near: Mapping[str, Sequence[str]] = field(default_factory=dict)
    load: Mapping[str, float] = field(default_factory=dict)

    def for_producer(self, site: str = "") -> tuple[BrokerSet, ...]:
        """Return the core sets, the one to ask first in front."""
        return self._sorted(self.topology.at(0), site)

    def for_set(self, name: str) -> tuple[BrokerSet, ...]:
        """Return whom a set pulls from; () for a core set and for one that is not known.

        What the set's own `upstream` lists is in that order; otherwise all of the level above, nearest first.
        """
        lower = self.topology.named(name)
        if lower is None or not lower.level:
            return ()
        above = self.topology.above(lower)
        return above if lower.upstream else self._sorted(above, lower.site)

    def for_consumer(self, site: str = "") -> tuple[BrokerSet, ...]:
        """Return the access sets; if there are none, the sets of the deepest level there is."""
        found = tuple(one for one in self.topology.sets if one.tier is Tier.ACCESS)
        return self._sorted(found or self.topology.at(max(self.topology.levels, default=0)), site)

    def _sorted(self, sets: Iterable[BrokerSet], site: str) -> tuple[BrokerSet, ...]:
        listed = list(self.near.get(site, ()))

        def key(one: BrokerSet) -> tuple[int, bool, float, str]:
            place = listed.index(one.name) if one.name in listed else len(listed)
            return place, not (site and one.site == site), self.load.get(one.name, 0.0), one.name

        return tuple(sorted(sets, key=key))


class Preference(Generic[NameT]):
    """Which of several choices is in use; the first is the nearest. Times are seconds of a clock that nobody sets."""

    def __init__(self, choices: Sequence[NameT], *, back_after_s: float = BACK_AFTER_S) -> None:
        assert choices, "somebody must be asked"
        self.choices = tuple(choices)
        self._back_after_s = back_after_s
        self._in_use = 0
        #: Since when a nearer choice is healthy, and when that was seen last.
        self._healthy: dict[NameT, tuple[float, float]] = {}
        self._looked: dict[NameT, float] = {}

    @property
    def in_use(self) -> NameT:
        """The choice that is in use."""
        return self.choices[self._in_use]

    def in_order(self) -> tuple[NameT, ...]:
        """Return every choice once: the one in use, those behind it, then the nearer ones that were lost."""
        return self.choices[self._in_use :] + self.choices[: self._in_use]

    def failed(self, choice: NameT) -> None:
        """Note that a choice does not serve; if it is the one in use, the next one is."""
        self._healthy.pop(choice, None)
        if choice == self.in_use:
            self._in_use = (self._in_use + 1) % len(self.choices)

    def served(self, choice: NameT) -> None:
        """Note that a choice serves whoever asked for it: it is the one in use.

        A nearer one that served because all others failed is thereby in use at once.
        """
        self._in_use = self.choices.index(choice)
        self._healthy.pop(choice, None)

    def nearer(self) -> tuple[NameT, ...]:
        """Return the choices that are nearer than the one in use."""
        return self.choices[: self._in_use]

    def due(self, now: float) -> tuple[NameT, ...]:
        """Return the nearer choices that are to be looked at now; each is then not due for LOOK_EVERY_S."""
        found = tuple(one for one in self.nearer() if now >= self._looked.get(one, float("-inf")) + LOOK_EVERY_S)
        self._looked.update(dict.fromkeys(found, now))
        return found

    def looked(self, choice: NameT, now: float, *, healthy: bool) -> None:
        """Take note of a look at a nearer choice."""
        if not healthy:
            self._healthy.pop(choice, None)
            return
        since, seen = self._healthy.get(choice, (now, now))
        self._healthy[choice] = (since if now - seen <= LOOKS_APART_S else now, now)

    def back(self, now: float) -> NameT | None:
        """Return the nearest choice that has been healthy for long enough to go back to it; None = there is none."""
        for one in self.nearer():
            since, seen = self._healthy.get(one, (now, now))
            if one in self._healthy and seen - since >= self._back_after_s and now - seen <= LOOKS_APART_S:
                return one
        return None

    def go_back(self, now: float) -> bool:
        """Use a nearer choice if one has been healthy for long enough; True = the one in use is another now."""
        found = self.back(now)
        if found is not None:
            self.served(found)
        return found is not None
