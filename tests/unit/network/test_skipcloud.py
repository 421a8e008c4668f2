"""SkipCloud: brokers join by any address, clusters have equal sizes, messages arrive although many brokers died."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import replace

import pytest

from bench.network.cloud import Cloud, run_to_end
from venus.network.skipcloud import node as protocol
from venus.network.skipcloud.clusters import CloudShape, common_prefix
from venus.network.skipcloud.node import Exchange, OverlayNode, RoutedMessage
from venus.network.skipcloud.views import Neighbour, NeighbourViews, check_neighbour

#: More neighbours than a broker tried once.
DEAD = 12


def cloud(brokers: int, seed: int = 1, *, cycles: int = 12) -> Cloud:
    found = Cloud(brokers, CloudShape.of(brokers), seed)
    found.run(cycles)
    return found


def heal(found: Cloud, cycles: int) -> int:
    """Run cycles until the overlay is whole; return their number."""
    for number in range(1, cycles + 1):
        found.run(1)
        if found.is_whole():
            return number
    raise AssertionError(f"it is not whole after {cycles} cycles")


@pytest.mark.parametrize("brokers", [1, 4, 16, 64, 100, 1024])
def test_a_shape_has_an_identifier_for_each_top_cluster(brokers: int) -> None:
    shape = CloudShape.of(brokers)
    assert shape.clusters >= brokers / 4
    identifiers = {shape.identifier(n) for n in range(shape.clusters)}
    assert len(identifiers) == shape.clusters
    assert all(map(shape.is_identifier, identifiers))
    assert shape.identifier_of("x") in identifiers


def test_each_existing_cluster_has_another_distance_so_all_brokers_agree() -> None:
    shape = CloudShape(base=4, depth=3)
    identifiers = [shape.identifier(n) for n in range(shape.clusters)]
    target = identifiers[27]
    distances = [shape.distance(one, target) for one in identifiers]
    assert len(set(distances)) == len(identifiers)
    assert shape.distance(target, target) == (0, 0, 0)
    nearest = sorted(identifiers, key=lambda one: shape.distance(one, target))
    assert all(common_prefix(one, target) == 2 for one in nearest[1:4])


@pytest.mark.parametrize("brokers", [16, 64])
def test_brokers_that_join_one_by_one_form_equal_clusters_which_are_complete_graphs(brokers: int) -> None:
    for seed in range(3):
        found = cloud(brokers, seed, cycles=25)
        heal(found, 10)
        sizes = Counter(map(len, found.clusters().values()))
        assert len(found.clusters()) == found.shape.clusters
        assert max(sizes) - min(sizes) <= 2, sizes


def test_no_broker_knows_the_whole_map_of_a_large_overlay() -> None:
    found = cloud(256, cycles=1)
    assert found.neighbours() < 256 / 3


def test_brokers_that_start_with_one_known_address_find_each_other() -> None:
    found = Cloud(0, CloudShape.of(16), 2)
    for number in range(16):
        found.start(f"b{number}:1", seeds=["b15:1"])  # the broker at that address starts last
    heal(found, 12)
    found.run(12)
    assert sorted(map(len, found.clusters().values())) == [4, 4, 4, 4]


def test_a_view_has_equally_many_members_of_each_child_cluster_and_only_its_own() -> None:
    found = cloud(64)
    for address, node in found.living.items():
        for level, view in enumerate(node.views.levels):
            assert address not in view
            assert all(common_prefix(one.cluster, node.cluster) >= level for one in view.values())
            children = Counter(one.cluster[level] for one in view.values())
            assert max(children.values()) <= found.shape.each
            assert len(children) >= found.shape.base - 1


@pytest.mark.parametrize("brokers", [16, 64])
def test_a_message_takes_one_hop_per_digit_and_reaches_the_responsible_cluster(brokers: int) -> None:
    found = cloud(brokers, cycles=20)
    sent = found.send_some(300)
    assert found.count_lost(sent) == 0
    assert all(result.hops <= found.shape.depth + result.failed for _, result in sent)


def test_a_payload_is_delivered_once_to_each_member_of_the_cluster() -> None:
    found = cloud(64, cycles=25)
    heal(found, 10)
    target = found.shape.identifier(5)
    result = run_to_end(found.living["b1:1"].find(target, "hello"))
    members = found.clusters()[found.nearest(target)]
    assert sorted(found.received) == sorted((address, "hello") for address in members)
    assert {one.address for one in result.members} == set(result.results) == members


def test_an_identifier_without_brokers_is_taken_over_by_one_cluster_for_all() -> None:
    found = cloud(16, cycles=15)
    gone = found.shape.identifier(2)
    for address in found.clusters()[gone]:
        del found.living[address]
    reached = {run_to_end(node.find(gone)).cluster for node in found.living.values()}
    assert reached == {found.nearest(gone)}


@pytest.mark.parametrize("seed", range(6))
def test_half_of_sixteen_die_at_once_and_the_overlay_is_whole_within_ten_cycles(seed: int) -> None:
    found = cloud(16, seed, cycles=15)
    found.kill(8)
    assert found.count_lost(found.send_some(200)) < 50
    heal(found, 10)
    assert found.count_lost(found.send_some(200)) == 0
    found.run(20)
    sizes = sorted(map(len, found.clusters().values()))
    assert sizes == [2, 2, 2, 2], "members move where brokers are missing"


def test_without_retries_many_messages_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    found = cloud(64, seed=3)
    found.kill(32)
    monkeypatch.setattr(protocol, "TRIES", 1)
    assert found.count_lost(found.send_some(300)) > 15


@pytest.mark.parametrize("seed", range(4))
def test_a_message_passes_many_dead_neighbours_at_once(seed: int) -> None:
    found = cloud(64, seed, cycles=20)
    start = next(iter(found.living.values()))
    targets = map(found.shape.identifier, range(found.shape.clusters))
    target = max(targets, key=lambda one: (len(start.views.nearest(one)), one))
    nearest = start.views.nearest(target)
    assert len(nearest) > DEAD
    for one in nearest[:DEAD]:
        del found.living[one.address]
    assert run_to_end(start.find(target)).cluster == found.nearest(target)


def test_half_of_many_die_and_soon_no_message_is_lost() -> None:
    found = cloud(128, seed=3)
    found.kill(64)
    assert found.count_lost(found.send_some(300)) < 30
    found.run(15)
    assert found.count_lost(found.send_some(300)) == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_lone_survivor_is_known_at_once_to_the_cluster_that_would_take_over(seed: int) -> None:
    """Otherwise that cluster accepts its messages until an exchange happens to name the survivor."""
    found = cloud(64, seed, cycles=20)
    clusters = found.clusters()
    target = min(clusters)
    survivor, *others = sorted(clusters[target])
    for address in others:
        del found.living[address]
    del clusters[target]
    heir = min(clusters, key=lambda one: found.shape.distance(one, target))
    for address in clusters[heir]:
        for level in found.living[address].views.levels:
            level.pop(survivor, None)
    run_to_end(found.living[survivor].run_cycle([]))
    assert all(run_to_end(found.living[address].find(target)).cluster == target for address in clusters[heir])


def test_a_small_cluster_that_stays_as_it_is_announces_itself_no_longer() -> None:
    found = cloud(8, cycles=30)
    before = found.messages["exchange"]
    found.run(10)
    assert (found.messages["exchange"] - before) / 80 < 2.5


def test_dead_brokers_are_forgotten_although_others_repeat_old_news() -> None:
    found = cloud(16)
    found.kill(8)
    found.run(20)
    known = {address for node in found.living.values() for address in node.views.known_brokers()}
    assert known == set(found.living)


def test_a_broker_that_leaves_is_forgotten_at_once_by_its_neighbours() -> None:
    found = cloud(16)
    known = set(found.living["b3:1"].views.known_brokers())
    found.leave("b3:1")
    assert not any("b3:1" in found.living[address].views.known_brokers() for address in known)


def test_a_restarted_broker_is_accepted_although_it_was_dropped() -> None:
    found = cloud(16)
    del found.living["b3:1"]
    found.run(10)
    found.start("b3:1")
    heal(found, 10)
    assert any("b3:1" in node.views.top for node in found.living.values())


def test_a_member_with_more_knowledge_is_asked_before_another_cluster_takes_over() -> None:
    found = cloud(16, cycles=15)
    node = found.living["b0:1"]
    target = next(one for one in found.clusters() if one != node.cluster)
    for level in node.views.levels:
        level.clear()
    assert run_to_end(node.find(target)).cluster == target


def test_separated_parts_join_again_by_a_known_address() -> None:
    found = Cloud(0, CloudShape.of(16), 2)
    for number in range(8):
        found.start(f"a{number}:1", seeds=["a0:1"])
        found.start(f"b{number}:1", seeds=["b0:1"])
    found.run(10)
    assert not any("b1:1" in node.views.known_brokers() for address, node in found.living.items() if address[0] == "a")
    found.add_address("b3:1", "a0:1")
    found.run(30)
    heal(found, 20)
    assert {address[0] for address in found.living["a0:1"].views.known_brokers()} == {"a", "b"}
    assert sorted(map(len, found.clusters().values())) == [4, 4, 4, 4]


def test_repeated_old_news_does_not_stay_young() -> None:
    views = NeighbourViews("me:1", (0, 0), CloudShape.of(16))
    one = Neighbour(address="a:1", cluster=(0, 0), stamp=5, age=7)
    views.learn([one])
    views.learn([replace(one, age=0)])
    assert views.top["a:1"].age == 7
    views.learn([replace(one, age=0, stamp=6)])
    assert views.top["a:1"].age == 0


def test_a_broker_that_has_moved_refuses_messages_for_its_former_cluster() -> None:
    found = cloud(16)
    node = found.living["b0:1"]
    target = next(one for one in found.clusters() if one != node.cluster)
    answer = run_to_end(node.on_route(RoutedMessage(target=target, payload="x", expected=target)))
    assert answer.has_moved
    assert found.received == []


def test_newer_news_counts_and_a_departed_broker_is_accepted_only_with_newer_news() -> None:
    shape = CloudShape.of(16)
    views = NeighbourViews("me:1", (0, 0), shape)
    one = Neighbour(address="a:1", cluster=(0, 0), stamp=5)
    views.learn([one])
    views.learn([replace(one, cluster=(1, 1), stamp=4)])
    assert "a:1" in views.top
    views.learn([replace(one, cluster=(1, 1), stamp=6)])
    assert "a:1" not in views.top
    views.drop("a:1")
    views.learn([replace(one, stamp=6)])
    assert not views.known_brokers()
    views.learn([replace(one, stamp=7)])
    assert "a:1" in views.top


def test_entries_from_other_brokers_are_in_range() -> None:
    shape = CloudShape.of(16)
    good = Neighbour(address="a:1", cluster=(0, 1), stamp=5)
    assert not check_neighbour(good, shape, 5)
    assert "2 digits below 2" in check_neighbour(replace(good, cluster=(0, 2)), shape, 5)
    assert "2 digits below 2" in check_neighbour(replace(good, cluster=(0,)), shape, 5)
    assert "clock" in check_neighbour(good, shape, 4)


def test_upkeep_takes_a_few_messages_per_cycle_and_broker() -> None:
    found = cloud(64)
    before = found.messages.total()
    found.run(10)
    assert (found.messages.total() - before) / 640 < 3


def test_views_are_refreshed_by_exchanges() -> None:
    found = cloud(64, cycles=1)
    before = {address: set(node.views.levels[0]) for address, node in found.living.items()}
    found.run(20)
    kept = [len(before[a] & set(node.views.levels[0])) / len(before[a]) for a, node in found.living.items()]
    assert statistics.mean(kept) < 0.9


def test_a_lone_broker_keeps_its_messages() -> None:
    found = Cloud(1, CloudShape.of(16), 1)
    result = run_to_end(found.living["b0:1"].find((1, 1), "x"))
    assert (result.hops, result.results) == (0, ("b0:1",))


def test_an_exchange_of_the_top_cluster_sends_all_members() -> None:
    found = cloud(16, cycles=15)
    node: OverlayNode[str, str] = found.living["b0:1"]
    newcomer = Neighbour(address="new:1", cluster=node.cluster, stamp=10**9)
    answer = node.on_exchange(Exchange(sender=newcomer, level=found.shape.depth))
    assert {one.address for one in answer.entries} == node.views.top.keys() - {"new:1"}
    assert "new:1" in node.views.top
