"""Directory of broker sets for clients (Minos 3.4.1), and the rule for moving back to the nearest. Pure.

A set reports itself and the sets below it to the sets above. So each set knows the sets below it, the home knows all
sets, and every set receives what the set above it knows. Producers use the home, then the other core sets; consumers
use access sets, then those nearer to the home. Sets are ordered by the configured nearness, then by load and lag. A
client that loses its set moves to the next set, and back once a nearer set has been healthy for a minute without a
break.

A set below is believed only about itself and the sets below it, and never that it is a home. The
first set of a name keeps the name until it has been silent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Generic, TypeVar

from venus.network.topology import Tier

#: How long a nearer choice must have been healthy before a client moves back to it.
BACK_AFTER_S = 60.0
#: Interval of the health checks of choices nearer than the one in use.
LOOK_EVERY_S = 5.0
#: A longer gap between health checks breaks the period in which a choice counts as healthy.
LOOKS_APART_S = 3 * LOOK_EVERY_S
#: A set that has reported nothing for this long comes last, and another may take its name.
SILENT_S = 60.0
#: After this long without a report it is removed.
GONE_S = 600.0
#: Limit of known sets.
SETS_MAX = 200
#: Limit of remembered contradictions, and of addresses that one of them names.
PROBLEMS_MAX, ADDRESSES_SHOWN_MAX = 20, 3
#: A smaller lag is no reason to prefer another set.
LATE_S = 5.0
#: A load counts in steps of this size.
LOAD_STEP = 0.1

NameT = TypeVar("NameT")


class ClientRole(StrEnum):
    """Role of a client, which decides the order of its sets."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedSet:
    """A broker set as it describes itself. `heard_at` is when it did so, in monotonic seconds of this process."""

    name: str
    set_id: str
    tier: Tier
    level: int
    site: str = ""
    addresses: tuple[str, ...] = ()
    #: 0 = idle, 1 = busy.
    load: float = 0.0
    lag_s: float = 0.0
    #: Why another set should be used; empty = none.
    trouble: str = ""
    #: Businesses that it has, but does not follow now.
    unready: frozenset[str] = frozenset()
    #: Producers write there, except for `replaced` businesses.
    is_home: bool = False
    promoted: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    #: The businesses that it mirrors; empty = all.
    businesses: frozenset[str] = frozenset()
    heard_at: float = 0.0

    def takes_writes(self, business: str) -> bool:
        """Return whether the set is the home of a business; "" = of any."""
        return business in self.promoted or (self.is_home and business not in self.replaced)

    def has_business(self, business: str) -> bool:
        """Return whether the set serves a business; "" = any."""
        return not business or not self.businesses or business in self.businesses or business in self.promoted


@dataclass(frozen=True, slots=True)
class RankedSet:
    """A set with its rank for a client. Sets of equal rank are equally near."""

    set: ReportedSet
    rank: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """A known set. `source` names the set below that reported it; empty = a set above, or this broker's own."""

    set: ReportedSet
    source: str

    @property
    def is_hearsay(self) -> bool:
        """Whether the description comes from a set below, not from the set itself."""
        return self.source not in ("", self.set.name)


