"""SkipCloud: clusters by name, views that stay fresh, and messages that arrive although many brokers have died."""

from __future__ import annotations

import random
import statistics
from collections import Counter

import pytest

from venus.network.skipcloud.clusters import (
    BROKERS_MIN,
    CloudShape,
    assign,
    common_prefix,
    is_worth_it,
    nearest_cluster,
)
from venus.network.skipcloud.simulation import Cloud
from venus.network.skipcloud.views import route


def names(count: int) -> list[str]:
    return [f"broker-{n}" for n in range(count)]


def cloud(count: int, seed: int = 1, *, cycles: int = 3, each: int = 4) -> Cloud:
    found = Cloud(names(count), CloudShape.of(count, each=each), random.Random(seed).randrange)
    for _ in range(cycles):
        found.cycle()
    return found


def test_it_is_off_where_the_directory_is_one_hop() -> None:
    assert not is_worth_it(BROKERS_MIN - 1)
    assert is_worth_it(BROKERS_MIN)


@pytest.mark.parametrize("count", [1, 4, 5, 16, 64, 100, 257])
def test_clusters_have_identifiers_of_their_own_and_are_the_same_for_everybody(count: int) -> None:
    shape = CloudShape.of(count)
    found = assign(names(count), shape)
    assert found == assign(list(reversed(names(count))), shape)
    sizes = Counter(found.values())
    assert max(sizes.values()) <= shape.top_size
    assert len(sizes) == -(-count // shape.top_size)
    assert all(len(one) == shape.depth and max(one) < shape.base for one in sizes)


def test_more_brokers_than_identifiers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"20 brokers do not fit into 2\^2 clusters"):
        assign(names(20), CloudShape(base=2, depth=2, degree=8))


def test_a_subspace_belongs_to_the_cluster_with_the_closest_identifier() -> None:
    shape = CloudShape.of(64)
    clusters = set(assign(names(64), shape).values())
    owners = Counter(nearest_cluster(f"subspace-{n}", clusters, shape) for n in range(3200))
    assert set(owners) == clusters
    assert max(owners.values()) < 3 * min(owners.values())


def test_a_view_has_as_many_of_each_child_cluster_and_only_its_own() -> None:
    found = cloud(256)
    each = found.shape.degree // found.shape.base
    for name, views in found.views.items():
        for level, view in enumerate(views.levels):
            assert all(common_prefix(found.identifiers[other], views.identifier) >= level for other in view)
            assert name not in view
            children = Counter(found.identifiers[other][level] for other in view)
            assert max(children.values()) <= each
            assert len(children) >= found.shape.base - 1


@pytest.mark.parametrize("count", [16, 64, 256])
def test_a_message_needs_a_hop_a_digit_at_most(count: int) -> None:
    found = cloud(count)
    sent = found.send_some(500)
    assert all(one.at and one.hops <= found.shape.depth and not one.failed for one in sent)


def test_a_message_for_the_own_cluster_stays() -> None:
    found = cloud(64)
    start = found.living[0]
    assert found.send(start, found.identifiers[start]).hops == 0


@pytest.mark.parametrize(("dead", "least"), [(0.1, 0.999), (0.3, 0.999), (0.5, 0.98)])
def test_messages_arrive_although_many_died_at_once_and_soon_none_is_lost(dead: float, least: float) -> None:
    found = cloud(256, seed=3)
    found.kill(int(256 * dead))
    sent = found.send_some(1000)
    assert sum(bool(one.at) for one in sent) >= least * len(sent)
    for _ in range(10):
        found.cycle()
    assert all(one.at for one in found.send_some(1000))


def test_without_another_try_far_more_are_lost() -> None:
    found = cloud(256, seed=3)
    found.kill(int(256 * 0.3))
    sent = found.send_some(300, tries=1)
    assert sum(not one.at for one in sent) > 0.03 * len(sent)


def test_those_who_died_are_forgotten_by_exchanges_alone() -> None:
    found = cloud(64)
    found.kill(32)
    alive = set(found.living)

    def remembered() -> int:
        return sum(other not in alive for name in alive for level in found.views[name].levels for other in level)

    before = remembered()
    for _ in range(40):
        found.cycle()
    assert before > 100
    assert remembered() < before / 20


def test_views_are_renewed_by_exchanges() -> None:
    found = cloud(256, cycles=0)
    before = {name: set(views.levels[0]) for name, views in found.views.items()}
    for _ in range(20):
        found.cycle()
    kept = [len(before[name] & set(views.levels[0])) / len(before[name]) for name, views in found.views.items()]
    assert statistics.mean(kept) < 0.7


def test_a_broker_that_knows_nobody_gives_the_message_back() -> None:
    found = cloud(64)
    start = found.living[0]
    target = next(one for one in found.clusters if one != found.identifiers[start])
    lost = route(start, target, found.views, found.identifiers, lambda _: False)
    assert (lost.at, lost.hops) == ("", 0)
    assert lost.failed > 0
