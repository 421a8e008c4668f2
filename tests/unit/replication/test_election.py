"""What is said to writers while nobody can take what they write."""

from __future__ import annotations

from dataclasses import replace

import pytest

from venus.replication.election import hindrance
from venus.replication.records import Leadership, Member, Policy

A, B, C, D = (Member(broker=name, store="s") for name in "abcd")
KNOWN = Leadership(
    business="main", term=1, leader=A, in_sync=frozenset({A, B}), replicas=("a", "b", "c"), min_in_sync=2, version=1
)
FEW = "1 of 3 replicas are alive, 2 are needed"


@pytest.mark.parametrize(
    ("live", "said"),
    [
        ({A, B, C}, ""),
        ({A, C}, ""),  # who lives may come into the in-sync set
        ({B, C}, ""),  # b is elected
        ({A}, FEW),
        ({B}, FEW),
        ({A, D}, FEW),  # d has no replica
        ({C}, "no broker leads, and none of those that have everything is alive: a, b"),
        (set(), "no broker leads, and none of those that have everything is alive: a, b"),
    ],
)
def test_what_stands_in_the_way(live: set[Member], said: str) -> None:
    assert hindrance(KNOWN, live) == said


def test_whoever_lives_is_enough_for_availability() -> None:
    known = replace(KNOWN, policy=Policy.AVAILABILITY, min_in_sync=1)
    assert hindrance(known, {C}) == ""
    assert hindrance(known, set()) != ""


def test_a_leader_whose_replica_is_taken_away_counts_until_it_has_handed_over() -> None:
    known = replace(KNOWN, replicas=("b", "c", "d"))
    assert hindrance(known, {A, B}) == ""
    assert hindrance(known, {B}) == FEW
