"""Many nodes of SkipCloud in one process: the product's code, with messages that arrive at once or not at all.

Only `Cloud` knows which brokers live. Each node joins by addresses of a few others, and learns everything else by
messages, which are counted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from venus.network.skipcloud.clusters import CloudShape, Identifier
from venus.network.skipcloud.node import Exchange, OverlayNode, RoutedMessage, RoutingResult, Silent
from venus.network.skipcloud.views import Neighbour

T = TypeVar("T")
#: Addresses that a broker is configured with.
SEEDS = 3
#: Cycles (seconds) until 1,024 brokers that joined at once route in two hops; 256 brokers need a third of that.
SETTLED_CYCLES = 75


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, and return its result."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits for something that is not simulated")


class Cloud:
    """Simulated brokers of SkipCloud, which join one after the other through earlier brokers."""

    def __init__(self, brokers: int, shape: CloudShape, seed: int) -> None:
        self.shape, self.chance = shape, random.Random(seed)
        self.living: dict[str, OverlayNode[str, str]] = {}
        self.messages: Counter[str] = Counter()
        self.received: list[tuple[str, str]] = []
        self._seeds: dict[str, list[str]] = {}
        self._stamps = 0
        for number in range(brokers):
            self.start(f"b{number}:1")

    def start(self, address: str, seeds: list[str] | None = None) -> OverlayNode[str, str]:
        """Start a broker, which knows some addresses, and let it join."""
        known = list(self.living)
        self._seeds[address] = seeds if seeds is not None else self.chance.sample(known, min(SEEDS, len(known)))

        def receive(payload: str) -> str:
            self.received.append((address, payload))
            return address

        node = self.living[address] = OverlayNode[str, str](
            address, self.shape, self, chance=self.chance.randrange, next_stamp=self._next_stamp, receive=receive
        )
        run_to_end(node.join(self._seeds[address]))
        return node

    def run(self, cycles: int) -> None:
        """Run exchange cycles: in each, all living brokers exchange once, in random order."""
        for _ in range(cycles):
            for address in self.chance.sample(list(self.living), len(self.living)):
                run_to_end(self.living[address].run_cycle(self._seeds[address]))

    def kill(self, count: int) -> None:
        """Let this number of brokers die at once."""
        for address in self.chance.sample(list(self.living), count):
            del self.living[address]

    def add_address(self, address: str, other: str) -> None:
        """Configure one more address at a broker."""
        self._seeds[address].append(other)

    def leave(self, address: str) -> None:
        """Let a broker announce that it leaves, and remove it."""
        node = self.living.pop(address)
        run_to_end(node.leave())

    def clusters(self) -> dict[Identifier, set[str]]:
        """Return the living members of each top cluster."""
        found: dict[Identifier, set[str]] = {}
        for address, node in self.living.items():
            found.setdefault(node.cluster, set()).add(address)
        return found

    def nearest(self, target: Identifier) -> Identifier:
        """Return the cluster that is responsible for an identifier."""
        return min(self.clusters(), key=lambda one: self.shape.distance(one, target))

    def is_whole(self) -> bool:
        """Whether every broker knows exactly the living members of its top cluster."""
        clusters = self.clusters()
        return all(node.views.top.keys() == clusters[node.cluster] - {address} for address, node in self.living.items())

    def send_some(self, count: int) -> list[tuple[Identifier, RoutingResult[str]]]:
        """Route `count` messages from random brokers to random identifiers; return each target with the result."""
        found = []
        for _ in range(count):
            start = self.chance.choice(list(self.living.values()))
            target = self.shape.identifier(self.chance.randrange(self.shape.clusters))
            found.append((target, run_to_end(start.find(target))))
        return found

    def count_lost(self, sent: list[tuple[Identifier, RoutingResult[str]]]) -> int:
        """Return how many messages did not reach the responsible cluster."""
        return sum(result.cluster != self.nearest(target) for target, result in sent)

    def neighbours(self) -> float:
        """Return the mean number of brokers that a broker knows."""
        return sum(len(node.views.known_brokers()) for node in self.living.values()) / len(self.living)

    # -- the transport ---------------------------------------------------------------------------------------------

    async def exchange(self, to: str, message: Exchange) -> Exchange:
        """Deliver a broker's exchange message to a living broker; return the answer."""
        return self._node(to, "exchange").on_exchange(message)

    async def route(self, to: Neighbour, message: RoutedMessage[str]) -> RoutingResult[str]:
        """Let a living broker route a message on; return the result."""
        return await self._node(to.address, "route").on_route(message)

    async def deliver(self, to: Sequence[Neighbour], payload: str) -> list[str | None]:
        """Deliver a payload to brokers; return the address of each living one, None for a dead one."""
        self.messages["deliver"] += len(to)
        living = [one.address if one.address in self.living else None for one in to]
        self.received += [(address, payload) for address in living if address is not None]
        return living

    def _node(self, address: str, kind: str) -> OverlayNode[str, str]:
        """Return a living broker, and count the message to it. Raises Silent for a dead one."""
        self.messages[kind] += 1
        node = self.living.get(address)
        if node is None:
            raise Silent(address)
        return node

    def _next_stamp(self) -> int:
        self._stamps += 1
        return self._stamps
