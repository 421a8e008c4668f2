"""Topology of broker sets in tiers and levels, as an immutable value, its validation, and its drawing as text. Pure.

A set's level is its distance from the source: core sets have level 0, a set of level S pulls from sets of level S - 1.
A topology is built from one broker's configuration, from the status of brokers, or from both.

The drawing has every set below its upstream, with offsets and lag of each hop. Its lines fit into a width; long lines
are wrapped below the same branches.
"""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from venus.model import is_heartbeat
from venus.text.formatting import format_duration, suggest_nearest

LEVELS_MAX = 100
#: Prefix of a set's name in the consumer group of its mirrors at the upstream set.
PULLS_AS = "mirror/"


class Tier(StrEnum):
    """Purpose of a set."""

    CORE = "core"  # producers write here; every core set has every business
    TANDEM = "tandem"  # carries businesses on to more sets
    ACCESS = "access"  # consumers read here


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSet:
    """A set of brokers with the same businesses. `addresses` are those of its brokers, HOST:PORT."""

    name: str
    tier: Tier
    level: int
    site: str = ""
    #: Its upstream, nearest first: sets, or addresses of their brokers. Empty: any set of the level above.
    upstream: tuple[str, ...] = ()
    #: It pulls data with one of these labels; empty = everything.
    labels: frozenset[str] = frozenset()
    #: Its row filters: "BUSINESS: TABLE where PREDICATE".
    where: frozenset[str] = frozenset()
    addresses: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The name for messages."""
        return f"set {self.name}"


@dataclass(frozen=True, slots=True)
class Topology:
    """Every set, by level and name."""

    sets: tuple[BrokerSet, ...]

    @classmethod
    def of(cls, sets: Iterable[BrokerSet]) -> Topology:
        """Build a topology without validation."""
        return cls(tuple(sorted(sets, key=lambda found: (found.level, found.name))))

    def find_set(self, name: str) -> BrokerSet | None:
        """Return the set with a name, None if there is none."""
        return next((found for found in self.sets if found.name == name), None)

    def sets_at(self, level: int) -> tuple[BrokerSet, ...]:
        """Return the sets of a level."""
        return tuple(found for found in self.sets if found.level == level)

    @property
    def levels(self) -> tuple[int, ...]:
        """The levels with sets, from the core down."""
        return tuple(sorted({found.level for found in self.sets}))

    def find_entry(self, entry: str) -> BrokerSet | None:
        """Return the set that an entry of `upstream` refers to, None if it is unknown."""
        return next((found for found in self.sets if entry == found.name or entry in found.addresses), None)

    def upstreams_of(self, lower: BrokerSet) -> tuple[BrokerSet, ...]:
        """Return the possible upstream sets of a set: the configured ones, or all of the level above."""
        if lower.upstream:
            found = [self.find_entry(entry) for entry in lower.upstream]
            return tuple(dict.fromkeys(upper for upper in found if upper is not None))
        return self.sets_at(lower.level - 1) if lower.level else ()

    def unknown_entries(self, lower: BrokerSet) -> tuple[str, ...]:
        """Return the entries of `upstream` that refer to no known set."""
        return tuple(entry for entry in lower.upstream if self.find_entry(entry) is None)


def merge_reports(reported: Iterable[BrokerSet]) -> tuple[Topology, list[str]]:
    """Merge the sets that brokers report, by name; return the topology and the contradictions.

    Addresses and upstream sets of all reports are united. For everything else the first report counts.
    """
    members: defaultdict[str, list[BrokerSet]] = defaultdict(list)
    for one in reported:
        members[one.name].append(one)
    sets: list[BrokerSet] = []
    problems: list[str] = []
    for found in members.values():
        first = found[0]
        for other in found[1:]:
            problems += _contradictions(first, other)
        addresses = tuple(dict.fromkeys(address for one in found for address in one.addresses))
        upstream = tuple(dict.fromkeys(entry for one in found for entry in one.upstream))
        sets.append(replace(first, upstream=upstream, addresses=addresses))
    return Topology.of(sets), list(dict.fromkeys(problems))


def _contradictions(one: BrokerSet, other: BrokerSet) -> Iterator[str]:
    """Yield the differences between two descriptions of one set."""
    for what in ("tier", "level", "site", "labels", "where"):
        mine, theirs = getattr(one, what), getattr(other, what)
        if mine != theirs:
            yield (
                f"two sets are called {one.name}, or its brokers disagree: {what} is {_format(mine)} at "
                f"{_addresses_of(one)} "
                f"and {_format(theirs)} at {_addresses_of(other)}"
            )


def _addresses_of(one: BrokerSet) -> str:
    """Return the addresses of a set as text."""
    return ", ".join(one.addresses) or "one"


def _format(value: object) -> str:
    """Return a value of a set as text; "none" if it is empty."""
    if isinstance(value, tuple | frozenset):
        return ", ".join(sorted(str(part) for part in value)) or "none"
    return str(value) if value != "" else "none"


def topology_problems(
    sets: Collection[BrokerSet], labels: Collection[str] | None = None, *, complete: bool = True
) -> Iterator[str]:
    """Yield the problems of the sets, one sentence each, causes before consequences.

    `complete` says that no other sets exist.
    """
    topology = Topology.of(sets)
    yield from _name_problems(topology)
    loops = list(_loop_problems(topology))
    yield from loops
    for one in topology.sets:
        yield from _level_problems(one)
        if not loops:
            yield from _upstream_problems(topology, one, complete=complete)
        yield from _unknown_label_problems(one, labels)
        yield from label_problems(one, topology.upstreams_of(one), labels)


def _name_problems(topology: Topology) -> Iterator[str]:
    """Yield names that two sets have, and addresses that are in two sets."""
    owners: dict[str, str] = {}
    seen: set[str] = set()
    for one in topology.sets:
        if one.name in seen:
            yield f"two sets are called {one.name}: give one of them another name"
            continue
        seen.add(one.name)
        for address in one.addresses:
            if (owner := owners.setdefault(address, one.name)) != one.name:
                yield f"{address} is in two sets, {owner} and {one.name}: a broker belongs to one"


def _loop_problems(topology: Topology) -> Iterator[str]:
    """Yield each loop once, from its first set on."""
    reported: set[frozenset[str]] = set()
    for start in topology.sets:
        way = _find_loop(topology, start)
        if way and frozenset(way) not in reported:
            reported.add(frozenset(way))
            yield f"a loop: {' pulls from '.join([*way, way[0]])}; nothing would ever arrive there from a source"


def _find_loop(topology: Topology, start: BrokerSet) -> list[str]:
    """Return the shortest way from a set over `upstream` back to it; [] = there is none."""
    ways = [[start]]
    seen: set[str] = set()
    while ways:
        way = ways.pop(0)
        for upper in topology.upstreams_of(way[-1]):
            if upper.name == start.name:
                return [one.name for one in way]
            if upper.name not in seen:
                seen.add(upper.name)
                ways.append([*way, upper])
    return []


def _level_problems(one: BrokerSet) -> Iterator[str]:
    """Yield why the level of a set is out of range or contradicts its tier."""
    if one.level > LEVELS_MAX or one.level < 0:
        yield f"{one.title}: level is {one.level}, and levels go from 0 to {LEVELS_MAX}"
    elif one.tier is Tier.CORE and one.level:
        yield f"{one.title} is a core set of level {one.level}: core sets have level 0"
    elif one.tier is not Tier.CORE and not one.level:
        yield f"{one.title} of tier {one.tier} has level 0: only core sets have level 0"


def _upstream_problems(topology: Topology, one: BrokerSet, *, complete: bool) -> Iterator[str]:
    """Yield unknown, unsuitable and missing upstream sets of a set."""
    if complete:
        names = [other.name for other in topology.sets if other.name != one.name]
        for entry in topology.unknown_entries(one):
            yield f"{one.title}: upstream {entry} is no set and no broker of one{suggest_nearest(entry, names)}"
    for upper in topology.upstreams_of(one):
        yield from hop_problems(one, upper)
    missing = not topology.upstreams_of(one) and (complete or not one.upstream)
    if missing and one.tier is not Tier.CORE and one.level > 0 and not topology.unknown_entries(one):
        yield (f"{one.title} has level {one.level}, and no set has level {one.level - 1}: it has no upstream")


def hop_problems(lower: BrokerSet, upper: BrokerSet) -> Iterator[str]:
    """Yield the problems of one set that pulls from another."""
    if lower.tier is Tier.CORE:
        if upper.tier is not Tier.CORE:
            yield f"{lower.title} is a core set and pulls from {upper.name}, a {upper.tier} set: only core sets may"
    elif upper.tier is Tier.ACCESS:
        yield f"{lower.title} pulls from {upper.name}, an access set: those serve consumers; make it a tandem set"
    elif upper.level != lower.level - 1:
        yield (
            f"{lower.title} of level {lower.level} pulls from {upper.name} of level {upper.level}: "
            f"it pulls from level {lower.level - 1}"
        )


def _unknown_label_problems(one: BrokerSet, labels: Collection[str] | None) -> Iterator[str]:
    """Yield the labels that a set pulls although nothing has them; `labels` None = unknown, not checked."""
    for label in sorted(one.labels):
        if labels is not None and label not in labels:
            yield (
                f"{one.title} pulls the label {label}, which no business and no table "
                f"has{suggest_nearest(label, labels)}"
            )


def label_problems(
    one: BrokerSet, uppers: Collection[BrokerSet], labels: Collection[str] | None = None
) -> Iterator[str]:
    """Yield the labels that a set pulls but its upstream sets do not receive. Skips labels that are not in `labels`."""
    if not uppers or not all(upper.labels for upper in uppers):
        return
    names = ", ".join(upper.name for upper in uppers)
    for label in sorted(one.labels):
        if (labels is None or label in labels) and all(label not in upper.labels for upper in uppers):
            yield f"{one.title} pulls the label {label}, and {names} above does not get it: add it there"
    if not one.labels:
        yield f"{one.title} pulls everything, and {names} above gets some labels only: name them, or let it get all"


def is_labelled(names: Iterable[str], namespace: str, table: str) -> bool:
    """Whether labels with these `names` include a table. Every label includes VENUS's heartbeat, to measure lag."""
    known = (table.lower(), f"{namespace}.{table}".lower())
    return is_heartbeat(namespace, table) or any(name.lower() in known for name in names)


