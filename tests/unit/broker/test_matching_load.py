"""Distribution of the matching work over the brokers, for any subspaces and clusters."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from tests.support.predicates.matching import crowded_events, crowded_interests
from venus.broker.matching.matching_load import (
    EVEN,
    HALF_LIFE_S,
    LOAD_STEP,
    Candidates,
    MatchedEvents,
    MatchingLoad,
    Place,
    PlacedSubspace,
    plan_placements,
)
from venus.broker.matching.messages import Missing
from venus.broker.matching.remote import RemoteMatching
from venus.network.matching.indexes import TableIndex
from venus.network.matching.installed import InstallationMessage, InstalledSubspaces
from venus.network.matching.interests import Matches
from venus.network.skipcloud.clusters import CloudShape, Identifier
from venus.network.skipcloud.node import RoutingResult
from venus.network.skipcloud.views import Neighbour

TABLE = "main/1"
SHAPE = CloudShape.of(16)
TARGETS = [SHAPE.identifier(number) for number in range(SHAPE.clusters)]
#: Brokers join and leave: clusters differ by one or two brokers.
SIZES = (5, 4, 4, 3)


def clusters() -> dict[Identifier, list[str]]:
    return {target: [f"{n}.{i}:1" for i in range(SIZES[n])] for n, target in enumerate(TARGETS)}


def max_to_mean(placed: dict[Place, PlacedSubspace]) -> float:
    members = clusters()
    work = Counter[str]()
    for one in placed.values():
        for address in members[one.at]:
            work[address] += one.work / len(members[one.at])  # type: ignore[assignment]
    return max(work.values()) * sum(SIZES) / sum(work.values())


@pytest.mark.parametrize("seed", range(20))
def test_subspaces_move_until_the_brokers_have_equal_work(seed: int) -> None:
    chance, members = random.Random(seed), clusters()
    placed = {}
    for number in range(64):
        at, other = chance.sample(TARGETS, 2)
        placed[TABLE, str(number)] = PlacedSubspace(work=chance.paretovariate(1.5), at=at, other=other)
    largest = max(one.work for one in placed.values())
    total = sum(one.work for one in placed.values())
    for _ in range(10):
        moves = plan_placements(placed, members)
        for name, target in moves.items():
            before = placed[name]
            assert target == before.other
            placed[name] = PlacedSubspace(work=before.work, at=target, other=before.at)
    assert not moves, "subspaces do not move back and forth"
    assert max_to_mean(placed) <= max(EVEN + 0.1, largest / min(SIZES) * sum(SIZES) / total)


def test_no_subspace_moves_without_work_or_to_an_unknown_cluster() -> None:
    first, second = TARGETS[:2]
    idle = {(TABLE, str(n)): PlacedSubspace(work=0.0, at=first, other=second) for n in range(9)}
    assert plan_placements(idle, clusters()) == {}
    busy = {name: PlacedSubspace(work=5.0, at=first, other=second) for name in idle}
    assert plan_placements(busy, {first: ["a:1"]}) == {}
    assert plan_placements(busy, {first: ["a:1"], second: ["a:1"]}) == {}, "both identifiers are of one cluster"


def test_the_least_loaded_candidate_is_asked_and_a_suspended_one_is_not() -> None:
    candidates = Candidates()
    candidates.members[TARGETS[0]] = ["a:1", "b:1"]
    candidates["a:1"].load = LOAD_STEP
    assert candidates.choose(TARGETS[0], 0.0) == "b:1"
    candidates["b:1"].suspended_until = 1.0
    assert candidates.choose(TARGETS[0], 0.5) == "a:1"
    assert candidates.choose(TARGETS[0], 1.0) == "b:1"
    assert candidates.choose(TARGETS[1], 0.0) is None


def test_a_candidate_that_was_busy_once_is_asked_again() -> None:
    """A candidate reports its load only in its answers."""
    candidates = Candidates()
    candidates.members[TARGETS[0]] = ["a:1", "b:1"]
    candidates["a:1"].load, candidates["a:1"].heard_at = 8 * LOAD_STEP, 100.0
    candidates["b:1"].load, candidates["b:1"].heard_at, candidates["b:1"].pairs = LOAD_STEP, 100.0, 1
    assert candidates.choose(TARGETS[0], 100.0) == "b:1"
    candidates["b:1"].heard_at = 100.0 + 5 * HALF_LIFE_S
    assert candidates.choose(TARGETS[0], 100.0 + 5 * HALF_LIFE_S) == "a:1"


class SixteenOthers:
    """Brokers in four clusters of different sizes, which count the pairs that they compare."""

    def __init__(self) -> None:
        self.members = clusters()
        self.stores = {address: InstalledSubspaces() for some in self.members.values() for address in some}
        self.pairs = Counter[str]()
        self.loop: asyncio.AbstractEventLoop

    async def install(self, target: Identifier, installation: InstallationMessage) -> RoutingResult[Missing]:
        members = self.members[target]
        return RoutingResult(
            cluster=target,
            members=tuple(Neighbour(address=address, cluster=target, stamp=1) for address in members),
            hops=1,
            results=tuple(self.stores[address].install(installation, 0.0) for address in members),
        )

    async def match(
        self, to: str, asked: Sequence[MatchedEvents], timeout_s: float
    ) -> tuple[list[Matches | None], float]:
        found: list[Matches | None] = []
        for one in asked:
            content = self.stores[to].find("a:1", one.table, one.path, one.digest)
            found.append(content.prepare(one.events).match(one.events) if content is not None else None)
            self.pairs[to] += one.pairs if content is not None else 0
        return found, 0.0

    def submit(self, work: Coroutine[Any, Any, list[Matches | None]]) -> Future[list[Matches | None]]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def post(self, call: Callable[[], object]) -> None:
        call()

    async def run_blocking(self, call: Callable[[], Any]) -> Any:
        return call()


@pytest.mark.parametrize("table", ["main/5", "main/6"])
def test_skewed_interests_are_spread_evenly_over_all_brokers(table: str) -> None:
    """With these names most subspaces are hashed to one cluster: it had 1.8 and 2.0 times the mean."""
    interests, others = crowded_interests(2000), SixteenOthers()
    matching = RemoteMatching(
        SHAPE,
        others,
        MatchingLoad(),
        lease_s=10.0,
        deadline_s=5.0,
        local_interests_max=10,
        monotonic=lambda: 0.0,
        thread_time=lambda: 0.0,
    )
    matching.origin = "a:1"
    for number, one in enumerate(interests):
        matching.add(table, number, one)
    local = TableIndex(interests, crowded_events(100))

    async def match_some(rounds: int) -> None:
        others.loop = asyncio.get_running_loop()
        for seed in range(rounds):
            events = crowded_events(100, seed)
            found = await asyncio.to_thread(matching.match, table, events)
            assert found.pairs() == local.match(events).pairs()

    async def work() -> float:
        await matching.install_all()
        for _ in range(3):
            await match_some(20)
            await matching.install_all()
        assert matching.uninstalled == 0
        here = matching.counters.changes_here
        others.pairs.clear()
        await match_some(40)
        assert matching.counters.changes_here == here, "a subspace is asked for where it is"
        return max(others.pairs.values()) * sum(SIZES) / others.pairs.total()

    found = asyncio.run(work())
    assert found <= 1.3, found