@dataclass(slots=True)
class SetDirectory:
    """The sets that a broker knows. `near` lists sets by the site of a client, the nearest first."""

    near: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: The nearness configured at the set above, which applies if none is configured here.
    near_above: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _own: ReportedSet | None = None
    #: The sets that have replaced the own one as the home, by business.
    _homes: Mapping[str, str] = field(default_factory=dict)
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _problems: dict[str, float] = field(default_factory=dict)

    def record_own(self, own: ReportedSet, homes: Mapping[str, str] | None = None) -> None:
        """Record the set of this broker; `homes` are the sets that have replaced it as the home, by business."""
        self._own, self._homes = own, homes or {}
        self._entries.pop(own.name, None)

    def on_report(self, reporter: str, found: Sequence[ReportedSet], now: float) -> None:
        """Record what a set below says about itself, the first item, and about the sets below it."""
        own = self._own
        if own is None or not found or found[0].name != reporter:
            return
        itself = found[0]
        if itself.level <= own.level and not itself.tier is own.tier is Tier.CORE:
            self._record_problem(f"set {reporter} reports level {itself.level} to {own.name} of level {own.level}", now)
            return
        if not self._add(itself, reporter, now):
            return
        for one in found[1:]:
            if one.level > itself.level:
                self._add(one, reporter, now)

    def on_answer(self, found: Sequence[ReportedSet], now: float) -> None:
        """Record the sets that a set above, or another broker of this set, knows."""
        for one in found:
            self._add(one, "", now)

    def known_sets(self, now: float) -> tuple[ReportedSet, ...]:
        """Return every set with a recent report, this one first."""
        self._forget(now)
        return tuple(one for one in (self._own, *(entry.set for entry in self._entries.values())) if one is not None)

    def sets_below(self, now: float) -> tuple[ReportedSet, ...]:
        """Return this set and those that sets below have reported, for the set above."""
        self._forget(now)
        below = [entry.set for entry in self._entries.values() if entry.source]
        return tuple(one for one in (self._own, *below) if one is not None)

    def problems(self, now: float) -> list[str]:
        """Return the contradictions of the last minutes, one sentence each."""
        self._problems = {text: at for text, at in self._problems.items() if now - at <= SILENT_S}
        return list(self._problems)

    def nearness(self) -> Mapping[str, Sequence[str]]:
        """Return the sets by site of a client, the nearest first, as configured here or at a set above."""
        return self.near or self.near_above

    def find(self, role: ClientRole, business: str, site: str, now: float) -> tuple[RankedSet, ...]:
        """Return the sets for a client in the order in which it should use them."""
        near = list(self.nearness().get(site, ()))
        keys: dict[ReportedSet, tuple[tuple[int | bool, ...], tuple[float, int, str]]] = {}
        for one in self.known_sets(now):
            group = _fitness_of(one, role, business)
            if group is None or not one.addresses:
                continue
            place = near.index(one.name) if one.name in near else len(near)
            is_silent = now - one.heard_at > SILENT_S
            is_unfit = bool(one.trouble) or business in one.unready
            distance = (is_silent, is_unfit, group, place, not (site and one.site == site))
            late = round(math.log2(one.lag_s / LATE_S)) + 1 if one.lag_s > LATE_S else 0
            keys[one] = distance, (round(one.load / LOAD_STEP), late, one.name)
        ranks = {distance: rank for rank, distance in enumerate(sorted({distance for distance, _ in keys.values()}))}
        return tuple(RankedSet(one, ranks[keys[one][0]]) for one in sorted(keys, key=lambda one: keys[one]))

    def _add(self, one: ReportedSet, source: str, now: float) -> bool:
        """Add a set, or its newer description. Return False if it is not believed."""
        known = self._entries.get(one.name)
        if known is not None and known.is_hearsay and source == one.name:
            known = None  # what a set says about itself replaces what others say
        if not self._has_name(one, known, now) or (known is not None and not _replaces_known(one, source, known, now)):
            return False
        if source:
            promoted = frozenset(name for name in one.promoted if self._homes.get(name) == one.name)
            one = replace(one, is_home=False, promoted=promoted, addresses=self._own_addresses(one, source, now))
        if not one.addresses or (one.name not in self._entries and not self._has_room(one.name, source, now)):
            return False
        self._entries[one.name] = _Entry(one, source)
        return True

    def _has_name(self, one: ReportedSet, known: _Entry | None, now: float) -> bool:
        """Return whether a name belongs to this set: the first set with a name keeps it until that set is silent."""
        own = self._own
        if own is not None and one.name == own.name:
            holder = own
        elif known is not None and now - known.set.heard_at <= SILENT_S:
            holder = known.set
        else:
            return True
        if holder.set_id != one.set_id:
            self._record_problem(_describe_namesakes(one, holder), now)
        return holder is not own and holder.set_id == one.set_id

    def _has_room(self, name: str, source: str, now: float) -> bool:
        """Return whether one more set may be known; the sets that one set reports are at most half of all."""
        self._forget(now)
        of_source = sum(entry.source == source for entry in self._entries.values()) if source else 0
        if len(self._entries) < SETS_MAX and of_source < SETS_MAX // 2:
            return True
        self._record_problem(f"more than {SETS_MAX} sets are known: {name} is left out", now)
        return False

    def _own_addresses(self, one: ReportedSet, source: str, now: float) -> tuple[str, ...]:
        """Return a set's addresses without those of other sets, and record each conflict as a problem.

        A report of a set about itself prevails over what sets below have reported about other sets.
        """
        heard = [entry for entry in self._entries.values() if not (entry.is_hearsay and source == one.name)]
        others = [entry.set for entry in heard if now - entry.set.heard_at <= SILENT_S]
        owners = [other for other in (self._own, *others) if other is not None and other.name != one.name]
        taken = {address: other.name for other in owners for address in other.addresses}
        for address in one.addresses:
            if address in taken:
                self._record_problem(
                    f"set {one.name} reports {address}, a broker of {taken[address]}: a broker belongs to one set", now
                )
        return tuple(address for address in one.addresses if address not in taken)

    def _record_problem(self, text: str, now: float) -> None:
        """Record a contradiction with its time."""
        if text in self._problems or len(self._problems) < PROBLEMS_MAX:
            self._problems[text] = now

    def _forget(self, now: float) -> None:
        """Remove the sets that have been silent for too long."""
        self._entries = {name: one for name, one in self._entries.items() if now - one.set.heard_at <= GONE_S}


