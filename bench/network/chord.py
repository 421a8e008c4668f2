"""Chord as a peer of SkipCloud: a ring with fingers; a lookup is forwarded to the closest known one before the key."""

from __future__ import annotations

import bisect
import random

BITS = 32


class Ring:
    """Nodes by identifier. The paper uses `base` 2; a larger one has base - 1 fingers a digit, so fewer hops."""

    def __init__(self, count: int, chance: random.Random, base: int = 2) -> None:
        self.size = 1 << BITS
        self.nodes = sorted(chance.sample(range(self.size), count))
        self._fingers = {node: self._fingers_of(node, base) for node in self.nodes}

    def owner(self, key: int) -> int:
        """Return the first node at or after a key."""
        return self.nodes[bisect.bisect_left(self.nodes, key) % len(self.nodes)]

    @property
    def neighbours(self) -> float:
        """Return how many other nodes a node knows, on average."""
        return sum(map(len, self._fingers.values())) / len(self.nodes)

    def hops(self, start: int, key: int) -> int:
        """Return how many times a message for a key is forwarded."""
        owner, at, hops = self.owner(key), start, 0
        while at != owner:
            left = (key - at) % self.size
            before = [f for f in self._fingers[at] if 0 < (f - at) % self.size < left]
            at = max(before, key=lambda f, at=at: (f - at) % self.size) if before else owner  # type: ignore[misc]
            hops += 1
        return hops

    def _fingers_of(self, node: int, base: int) -> list[int]:
        """Return the other nodes that a node knows."""
        found, step = set(), 1
        while step < self.size:
            found |= {self.owner((node + digit * step) % self.size) for digit in range(1, base)}
            step *= base
        return sorted(found - {node})
