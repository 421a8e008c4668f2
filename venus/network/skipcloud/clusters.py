"""Assignment of brokers to clusters of SkipCloud, by name alone (SREM 3.1). Pure.

A top cluster has an identifier of `depth` digits; the brokers of a cluster at level i share its first i digits. Level 0
has all brokers. So a cluster of one level is split into at most `base` clusters of the next.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import xxhash

#: Below this number every broker knows all others: the directory needs one hop, and routing would only add some.
BROKERS_MIN = 16
TOP_SIZE = 4

Identifier = tuple[int, ...]


def is_worth_it(brokers: int) -> bool:
    """Whether SkipCloud is worth it for this number of brokers; otherwise the directory answers in one hop."""
    return brokers >= BROKERS_MIN


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudShape:
    """Parameters of the clusters. `degree` is the number of neighbours of a broker at each level."""

    base: int
    depth: int
    degree: int
    top_size: int = TOP_SIZE

    @classmethod
    def of(cls, brokers: int, *, depth: int = 2, top_size: int = TOP_SIZE, each: int = 4) -> CloudShape:
        """Return the shape for a number of brokers, with `each` neighbours in every cluster of the next level."""
        clusters = max(1, -(-brokers // top_size))
        base = max(2, math.ceil(clusters ** (1 / depth) - 1e-9))
        return cls(base=base, depth=depth, degree=base * each, top_size=top_size)


def common_prefix(one: Identifier, other: Identifier) -> int:
    """Return the length of the common prefix of two identifiers."""
    for place, (a, b) in enumerate(zip(one, other, strict=True)):
        if a != b:
            return place
    return len(one)


def assign(brokers: Collection[str], shape: CloudShape) -> dict[str, Identifier]:
    """Return each broker's top cluster; deterministic, so that all brokers agree.

    Raises ValueError if there are more top clusters than identifiers.
    """
    ranked = sorted(brokers, key=lambda name: (_number(name, 0), name))
    found: dict[str, Identifier] = {}
    taken: set[Identifier] = set()
    if -(-len(ranked) // shape.top_size) > shape.base**shape.depth:
        raise ValueError(f"{len(ranked)} brokers do not fit into {shape.base}^{shape.depth} clusters")
    for at in range(0, len(ranked), shape.top_size):
        members = ranked[at : at + shape.top_size]
        identifier = next(one for one in _identifiers(members[0], shape) if one not in taken)
        taken.add(identifier)
        found |= dict.fromkeys(members, identifier)
    return found


def nearest_cluster(key: str, clusters: Collection[Identifier], shape: CloudShape) -> Identifier:
    """Return the top cluster of a subspace: the one whose identifier is closest to the hash of its key."""
    wanted = _digits(_number(key, 0), shape)
    return max(
        clusters, key=lambda one: (common_prefix(one, wanted), [-abs(a - b) for a, b in zip(one, wanted, strict=True)])
    )


def _identifiers(leader: str, shape: CloudShape) -> Iterator[Identifier]:
    """Yield every identifier once, in an order that depends on the leader."""
    size: int = shape.base**shape.depth
    start = _number(leader, 1) % size
    for step in range(size):
        yield _digits((start + step) % size, shape)


def _digits(number: int, shape: CloudShape) -> Identifier:
    found = []
    for _ in range(shape.depth):
        number, digit = divmod(number, shape.base)
        found.append(digit)
    return tuple(found)


def _number(text: str, seed: int) -> int:
    return xxhash.xxh3_64_intdigest(text.encode(), seed)