WIDTH_MIN = 24
#: States of a mirror that need no attention.
WELL = frozenset({"", "following", "filling", "elsewhere"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A business at a set. `behind` and the fields after it compare the set with its upstream; None = unknown."""

    business: str
    offset: int  # the end of its queue here; -1 = unknown
    behind: int | None = None  # upstream offsets that are missing here
    behind_s: float | None = None  # for how long offsets have been missing
    hop_s: float | None = None  # from the commit at the home until it was visible here
    home_mean_s: float = 0.0  # its mean and variance over the last minutes
    home_variance: float = 0.0
    mean_s: float = 0.0  # mean and deviation of this hop alone
    deviation_s: float = 0.0
    state: str = ""  # state of the mirror; empty = this is the home, or the state is unknown
    reason: str = ""
    #: The nearest upstream set, for how long it has not been used, and why; empty = it is in use.
    nearest: str = ""
    away_s: float = 0.0
    not_back: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetView:
    """Status of a set. `asked` is false if only the upstream set has reported it."""

    set: BrokerSet
    asked: bool = True
    pulls_from: str = ""  # the set it is connected to; empty = none
    businesses: tuple[Hop, ...] = ()
    trouble: str = ""  # why it did not answer, or cannot be where it is
    loads: tuple[float, ...] = ()  # load rate of each broker, 0 to 1

    @property
    def mean_load(self) -> float:
        """The mean load rate of its brokers."""
        return sum(self.loads) / max(1, len(self.loads))

    @property
    def load_deviation(self) -> float:
        """The standard deviation of the load rate among its brokers (Tensor V-D)."""
        return math.sqrt(sum((load - self.mean_load) ** 2 for load in self.loads) / max(1, len(self.loads)))


@dataclass(frozen=True, slots=True)
class TopologyView:
    """All sets; `problems` are sentences about the whole network."""

    sets: tuple[SetView, ...]
    problems: tuple[str, ...] = ()

    def below(self, name: str) -> list[SetView]:
        """Return the sets whose upstream is `name`; for "" the sets without a known upstream."""
        names = {one.set.name for one in self.sets}
        found = [one for one in self.sets if (one.pulls_from if one.pulls_from in names else "") == name]
        return sorted(found, key=lambda one: (one.set.level, one.set.name))

    @property
    def complaints(self) -> tuple[str, ...]:
        """All problems that need an operator."""
        found = list(self.problems)
        for one in self.sets:
            if one.trouble:
                found.append(f"set {one.set.name}: {one.trouble}")
            for hop in one.businesses:
                if hop.state not in WELL:
                    reason = f": {hop.reason}" if hop.reason else ""
                    found.append(f"set {one.set.name}: {hop.business} is {hop.state}{reason}")
                if hop.nearest:
                    away = format_absence(hop.nearest, hop.away_s, hop.not_back)
                    found.append(
                        f"set {one.set.name}: {hop.business} comes from {one.pulls_from or '?'}, not from {away}"
                    )
        return tuple(dict.fromkeys(found))


def measure_hops(sets: Iterable[SetView]) -> tuple[SetView, ...]:
    """Return the sets with mean and deviation of the delivery time of each hop alone.

    The times of hops are independent, so means and variances since the home at a hop's two ends are subtracted.
    """
    found = tuple(sets)
    at_home = {(one.set.name, hop.business): hop for one in found for hop in one.businesses}

    def measure(one: SetView, hop: Hop) -> Hop:
        above = at_home.get((one.pulls_from, hop.business))
        if not hop.home_mean_s or above is None:
            return hop
        variance = max(0.0, hop.home_variance - above.home_variance)
        return replace(hop, mean_s=max(0.0, hop.home_mean_s - above.home_mean_s), deviation_s=math.sqrt(variance))

    return tuple(replace(one, businesses=tuple(measure(one, hop) for hop in one.businesses)) for one in found)


def draw(view: TopologyView, width: int) -> list[str]:
    """Return the lines of the drawing."""
    lines: list[str] = []
    seen: set[str] = set()
    for top in view.below(""):
        lines += _branch(view, top, "", "", max(WIDTH_MIN, width), seen)
    for one in view.sets:  # sets that pull from each other in a circle have no top
        if one.set.name not in seen:
            lines += _branch(view, one, "", "", max(WIDTH_MIN, width), seen)
    return lines


def _branch(view: TopologyView, one: SetView, first: str, rest: str, width: int, seen: set[str]) -> Iterator[str]:
    """Yield the lines of a set and of the sets below it."""
    if one.set.name in seen:
        return
    seen.add(one.set.name)
    below = [lower for lower in view.below(one.set.name) if lower.set.name not in seen]
    inner = rest + ("│  " if below else "   ")
    yield from _wrap(_title(one), first, inner, width)
    for hop in _align(one.businesses):
        yield from _wrap(hop, inner, f"{inner}  ", width)
    for number, lower in enumerate(below):
        last = number == len(below) - 1
        yield from _branch(
            view, lower, f"{rest}{'└─ ' if last else '├─ '}", rest + ("   " if last else "│  "), width, seen
        )


def _title(one: SetView) -> str:
    """Return the line of a set in the drawing."""
    parts = [one.set.tier.value, f"level {one.set.level}"] if one.asked else ["not asked"]
    if one.set.site and one.set.site != one.set.name:
        parts.append(one.set.site)
    parts += [", ".join(one.set.addresses)] if one.set.addresses else []
    parts += [f"labels {', '.join(sorted(one.set.labels))}"] if one.set.labels else []
    parts += [f"rows of {one_filter}" for one_filter in sorted(one.set.where)]
    if one.loads:
        spread = f" ± {one.load_deviation:.0%} of {len(one.loads)} brokers" if len(one.loads) > 1 else ""
        parts.append(f"load {one.mean_load:.0%}{spread}")
    parts += [f"! {one.trouble}"] if one.trouble else []
    return f"{one.set.name}: {' · '.join(parts)}"


def _align(hops: Sequence[Hop]) -> Iterator[str]:
    """Yield the lines of a set's businesses in aligned columns."""
    names = max((len(hop.business) for hop in hops), default=0)
    offsets = max((len(f"{hop.offset:,}") for hop in hops), default=0)
    for hop in hops:
        offset = f"{hop.offset:,}" if hop.offset >= 0 else "?"
        yield f"{hop.business:<{names}}  {offset:>{offsets}}  {format_lag(hop)}".rstrip()


def format_lag(hop: Hop) -> str:
    """Return the state of a business compared with the upstream set, in words."""
    parts = []
    if hop.state not in ("", "following"):
        parts.append(f"! {hop.state}" if hop.state not in WELL else hop.state)
    if hop.behind is not None:
        late = f" for {format_duration(hop.behind_s)}" if hop.behind and hop.behind_s else ""
        parts.append(f"{hop.behind:,} behind{late}" if hop.behind else "level")
    if hop.hop_s:
        parts.append(f"{_format_seconds(hop.hop_s)} from the home")
    if hop.mean_s or hop.deviation_s:
        parts.append(f"this hop {_format_seconds(hop.mean_s)} ± {_format_seconds(hop.deviation_s)}")
    if hop.reason and hop.state not in WELL:
        parts.append(hop.reason)
    if hop.nearest:
        parts.append(f"! not from {hop.nearest}")
    return ", ".join(parts)


def format_absence(nearest: str, away_s: float, not_back: str) -> str:
    """Return the nearest set, for how long it has not been used, and why, in words."""
    return f"set {nearest}, the nearest, for {format_duration(away_s)}: {not_back}"


def _format_seconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds < 1 else format_duration(seconds)


def _wrap(text: str, first: str, rest: str, width: int) -> list[str]:
    """Wrap a text into lines of a width, with a prefix for the first and for the other lines."""
    room = max(12, width - max(len(first), len(rest)))
    cut = textwrap.wrap(text, room, break_on_hyphens=False) or [""] if len(first) + len(text) > width else [text]
    return [(first if number == 0 else rest) + line for number, line in enumerate(cut)]
