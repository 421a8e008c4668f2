"""Placement of replicas: positions of new ones, replacement, and moves for balance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from venus.broker.replicas.placement import (
    ClusterView,
    KnownBrokers,
    ReplicaBalancer,
    ReplicaPlacement,
    remove_leaving,
    replace_crowded,
)
from venus.replication.leaders import UNEVEN_S
from venus.replication.records import Leadership, LiveBroker, Member

A, B, C, D, E = (LiveBroker(member=Member(broker=name, store="s"), address=f"{name}:1") for name in "abcde")
#: Three brokers at one site, and one at each of two others.
SITES = {"a": "east", "b": "east", "c": "west", "d": "north", "e": "east"}
SITED = tuple(replace(one, site=SITES[one.member.broker]) for one in (A, B, C, D, E))
WANTED = ReplicaPlacement(replicas=3, min_in_sync=2)


def record(replicas: str, *, name: str = "shop", in_sync: str | None = None, leaving: str = "") -> Leadership:
    """Return a record; the first replica leads."""
    return Leadership(
        business=name,
        term=1,
        leader=Member(broker=replicas[0], store="s"),
        in_sync=frozenset(Member(broker=one, store="s") for one in (replicas if in_sync is None else in_sync)),
        replicas=tuple(replicas),
        min_in_sync=2,
        leaving=tuple(leaving),
        version=1,
    )


# -- new replicas ------------------------------------------------------------------------------------------------------


def test_a_new_business_is_in_sync_at_its_creator_alone() -> None:
    made = WANTED.new_record("shop", A.member, ClusterView([A, B, C]), 1)
    assert set(made.replicas) == set("abc")
    assert made.in_sync == {A.member}


def test_a_draining_broker_gets_no_replica() -> None:
    view = ClusterView([A, B, replace(C, draining=True), D])
    assert set(view.choose_replicas("shop", ("a",), (), 3)) == {"b", "d"}


def test_replicas_are_placed_on_the_brokers_with_the_fewest() -> None:
    records = [record("ab", name=f"x{n}") for n in range(4)]
    for n in range(10):
        assert ClusterView([A, B, C], records).choose_replicas(f"y{n}", ("a",), (), 1) == ["c"]


# -- replicas that are replaced ----------------------------------------------------------------------------------------


def test_a_replica_on_a_draining_broker_is_copied_before_it_leaves() -> None:
    draining = replace(C, draining=True)
    after = WANTED.next_record(record("abc"), ClusterView([A, B, draining, D]))
    assert after is not None
    assert (after.replicas, after.leaving) == (("a", "b", "c", "d"), ("c",))
    assert WANTED.next_record(after, ClusterView([A, B, draining, D])) is None, "d has no copy yet"
    ready = replace(after, in_sync=after.in_sync | {D.member})
    done = WANTED.next_record(ready, ClusterView([A, B, draining, D]))
    assert done is not None
    assert (done.replicas, done.leaving) == (("a", "b", "d"), ())


def test_a_replica_leaves_only_while_enough_others_are_alive_and_in_sync() -> None:
    leaving = record("abcd", leaving="c")
    assert remove_leaving(leaving, {A.member, B.member, C.member}) is None, "d has a copy and is away"
    assert remove_leaving(record("ab", leaving="b"), {A.member, B.member}) is None, "two are needed"


def test_a_site_with_two_replicas_gives_one_to_a_free_site() -> None:
    view = ClusterView(SITED)
    after = replace_crowded(record("abc"), view)
    assert after is not None
    assert (after.replicas[-1], after.leaving) == ("d", ("b",)), "the leader's replica stays"
    behind = replace_crowded(record("abe", in_sync="ab"), view)
    assert behind is not None
    assert behind.leaving == ("e",), "one that is not in sync goes first"
    assert replace_crowded(record("abce", leaving="c"), view) is None, "one at a time"


def test_a_site_whose_broker_drains_is_not_free() -> None:
    away = [replace(one, draining=one.member == D.member) for one in SITED]
    assert replace_crowded(record("abc"), ClusterView(away)) is None


def test_the_site_of_a_broker_that_is_away_is_remembered() -> None:
    known = KnownBrokers()
    known.update(SITED)
    known.update(SITED[:1])
    assert known.sites["c"] == "west"


# -- replicas that move for balance ------------------------------------------------------------------------------------


def find_move(me: str, records: Sequence[Leadership], brokers: Sequence[LiveBroker]) -> Leadership | None:
    """Return the move of a broker once the imbalance has lasted; check that nothing moves before."""
    balancer, known = ReplicaBalancer(me), {one.business: one for one in records}
    for now in (0.0, UNEVEN_S - 1.0):
        assert balancer.next_record(known, ClusterView(brokers, records), now) is None
    return balancer.next_record(known, ClusterView(brokers, records), UNEVEN_S)


def test_a_replica_moves_to_a_nearly_empty_broker_after_a_while() -> None:
    records = [record("a", name="only a"), *(record("ab", name=f"x{n}") for n in range(6))]
    moved = find_move("a", records, (A, B, C))
    assert moved is not None
    assert (moved.business, moved.replicas, moved.leaving) == ("x0", ("a", "b", "c"), ("b",))
    assert find_move("b", records, (A, B, C)) is None, "it does not lead"
    assert find_move("a", records, (A, B, replace(C, draining=True))) is None


def test_a_business_without_a_replica_at_the_fullest_broker_stays() -> None:
    records = [record("de", name="a0"), *(record("dba", name=f"x{n}") for n in range(4)), record("eb", name="y")]
    moved = find_move("d", records, (A, B, C, D, E))
    assert moved is not None
    assert (moved.business, moved.leaving) == ("x0", ("b",))


def test_a_broker_with_a_fair_share_gets_no_more() -> None:
    records = [record("ba", name="x0"), record("ba", name="x1"), record("ba", name="x2")]
    records += [record("ca", name="x3"), record("ca", name="x4"), record("c", name="x5")]
    assert find_move("b", records, (A, B, C)) is None
    assert find_move("c", records, (A, B, C)) is None


def test_no_replica_moves_to_an_occupied_site() -> None:
    east, west = replace(A, site="east"), replace(B, site="west")
    records = [record("ba", name=f"x{n}") for n in range(6)]
    assert find_move("b", records, (east, west, replace(C, site="west"))) is None
    assert find_move("b", records, (east, west, replace(C, site="north"))) is not None
