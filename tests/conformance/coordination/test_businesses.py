"""Leadership records: each is created once and changed by compare-and-swap only."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.conformance.coordination.conftest import AnyCoordinator, Cluster
from venus.replication.records import Leadership, Member, Policy

A, B, C = (Member(broker=name, store=f"s-{name}") for name in "abc")


def leadership(business: str = "main", **fields: object) -> Leadership:
    return replace(
        Leadership(
            business=business,
            term=1,
            leader=A,
            in_sync=frozenset({A, B}),
            last_in_sync=frozenset({C}),
            replicas=("a", "b", "c"),
            policy=Policy.AVAILABILITY,
            min_in_sync=2,
            unclean_terms=(4, 9),
        ),
        **fields,  # type: ignore[arg-type]
    )


def create_business(coordinator: AnyCoordinator, business: str = "main") -> Leadership:
    stored = coordinator.create(leadership(business))
    assert stored is not None
    return stored


def test_a_stored_record_is_read_with_its_version(cluster: Cluster) -> None:
    one, other = cluster.coordinator(), cluster.coordinator()

    assert one.read("main") is None
    stored = create_business(one)

    assert stored == leadership()
    assert stored.version > 0
    for found in (other.read("main"), *other.leaderships()):
        assert found == stored
        assert found.version == stored.version


def test_operator_requests_are_stored_as_well(cluster: Cluster) -> None:
    one, other = cluster.coordinator(), cluster.coordinator()
    wanted = leadership(successor="b", leaving=("a",), replicas_wanted=3)
    assert one.create(wanted) == wanted
    assert other.read("main") == wanted


def test_a_business_is_created_once(cluster: Cluster) -> None:
    one, other = cluster.coordinator(), cluster.coordinator()
    first = create_business(one)

    assert other.create(leadership(term=7)) is None
    assert other.read("main") == first


def test_a_swap_needs_the_current_version(cluster: Cluster) -> None:
    one, other = cluster.coordinator(), cluster.coordinator()
    first = create_business(one)

    second = one.swap(first, replace(first, term=2, leader=None, in_sync=frozenset({B}), last_in_sync=frozenset({A})))
    assert second is not None
    assert second.version > first.version
    assert other.swap(first, replace(first, term=3)) is None, "the version is old"
    assert other.read("main") == second

    back = other.swap(second, first)
    assert back is not None
    assert back.version > second.version
    assert one.swap(first, replace(first, term=4)) is None, "equal in every field is not the same version"


def test_a_removed_business_is_gone_and_its_old_version_is_invalid(coordinator: AnyCoordinator) -> None:
    first = create_business(coordinator)
    second = coordinator.swap(first, replace(first, term=2))
    assert second is not None

    assert not coordinator.remove(first)
    assert coordinator.read("main") == second
    assert coordinator.remove(second)
    assert coordinator.read("main") is None
    assert not coordinator.remove(second)
    assert coordinator.swap(second, replace(second, term=3)) is None

    again = create_business(coordinator)
    assert again.version > second.version
    assert coordinator.last_forgotten_term("main") == second.term
    assert coordinator.last_forgotten_term("another") == 0
    assert again.term > second.term, "entries of the one that was forgotten could be taken for entries of this one"
    assert coordinator.swap(second, replace(second, term=3)) is None


def test_a_removal_that_came_too_late_removes_nothing(coordinator: AnyCoordinator) -> None:
    """A broker removes its data as soon as it is notified and cannot read the record."""
    first = create_business(coordinator)
    changed = coordinator.swap(first, replace(first, min_in_sync=2))
    assert changed is not None
    assert not coordinator.remove(first)
    assert coordinator.last_forgotten_term("main") == 0
    assert coordinator.remove(changed)
    assert coordinator.last_forgotten_term("main") == changed.term


@pytest.mark.parametrize("name", ["orders / eu", "ä ö", "%2F", "..", "a" * 60, "main/../x", "0"])
def test_any_name_of_a_business_is_a_key_of_its_own(coordinator: AnyCoordinator, name: str) -> None:
    create_business(coordinator)
    stored = create_business(coordinator, name)

    assert coordinator.read(name) == stored
    assert {found.business for found in coordinator.leaderships()} == {"main", name}
    assert coordinator.remove(stored)
    assert [found.business for found in coordinator.leaderships()] == ["main"]


def test_a_thousand_businesses_are_listed(cluster: Cluster) -> None:
    one = cluster.coordinator()
    names = [f"b{number:04}" for number in range(1000)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda name: one.create(leadership(name)), names))

    assert [found.business for found in cluster.coordinator().leaderships()] == names


def test_of_eight_concurrent_swaps_one_wins_each_time(cluster: Cluster) -> None:
    """Every term is won exactly once, so eight writers that each count up 25 times reach 200."""
    started = create_business(cluster.coordinator())

    def count_up(_: int) -> list[int]:
        own = cluster.coordinator()
        won: list[int] = []
        while len(won) < 25:
            found = own.read("main")
            assert found is not None
            if (stored := own.swap(found, replace(found, term=found.term + 1))) is not None:
                won.append(stored.term)
        return won

    with ThreadPoolExecutor(8) as pool:
        won = [term for terms in pool.map(count_up, range(8)) for term in terms]

    assert sorted(won) == list(range(started.term + 1, started.term + 201))
