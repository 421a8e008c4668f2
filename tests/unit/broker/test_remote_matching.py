"""Matching at other brokers: whatever they answer, every change is judged by the current interests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from tests.support.predicates.matching import crowded_events, crowded_interests, match_by_brute_force
from venus.broker.matching import messages, remote
from venus.broker.matching.matching_load import MatchedEvents, MatchingLoad
from venus.broker.matching.messages import Missing, OverlayMessages
from venus.broker.matching.overlay import MatchingOverlay
from venus.broker.matching.remote import RemoteMatching
from venus.config.sections import MatchingSettings
from venus.errors import ProtocolError, Refused
from venus.network.matching import indexes
from venus.network.matching.indexes import TableIndex
from venus.network.matching.installed import InstallationMessage, InstalledPart, InstalledSubspaces
from venus.network.matching.interests import Events, Interest, Matches
from venus.network.matching.spaces import NumberedInterests, digest_of, encode_interest
from venus.network.skipcloud.clusters import CloudShape, Identifier
from venus.network.skipcloud.node import Exchange, RoutedMessage, RoutingResult, Silent
from venus.network.skipcloud.views import Neighbour
from venus.rpc.address import ClientCredentials
from venus.rpc.event_loop import LoopBridge
from venus.wire import overlay_pb2

TABLE = "main/1"
SHAPE = CloudShape.of(16)
WIRE = OverlayMessages("core", SHAPE, lambda: 1000)


class ClusterCandidates:
    """Two candidates for every cluster, whose answers are encoded and decoded as on the wire."""

    def __init__(self) -> None:
        self.stores = {"b:1": InstalledSubspaces(), "c:1": InstalledSubspaces()}
        self.origin = "a:1"
        self.asked: list[str] = []
        self.silent: set[str] = set()
        self.loads = {"b:1": 0.0, "c:1": 0.0}
        self.before_answer: Callable[[], None] = lambda: None
        self.now = 0.0
        self.loop: asyncio.AbstractEventLoop

    async def install(self, target: Identifier, installation: InstallationMessage) -> RoutingResult[Missing]:
        sent = messages.decode_installation(messages.encode_installation(installation))
        living = [address for address in self.stores if address not in self.silent]
        return RoutingResult(
            cluster=target,
            members=tuple(Neighbour(address=address, cluster=target, stamp=1) for address in living),
            hops=1,
            results=tuple(self.stores[address].install(sent, self.now) for address in living),
        )

    async def match(
        self, to: str, asked: Sequence[MatchedEvents], timeout_s: float
    ) -> tuple[list[Matches | None], float]:
        self.asked.append(to)
        if to in self.silent:
            raise Silent(to)
        parts = [messages.encode_changes(one.table, one.path, one.digest, one.events) for one in asked]
        found: list[Matches | None] = []
        for part in parts:
            content = self.stores[to].find(self.origin, part.table, part.path, part.digest)
            events = messages.decode_changes(part)
            found.append(content.prepare(events).match(events) if content is not None else None)
        self.before_answer()
        answer = messages.encode_matches(found, self.loads[to])
        return messages.decode_matches(answer, asked), answer.load

    def submit(self, work: Coroutine[Any, Any, list[Matches | None]]) -> Future[list[Matches | None]]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def post(self, call: Callable[[], object]) -> None:
        call()

    async def run_blocking(self, call: Callable[[], Any]) -> Any:
        return call()


class SubscriptionOwner:
    """The broker that owns the subscriptions."""

    def __init__(self, some: Sequence[Interest]) -> None:
        self.others, self.clock = ClusterCandidates(), 0.0
        self.matching = RemoteMatching(
            SHAPE,
            self.others,
            MatchingLoad(),
            lease_s=10.0,
            deadline_s=0.2,
            local_interests_max=10,
            monotonic=lambda: self.clock,
            thread_time=lambda: 0.0,
        )
        self.matching.origin = "a:1"
        self.present = dict(enumerate(some))
        for number, one in self.present.items():
            self.matching.add(TABLE, number, one)

    async def match(self) -> Matches:
        """Match changes as the thread that judges them does."""
        self.others.loop = asyncio.get_running_loop()
        return await asyncio.to_thread(self.matching.match, TABLE, CHANGES)

    def expected_pairs(self, events: Events) -> list[tuple[int, int]]:
        numbers = list(self.present)
        return [(row, numbers[n]) for row, n in match_by_brute_force([self.present[k] for k in numbers], events)]


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await work()

    return asyncio.run(main())


CHANGES = crowded_events(50)


def test_other_brokers_match_the_installed_interests() -> None:
    access = SubscriptionOwner(crowded_interests(500))

    async def work() -> Matches:
        await access.matching.install_all()
        return await access.match()

    assert run(work).pairs() == access.expected_pairs(CHANGES)
    assert access.matching.counters.changes_elsewhere == CHANGES.count
    assert access.matching.counters.changes_here == 0
    assert set(access.others.asked) == {"b:1", "c:1"}, "candidates with equal load take turns"


def test_pairs_matched_by_this_broker_as_a_candidate_count_as_matched_here() -> None:
    access = SubscriptionOwner(crowded_interests(500))
    access.matching.origin = access.others.origin = "b:1"

    async def work() -> Matches:
        await access.matching.install_all()
        return await access.match()

    run(work)
    counters = access.matching.counters
    assert counters.unknown == 0
    assert 0 < counters.changes_here < CHANGES.count
    assert counters.changes_elsewhere == CHANGES.count - counters.changes_here
    assert counters.asked == access.others.asked.count("c:1")


def test_few_interests_are_matched_at_the_owner() -> None:
    access = SubscriptionOwner(crowded_interests(10))
    assert run(lambda: access.match()).pairs() == access.expected_pairs(CHANGES)
    assert access.others.asked == []


def test_without_an_answer_the_other_candidate_is_asked_and_then_the_owner_matches() -> None:
    access = SubscriptionOwner(crowded_interests(500))

    async def work() -> list[Matches]:
        await access.matching.install_all()
        access.others.silent = {"b:1"}
        first = await access.match()
        access.others.silent = {"b:1", "c:1"}
        access.clock += 100
        return [first, await access.match(), await access.match()]

    for found in run(work):
        assert found.pairs() == access.expected_pairs(CHANGES)
    counters = access.matching.counters
    assert counters.changes_elsewhere == CHANGES.count
    assert counters.changes_here == 2 * CHANGES.count
    asked = len(access.others.asked)
    assert counters.unanswered < asked
    assert asked == len([a for a in access.others.asked if a in ("b:1", "c:1")])


def test_a_candidate_that_did_not_answer_is_skipped_for_a_while() -> None:
    access = SubscriptionOwner(crowded_interests(500))

    async def work() -> None:
        await access.matching.install_all()
        access.others.silent = {"b:1", "c:1"}
        await access.match()
        asked = len(access.others.asked)
        await access.match()
        assert len(access.others.asked) == asked
        access.clock += remote.SUSPENDED_S
        await access.match()
        assert len(access.others.asked) > asked

    run(work)


def test_outdated_interests_never_answer() -> None:
    access = SubscriptionOwner(crowded_interests(500))

    async def work() -> Matches:
        await access.matching.install_all()
        for number, one in enumerate(crowded_interests(20, seed=9), 1000):
            access.matching.add(TABLE, number, one)
            access.present[number] = one
        for number in range(20):
            access.matching.remove(TABLE, number)
            del access.present[number]
        return await access.match()

    assert run(work).pairs() == access.expected_pairs(CHANGES)
    assert access.matching.counters.unknown > 0


def test_a_subspace_that_is_split_while_an_answer_is_on_its_way_loses_nothing() -> None:
    access = SubscriptionOwner(crowded_interests(60))
    before = access.expected_pairs(CHANGES)

    def cut() -> None:
        access.others.before_answer = lambda: None
        for number, one in enumerate(crowded_interests(600, seed=5), 1000):
            access.matching.add(TABLE, number, one)
        access.others.silent = {"b:1", "c:1"}

    async def work() -> Matches:
        await access.matching.install_all()
        for store in access.others.stores.values():
            store.expire(100.0)
        access.others.before_answer = cut
        return await access.match()

    found = [pair for pair in run(work).pairs() if pair[1] < 1000]
    assert found == before


def test_only_differences_are_sent_and_a_missing_part_is_sent_completely() -> None:
    access = SubscriptionOwner(crowded_interests(500))

    async def work() -> None:
        matching, others = access.matching, access.others
        await matching.install_all()
        assert matching.uninstalled == 0
        sent = matching.counters.installed
        matching.add(TABLE, 5000, crowded_interests(1)[0])
        await matching.install_all()
        assert matching.counters.installed - sent <= 4
        sent = matching.counters.installed
        await matching.install_all()
        assert matching.counters.installed == sent, "leases are renewed without the interests"
        others.stores["c:1"] = InstalledSubspaces()  # the candidate has restarted
        await matching.install_all()
        assert others.stores["c:1"].interests == others.stores["b:1"].interests
        assert matching.uninstalled == 0

    run(work)


def test_a_lease_outlasts_the_installation_of_everything() -> None:
    access = SubscriptionOwner(crowded_interests(500))
    leases: list[float] = []
    install = access.others.install

    async def install_slowly(target: Identifier, installation: InstallationMessage) -> RoutingResult[Missing]:
        access.clock += 30
        leases.append(installation.lease_s)
        return await install(target, installation)

    async def work() -> None:
        access.others.install = install_slowly  # type: ignore[method-assign]
        await access.matching.install_all()
        first = access.clock
        leases.clear()
        await access.matching.install_all()
        assert min(leases) > 2 * first

    run(work)


def test_the_least_loaded_candidate_is_asked() -> None:
    access = SubscriptionOwner(crowded_interests(500))

    async def work() -> None:
        access.others.loads["b:1"] = 0.9
        await access.matching.install_all()
        await access.match()
        access.others.asked.clear()
        await access.match()
        assert set(access.others.asked) == {"c:1"}

    run(work)


def test_the_last_interest_of_a_table_removes_the_table() -> None:
    access = SubscriptionOwner(crowded_interests(3))
    for number in range(3):
        access.matching.remove(TABLE, number)
    assert len(run(lambda: access.match())) == 0
    assert access.matching.count_subspaces() == (0, 0)


# -- on the wire -------------------------------------------------------------------------------------------------------


ASKED = MatchedEvents(
    table=TABLE, path="0:", digest=1, events=Events(2, {"a": np.array([1.0, np.nan])}), numbers=frozenset({7})
)


def test_an_answer_names_only_requested_interests() -> None:
    good = Matches(np.array([0, 1]), np.array([7, 7]))
    (found,) = messages.decode_matches(messages.encode_matches([good], 0.0), [ASKED])
    assert found is not None
    assert found.pairs() == good.pairs()
    for wrong in (Matches(np.array([2]), np.array([7])), Matches(np.array([0]), np.array([8]))):
        with pytest.raises(ProtocolError, match="not asked about"):
            messages.decode_matches(messages.encode_matches([wrong], 0.0), [ASKED])
    with pytest.raises(ProtocolError, match="0 parts were matched"):
        messages.decode_matches(overlay_pb2.MatchAnswer(), [ASKED])
    cut = overlay_pb2.MatchAnswer(parts=[overlay_pb2.MatchedPart(known=True, changes=b"1234", interests=b"1234")])
    with pytest.raises(ProtocolError, match="cut off"):
        messages.decode_matches(cut, [ASKED])


def test_columns_have_a_value_for_each_change() -> None:
    part = messages.encode_changes(TABLE, "0:", 1, Events(2, {"a": np.array([1.0, np.nan])}, {"b": [b"sx", b""]}))
    events = messages.decode_changes(part)
    assert events.others == {"b": [b"sx", None]}
    part.count = 3
    with pytest.raises(ProtocolError, match="has not 3 values"):
        messages.decode_changes(part)


def test_a_call_from_another_overlay_or_shape_is_refused() -> None:
    sender = Neighbour(address="a:1", cluster=(0, 1), stamp=5)
    sent = WIRE.encode_exchange(Exchange(sender=sender, level=1, entries=(sender,), is_first=True))
    assert WIRE.decode_exchange(sent) == Exchange(sender=sender, level=1, entries=(sender,), is_first=True)
    with pytest.raises(Refused, match="of the overlay other"):
        OverlayMessages("other", SHAPE, lambda: 1000).decode_exchange(sent)
    with pytest.raises(Refused, match="another number of brokers"):
        OverlayMessages("core", CloudShape.of(64), lambda: 1000).decode_exchange(sent)


@pytest.mark.parametrize("wrong", [{"cluster": b"\2\0"}, {"cluster": b""}, {"stamp": 10**16}])
def test_an_impossible_neighbour_is_refused(wrong: dict[str, Any]) -> None:
    sender = Neighbour(address="a:1", cluster=(0, 1), stamp=5)
    sent = WIRE.encode_exchange(Exchange(sender=sender, level=1, entries=(sender,)))
    for name, value in wrong.items():
        setattr(sent.entries[0], name, value)
    with pytest.raises(ProtocolError, match="overlay is wrong"):
        WIRE.decode_exchange(sent)


def test_a_routed_message_and_its_result_survive_the_wire() -> None:
    message: RoutedMessage[InstallationMessage] = RoutedMessage(
        target=(1, 0), hops=2, sideways=("a:1",), expected=(1, 1), budget_s=0.5
    )
    assert WIRE.decode_routed(WIRE.encode_routed(message)) == message
    one = Neighbour(address="a:1", cluster=(1, 0), stamp=5, load=0.5, age=3)
    result: RoutingResult[Missing] = RoutingResult(cluster=(1, 0), members=(one,), hops=2, failed=1, results=((), (3,)))
    assert WIRE.decode_result(WIRE.encode_result(result)) == result
    with pytest.raises(ProtocolError, match="names no broker"):
        WIRE.decode_result(overlay_pb2.RouteAnswer(cluster=b"\0\0"))


def test_another_broker_builds_its_indexes_outside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[threading.Thread] = []

    class Index(TableIndex):
        def __init__(self, interests: Sequence[Interest], sample: Events) -> None:
            built.append(threading.current_thread())
            super().__init__(interests, sample)

    monkeypatch.setattr(indexes, "TableIndex", Index)

    async def match_twice() -> None:
        bridge = LoopBridge(asyncio.get_running_loop())
        node = MatchingOverlay(MatchingSettings(), "core", ClientCredentials(), bridge)
        content = NumberedInterests()
        for number in range(3):
            one = encode_interest(Interest({}, {"amount": (number, number + 1)}))
            content.add(number, one, digest_of(number, one))
        part = InstalledPart(
            table=TABLE, path="0:", digest=content.digest, is_whole=True, added=tuple(content.interests.items())
        )
        node.install_here(InstallationMessage(origin="a:1", lease_s=60, parts=(part,)))
        events = Events(1, {"amount": np.array([1.5])})
        asked = [messages.encode_changes(TABLE, "0:", content.digest, events)]
        for _ in range(2):
            found = await node.on_match("a:1", asked)
            assert found[0] is not None
            assert found[0].pairs() == [(0, 1)]
        await node.stop()
        bridge.close()

    asyncio.run(match_twice())
    assert len(built) == 1
    assert built[0] is not threading.current_thread()
