"""Subspaces of a table's content: no match is missed, and hot spots are split."""

from __future__ import annotations

import random
from decimal import Decimal

import numpy as np
import pytest

from tests.support.predicates.matching import crowded_interests, match_by_brute_force, some_events, some_interests
from venus.network.matching.installed import InstallationMessage, InstalledPart, InstalledSubspaces
from venus.network.matching.interests import Events, Interest
from venus.network.matching.spaces import (
    CHANGES_MIN,
    HOT,
    HOT_MIN,
    ContentSpace,
    digest_of,
    encode_events,
    encode_interest,
    encode_key,
)


def find_pairs(space: ContentSpace, events: Events) -> set[tuple[int, int]]:
    """Return the pairs that the subspaces find, with each event in one subspace."""
    encoded, found, met = encode_events(events), set(), 0
    for leaf, rows in space.locate(encoded):
        some = encoded.select(rows)
        met += len(rows)
        found |= {(int(rows[row]), number) for row, number in leaf.prepare(some).match(some).pairs()}
    assert met <= events.count
    return found


@pytest.mark.parametrize("seed", range(4))
def test_subspaces_find_what_brute_force_finds_while_interests_change(seed: int) -> None:
    chance = random.Random(seed)
    space, present = ContentSpace(8), {}
    some = [*some_interests(chance, 200, equal=True), *some_interests(chance, 200, equal=False)]
    events = some_events(chance, 40)
    for number, one in enumerate(some):
        space.add(number, one)
        present[number] = one
        if chance.random() < 0.3:
            gone = chance.choice(list(present))
            space.remove(gone)
            del present[gone]
        if number % 200 == 199:
            numbers = list(present)
            wanted = {(row, numbers[n]) for row, n in match_by_brute_force([present[k] for k in numbers], events)}
            assert find_pairs(space, events) == wanted
    for number in list(present)[5:]:
        space.remove(number)
        del present[number]
    numbers = list(present)
    wanted = {(row, numbers[n]) for row, n in match_by_brute_force([present[k] for k in numbers], events)}
    assert find_pairs(space, events) == wanted


def test_hot_spots_are_split_until_none_has_more_than_twice_the_mean() -> None:
    space = ContentSpace(32)
    for number, one in enumerate(crowded_interests(3000)):
        space.add(number, one)
    sizes = [len(leaf.interests) for leaf in space.subspaces.values()]
    assert len(sizes) >= 16
    assert max(sizes) <= 1.5 * HOT * sum(sizes) / len(sizes)
    assert sum(sizes) < 3 * 3000, "an interest is in few subspaces"


def test_a_region_that_becomes_a_hot_spot_is_split() -> None:
    space, chance = ContentSpace(32), random.Random(1)
    for number in range(1000):
        at = chance.uniform(0, 1000)
        space.add(number, Interest(between={"amount": (at, at + 1)}))
    made = len(space.subspaces)
    for number in range(1000, 1900):
        at = chance.uniform(500, 510)
        space.add(number, Interest(between={"amount": (at, at + 1)}))
    sizes = [len(leaf.interests) for leaf in space.subspaces.values()]
    assert len(sizes) > made
    assert max(sizes) <= 1.5 * HOT * sum(sizes) / len(sizes)


def test_a_subspace_with_many_changes_is_split_although_it_has_few_interests() -> None:
    chance = random.Random(4)
    space, interests = ContentSpace(16), []
    for number in range(6000):
        low = chance.uniform(0, 1000)
        interests.append(Interest({}, {"a": (low, low + 0.2)}))
        space.add(number, interests[-1])
    events = Events(2000, {"a": np.array([chance.uniform(100, 160) for _ in range(2000)])})

    def work() -> list[float]:
        space.forget_changes(1.0)
        for leaf, rows in space.locate(events):
            leaf.changes += len(rows)
        return sorted(leaf.work for leaf in space.subspaces.values())

    before = work()
    assert max(before) > 3 * HOT * sum(before) / len(before)
    paths = set(space.subspaces)
    for _ in range(8):
        space.cut_busy()
        after = work()
    known = [one for one in space.subspaces.values() if one.changes >= CHANGES_MIN and len(one.interests) > HOT_MIN]
    assert max((one.work for one in known), default=0.0) <= HOT * sum(after) / len(after)
    assert max(after) < max(before) / 50
    assert len(space.subspaces) < 4 * len(paths)
    some = events.select(np.arange(0, events.count, 20))  # each costs thousands of comparisons
    assert find_pairs(space, some) == set(match_by_brute_force(interests, some))
    space.cut_busy()
    assert len(space.subspaces) == len(after), "nothing is cut without need"
    space.forget_changes(0.999)
    paths = set(space.subspaces)
    space.cut_busy()
    assert set(space.subspaces) == paths, "few changes say nothing"


def test_interests_that_no_column_separates_are_not_split() -> None:
    space = ContentSpace(32)
    for number in range(500):
        space.add(number, Interest({"tenant": frozenset(["one"])}))
    assert len(space.subspaces) == 1


