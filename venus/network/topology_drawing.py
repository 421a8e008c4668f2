"""Drawing of a topology as text: every set below its upstream, with offsets and lag of each hop. Pure.

The lines fit into a width; long ones are wrapped behind the same branches.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from venus.network.topology import BrokerSet
from venus.text.formatting import format_duration

WIDTH_MIN = 24
#: States of a mirror that need no attention.
WELL = frozenset({"", "following", "filling", "elsewhere"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A business at a set. `behind` and the fields after it compare it with the upstream set; None = unknown."""

    business: str
    offset: int  # the end of its queue here; -1 = unknown
    behind: int | None = None  # upstream offsets that are missing here
    behind_s: float | None = None  # for how long offsets have been missing
    hop_s: float | None = None  # from the commit at the home until it was visible here
    state: str = ""  # of the mirror; empty = this is the home, or unknown
    reason: str = ""
    #: The nearest upstream set, for how long it has not been used, and why; empty = it is in use.
    nearest: str = ""
    away_s: float = 0.0
    not_back: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetView:
    """Status of a set. `asked` is false for one that only the upstream set has reported."""

    set: BrokerSet
    asked: bool = True
    pulls_from: str = ""  # the set it is connected to; empty = none
    businesses: tuple[Hop, ...] = ()
    trouble: str = ""  # why it did not answer, or cannot be where it is


@dataclass(frozen=True, slots=True)
class TopologyView:
    """All sets; `problems` are sentences about the whole network."""

    sets: tuple[SetView, ...]
    problems: tuple[str, ...] = ()

    def below(self, name: str) -> list[SetView]:
        """Return the sets whose upstream is `name`; for "" those without a known upstream."""
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
    parts = [one.set.tier.value, f"level {one.set.level}"] if one.asked else ["not asked"]
    if one.set.site and one.set.site != one.set.name:
        parts.append(one.set.site)
    parts += [", ".join(one.set.addresses)] if one.set.addresses else []
    parts += [f"labels {', '.join(sorted(one.set.labels))}"] if one.set.labels else []
    parts += [f"rows of {one_filter}" for one_filter in sorted(one.set.where)]
    parts += [f"! {one.trouble}"] if one.trouble else []
    return f"{one.set.name}: {' · '.join(parts)}"


def _align(hops: Sequence[Hop]) -> Iterator[str]:
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
    room = max(12, width - max(len(first), len(rest)))
    cut = textwrap.wrap(text, room, break_on_hyphens=False) or [""] if len(first) + len(text) > width else [text]
    return [(first if number == 0 else rest) + line for number, line in enumerate(cut)]
