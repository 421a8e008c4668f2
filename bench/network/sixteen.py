"""Sixteen real broker processes, which share the matching of skewed subscriptions, for figures S1 to S3.

One more broker, in this process, owns the subscriptions. All of them share the cores of one machine.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.brokers.overlays import AccessBroker, BrokerOverlay
from tests.support.predicates.matching import crowded_events, crowded_interests
from venus.network.matching.indexes import TableIndex
from venus.network.matching.interests import Events
from venus.network.skipcloud.clusters import Identifier
from venus.network.skipcloud.node import RoutedMessage
from venus.network.skipcloud.views import Neighbour

BROKERS = 16
TABLE = "main/1"
CHANGES = 200
#: Batches before the measurement: brokers place subspaces by the load of earlier batches.
WARM_UP = 30
INSTALLED_S = 600.0
HEALED_S = 60.0


@contextmanager
def start_brokers(folder: Path) -> Iterator[tuple[BrokerOverlay, AccessBroker]]:
    """Start sixteen brokers and the access broker, which owns the subscriptions."""
    with BrokerOverlay(folder, BROKERS, brokers=BROKERS, exchange_s=0.5) as others:
        others.wait_until_whole()
        with AccessBroker(others.addresses[8:10], brokers=BROKERS, lease_s=6.0, deadline_ms=1000.0) as access:
            others.wait_until_whole(access.address)
            yield others, access


@contextmanager
def start_sixteen_brokers() -> Iterator[tuple[BrokerOverlay, AccessBroker]]:
    """Start the brokers in a temporary folder; stop them and delete the folder at the end."""
    folder = Path(tempfile.mkdtemp(prefix="venus-bench-"))
    try:
        with start_brokers(folder) as found:
            yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class HopCounts:
    """How many hops messages took from a broker to a random cluster, and how many ended in a wrong one."""

    hops: float
    hops_max: int
    lost: int


def route(messages: int) -> HopCounts:
    """Route messages from each broker in turn to random clusters."""
    chance, hops, lost = random.Random(1), [], 0
    with start_sixteen_brokers() as (others, access):
        shape = access.overlay.shape
        clusters = {address: _cluster_of(status.cluster) for address, status in others.statuses().items()}
        places = {*clusters.values(), access.overlay.node.cluster}
        for number in range(messages):
            address = others.addresses[number % BROKERS]
            target = shape.identifier(chance.randrange(shape.clusters))
            first = Neighbour(address=address, cluster=clusters[address], stamp=1)
            found = access.call(access.overlay.connections.route(first, RoutedMessage(target=target)))
            hops.append(found.hops)
            lost += found.cluster != min(places, key=lambda one, to=target: shape.distance(one, to))  # type: ignore[misc]
    return HopCounts(statistics.mean(hops), max(hops), lost)


def _cluster_of(text: str) -> Identifier:
    return tuple(map(int, text.split(".")))


class SkewedSubscriptions:
    """Skewed interests at the access broker, and an index of them in this process to compare with."""

    def __init__(self, access: AccessBroker, count: int) -> None:
        self._access, interests = access, crowded_interests(count)
        access.subscribe(TABLE, interests)
        access.wait_until_installed(INSTALLED_S)
        self._local = TableIndex(interests, crowded_events(CHANGES))
        self.wrong = 0

    def match(self, batches: int, first: int = 0) -> float:
        """Match batches of changes, and count wrong results; return the seconds that the overlay needed."""
        took_s = 0.0
        for seed in range(first, first + batches):
            events: Events = crowded_events(CHANGES, seed)
            began = time.monotonic()
            found = self._access.match(TABLE, events)
            took_s += time.monotonic() - began
            self.wrong += found.pairs() != self._local.match(events).pairs()
        return took_s

    def warm_up(self) -> None:
        """Let the brokers build their indexes and distribute the subspaces."""
        for turn in range(3):
            self.match(WARM_UP // 3, turn * WARM_UP // 3)
            self._access.wait_for_rounds(2)


@dataclass(frozen=True, slots=True)
class SharedMatching:
    """Result of matching by sixteen brokers."""

    changes_per_s: float
    elsewhere: float  # share of the changes that other brokers matched
    imbalance: float  # ratio of the most loaded broker's pairs to the mean
    wrong: int


def share_matching(count: int, batches: int) -> SharedMatching:
    """Measure how sixteen brokers share the matching of changes against `count` subscriptions."""
    with start_sixteen_brokers() as (others, access):
        subscriptions = SkewedSubscriptions(access, count)
        subscriptions.warm_up()
        before, counters = others.matched_pairs(), access.overlay.remote.counters
        elsewhere = counters.changes_elsewhere
        took_s = subscriptions.match(batches)
        pairs = [found - before[address] for address, found in others.matched_pairs().items()]
        changes = batches * CHANGES
        return SharedMatching(
            changes_per_s=changes / took_s,
            elsewhere=(counters.changes_elsewhere - elsewhere) / changes,
            imbalance=max(pairs) * len(pairs) / sum(pairs),
            wrong=subscriptions.wrong,
        )


@dataclass(frozen=True, slots=True)
class DeathOfMany:
    """Effects of the death of eight of sixteen brokers at once."""

    first_s: float  # until the first batch after the deaths was matched
    whole_s: float  # until all survivors knew each other
    wrong: int


def kill_half(count: int, batches: int) -> DeathOfMany:
    """Kill eight of sixteen brokers that match for `count` subscriptions; return what that cost."""
    with start_sixteen_brokers() as (others, access):
        subscriptions = SkewedSubscriptions(access, count)
        subscriptions.match(batches)
        began = time.monotonic()
        others.kill(BROKERS // 2)
        with ThreadPoolExecutor(1) as pool:  # the figure excludes the time of the matching itself
            whole = pool.submit(_wait_until_whole, others, access.address)
            first_s = subscriptions.match(1)
            subscriptions.match(batches)
            whole_s = whole.result() - began
        subscriptions.match(batches)
        return DeathOfMany(first_s, whole_s, subscriptions.wrong)


def _wait_until_whole(others: BrokerOverlay, access: str) -> float:
    """Wait until all survivors know each other; return the time of that moment."""
    others.wait_until_whole(access, timeout_s=HEALED_S)
    return time.monotonic()