def _fitness_of(one: ReportedSet, role: ClientRole, business: str) -> int | None:
    """Return how well a set fits a role, 0 = best; None = it cannot serve it."""
    if role is ClientRole.PRODUCER:
        return 0 if one.takes_writes(business) else 1 if one.tier is Tier.CORE else None
    if not one.has_business(business):
        return None
    return 0 if one.tier is Tier.ACCESS else 1 + (100 - one.level)


def _replaces_known(one: ReportedSet, source: str, known: _Entry, now: float) -> bool:
    """Return whether a description replaces the known one: it is at least as new, and its source may describe the set.

    The source of the known description and the set itself may; after SILENT_S without a report, any source may.
    """
    may_speak = source in (known.source, one.name) or now - known.set.heard_at > SILENT_S
    return may_speak and one.heard_at >= known.set.heard_at


def _describe_namesakes(one: ReportedSet, other: ReportedSet) -> str:
    """Return the sentence that two sets have the same name."""
    places = " and at ".join(
        ", ".join(each.addresses[:ADDRESSES_SHOWN_MAX]) or "an unknown address" for each in (other, one)
    )
    return f"two sets are called {one.name}: at {places}; give each a [cluster] set of its own"


class Preference(Generic[NameT]):
    """State machine that selects one of several choices, such as broker sets, and moves back to nearer ones.

    The first choice is the nearest. Times are monotonic seconds.
    """

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
        """The broker set in use, or whatever else the choices are."""
        return self.choices[self._in_use]

    def replace(self, choices: Sequence[NameT], in_use: NameT) -> None:
        """Replace the choices. `in_use` is the choice among them that is in use now."""
        assert in_use in choices, "it is one of them"
        self.choices, self._in_use = tuple(choices), choices.index(in_use)
        self._healthy = {one: times for one, times in self._healthy.items() if one in choices}
        self._looked = {one: at for one, at in self._looked.items() if one in choices}

    def in_order(self) -> tuple[NameT, ...]:
        """Return every choice once: the one in use, then the farther ones, then the nearer ones that were lost."""
        return self.choices[self._in_use :] + self.choices[: self._in_use]

    def record_failure(self, choice: NameT) -> None:
        """Record that a choice has failed; if it is in use, switch to the next one."""
        self._healthy.pop(choice, None)
        if choice == self.in_use:
            self._in_use = (self._in_use + 1) % len(self.choices)

    def record_success(self, choice: NameT) -> None:
        """Record that a choice has served a request: it is now in use.

        So a nearer choice that served because all others failed is in use at once.
        """
        self._in_use = self.choices.index(choice)
        self._healthy.pop(choice, None)

    def nearer(self) -> tuple[NameT, ...]:
        """Return the choices that are nearer than the one in use."""
        return self.choices[: self._in_use]

    def take_due(self, now: float) -> tuple[NameT, ...]:
        """Return the nearer choices to check now, and record that: each is due again after LOOK_EVERY_S."""
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
