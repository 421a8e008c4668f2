"""Prefix routing over SkipCloud (SREM 3.2), with another try when a neighbour does not answer. Pure.

Each hop goes to the neighbour that shares most digits with the target. Whoever does not answer is dropped, and the
next best is tried; if nobody known is nearer, the message goes sideways to one that is as near and was not asked yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from venus.network.skipcloud.clusters import Identifier, common
from venus.network.skipcloud.views import Views

HOPS_MAX = 32
#: Tries at one broker until it gives the message back.
TRIES = 8


@dataclass(frozen=True, slots=True)
class Routed:
    """What became of a message: who got it ("" = nobody), over how many brokers, with how many tries in vain."""

    at: str
    hops: int
    failed: int


def route(
    start: str,
    target: Identifier,
    views: Mapping[str, Views],
    identifiers: Mapping[str, Identifier],
    answers: Callable[[str], bool],
    *,
    tries: int = TRIES,
) -> Routed:
    """Follow a message to a broker of the target's top cluster. `answers` says whether a broker takes it."""
    at, hops, failed = start, 0, 0
    asked = {start}
    while common(identifiers[at], target) < len(target) and hops < HOPS_MAX:
        following = None
        for name in next_hops(views[at], target, identifiers, asked)[:tries]:
            if answers(name):
                following = name
                break
            failed += 1
            views[at].drop(name)
        if following is None:
            return Routed("", hops, failed)
        asked.add(following)
        at, hops = following, hops + 1
    arrived = common(identifiers[at], target) == len(target)
    return Routed(at if arrived else "", hops, failed)


def next_hops(view: Views, target: Identifier, identifiers: Mapping[str, Identifier], asked: set[str]) -> list[str]:
    """Return to whom a broker would forward, the best first: never to one that is further away than itself."""
    own = common(view.identifier, target)
    near = {name: common(identifiers[name], target) for name in view.known() if name not in asked}
    return sorted((name for name, digits in near.items() if digits >= own), key=lambda name: (-near[name], name))