def test_a_split_subspace_gets_other_paths_so_that_old_interests_cannot_answer() -> None:
    space = ContentSpace(32)
    for number, one in enumerate(crowded_interests(60)):
        space.add(number, one)
    (before,) = space.subspaces
    for number, one in enumerate(crowded_interests(400, seed=2), 100):
        space.add(number, one)
    assert before not in space.subspaces
    assert all(path.startswith("0:") and path != "0:" for path in space.subspaces)


def test_a_digest_depends_on_the_interests_and_not_on_their_order() -> None:
    some = crowded_interests(20)
    one, other = ContentSpace(), ContentSpace()
    for number, interest in enumerate(some):
        one.add(number, interest)
    for number, interest in reversed(list(enumerate(some))):
        other.add(number, interest)
    assert one.subspaces["0:"].digest == other.subspaces["0:"].digest != 0
    other.remove(3)
    assert one.subspaces["0:"].digest != other.subspaces["0:"].digest
    one.remove(3)
    assert one.subspaces["0:"].digest == other.subspaces["0:"].digest


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Decimal("1.0"), Decimal(1), True),
        (Decimal(0), Decimal("-0.00"), True),
        (1, Decimal(1), True),
        (Decimal("1200"), Decimal("1.2e3"), True),
        (Decimal("12"), Decimal("120"), False),
        (0.0, -0.0, True),
        ("a", b"a", False),
        ("1", 1, False),
        (True, 1, False),
        ("", None, False),
        (Decimal("1e40"), Decimal("1.0000000000000000000000000000000000001e40"), False),
    ],
)
def test_equal_keys_have_the_same_bytes(one: object, other: object, same: bool) -> None:
    assert (encode_key(one) == encode_key(other)) is same


# -- at other brokers --------------------------------------------------------------------------------------------------


def part(
    numbers: range, *, base: int = 0, removed: tuple[int, ...] = (), is_whole: bool = True, digest: int | None = None
) -> InstalledPart:
    added = tuple((n, encode_interest(Interest(between={"a": (float(n), n + 1.0)}))) for n in numbers)
    found = base if not is_whole else 0
    for n, one in added:
        found ^= digest_of(n, one)
    for n in removed:
        found ^= digest_of(n, encode_interest(Interest(between={"a": (float(n), n + 1.0)})))
    return InstalledPart(
        table="main/1",
        path="0:",
        digest=found if digest is None else digest,
        base=base,
        is_whole=is_whole,
        added=added,
        removed=removed,
    )


def install(store: InstalledSubspaces, one: InstalledPart, now: float = 0.0) -> tuple[int, ...]:
    return store.install(InstallationMessage(origin="a:1", lease_s=10, parts=(one,)), now)


def test_interests_that_are_not_renewed_are_dropped() -> None:
    store, whole = InstalledSubspaces(), part(range(5))
    assert install(store, whole) == ()
    renewal = part(range(0), base=whole.digest, is_whole=False)
    assert install(store, renewal, now=9.0) == ()
    store.expire(18.0)
    assert (len(store), store.interests) == (1, 5)
    store.expire(20.0)
    assert (len(store), store.interests) == (0, 0)
    assert install(store, renewal, now=21.0) == (0,), "the owner sends it as a whole"


def test_only_interests_with_the_stated_digest_answer() -> None:
    store, whole = InstalledSubspaces(), part(range(5))
    install(store, whole)
    assert store.find("a:1", "main/1", "0:", whole.digest) is not None
    assert store.find("a:1", "main/1", "0:", whole.digest ^ 1) is None
    assert store.find("b:1", "main/1", "0:", whole.digest) is None


def test_differences_are_applied_only_to_the_stated_base() -> None:
    store, whole = InstalledSubspaces(), part(range(5))
    install(store, whole)
    change = part(range(5, 7), base=whole.digest, removed=(0,), is_whole=False)
    assert install(store, change) == ()
    assert store.find("a:1", "main/1", "0:", change.digest) is not None
    assert install(store, change) == (0,), "a second time the base is another one"
    assert store.interests == 6


def test_a_part_with_another_digest_than_stated_is_dropped() -> None:
    store = InstalledSubspaces()
    assert install(store, part(range(5), digest=7)) == (0,)
    assert len(store) == 0
    assert store.interests == 0


def test_the_number_of_installed_interests_is_limited() -> None:
    store = InstalledSubspaces(interests_max=4)
    assert install(store, part(range(5))) == (0,)
    assert store.interests == 0
    assert install(store, part(range(4))) == ()


def test_null_is_on_one_side_of_each_split_and_satisfies_no_condition() -> None:
    space = ContentSpace(32)
    for number, one in enumerate(crowded_interests(400)):
        space.add(number, one)
    space.add(1000, Interest())
    events = Events(2, {"amount": np.array([np.nan, 100.0])}, {"tenant": [None, None]})
    assert find_pairs(space, events) == {(0, 1000), (1, 1000)}
