"""Identifiers of the top clusters of SkipCloud, and which cluster is nearest to one (SREM 3.1). Pure.

A top cluster has an identifier of `depth` digits; the brokers of a cluster at level i share its first i digits. Level 0
has all brokers. So a cluster of one level is split into at most `base` clusters of the next. Not every identifier has
brokers: the nearest cluster that has some takes over, and all brokers agree which one that is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import xxhash

#: Number of brokers of a top cluster, which are the candidates for an event.
TOP_SIZE = 4

Identifier = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudShape:
    """Parameters that all brokers of an overlay share. `each`: neighbours in each cluster of the next level."""

    base: int
    depth: int
    each: int = 4

    @classmethod
    def of(cls, brokers: int, *, depth: int = 2, top_size: int = TOP_SIZE, each: int = 4) -> CloudShape:
        """Return the shape for a number of brokers, with top clusters of `top_size`."""
        clusters = max(1, -(-brokers // top_size))
        return cls(base=max(2, math.ceil(clusters ** (1 / depth) - 1e-9)), depth=depth, each=each)

    @property
    def clusters(self) -> int:
        """The number of identifiers."""
        return int(self.base**self.depth)

    def identifier(self, number: int) -> Identifier:
        """Return the identifier with this number, modulo their count."""
        found = []
        for _ in range(self.depth):
            number, digit = divmod(number, self.base)
            found.append(digit)
        return tuple(found)

    def identifier_of(self, key: str) -> Identifier:
        """Return the identifier to which a key is hashed."""
        return self.identifier(xxhash.xxh3_64_intdigest(key.encode()))

    def is_identifier(self, found: Identifier) -> bool:
        """Whether this is an identifier of the overlay."""
        return len(found) == self.depth and all(0 <= digit < self.base for digit in found)

    def distance(self, found: Identifier, target: Identifier) -> Identifier:
        """Return how far a cluster is from a target: less is nearer, zeros are the target itself.

        For each digit, the distance counts upwards (modulo `base`) from the target's digit to the cluster's, so all
        clusters have different distances, and the nearest cluster is found digit by digit.
        """
        return tuple((a - b) % self.base for a, b in zip(found, target, strict=True))


def common_prefix(one: Identifier, other: Identifier) -> int:
    """Return the length of the common prefix of two identifiers."""
    for place, (a, b) in enumerate(zip(one, other, strict=True)):
        if a != b:
            return place
    return len(one)
