"""The error that writers get while no broker can lead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from venus.replication.following import TERMS_MAX, Elections
from venus.replication.messages import BallotReceived, RequestBallot, Swap
from venus.replication.position import ReplicationTimes
from venus.replication.records import Ballot, Leadership, LiveBroker, Member, Policy, explain_hindrance

A, B, C, D = (Member(broker=name, store="s") for name in "abcd")
KNOWN = Leadership(
    business="main", term=1, leader=A, in_sync=frozenset({A, B}), replicas=("a", "b", "c"), min_in_sync=2, version=1
)
FEW = "1 of 3 replicas are alive, 2 are needed"


@pytest.mark.parametrize(
    ("live", "said"),
    [
        ({A, B, C}, ""),
        ({A, C}, ""),  # the living brokers may join the in-sync set
        ({B, C}, ""),  # b is elected
        ({A}, FEW),
        ({B}, FEW),
        ({A, D}, FEW),  # d has no replica
        ({C}, "no broker leads, and no complete replica is alive: a, b"),
        (set(), "no broker leads, and no complete replica is alive: a, b"),
    ],
)
def test_the_obstacle_of_an_election_is_named(live: set[Member], said: str) -> None:
    assert explain_hindrance(KNOWN, live) == said


def test_the_living_replicas_suffice_for_availability() -> None:
    known = replace(KNOWN, policy=Policy.AVAILABILITY, min_in_sync=1)
    assert explain_hindrance(known, {C}) == ""
    assert explain_hindrance(known, set()) != ""


def test_a_leader_whose_replica_is_removed_counts_until_its_hand_over() -> None:
    known = replace(KNOWN, replicas=("b", "c", "d"))
    assert explain_hindrance(known, {A, B}) == ""
    assert explain_hindrance(known, {B}) == FEW


def test_a_ballot_with_a_term_that_allows_no_higher_one_is_ignored() -> None:
    """A log may be ahead of a record that was set back, but not so far that no term could follow."""
    elections = Elections(A, ReplicationTimes())
    live = {m: LiveBroker(member=m, address=f"{m.broker}:1") for m in (A, B)}
    known = Leadership(
        business="shop", term=3, leader=None, in_sync=frozenset({A, B}), replicas=("a", "b"), min_in_sync=2, version=1
    )
    own = Ballot(member=A, last_term=3, end=9, high=8)
    far = Ballot(member=B, last_term=3 + TERMS_MAX + 1, end=9, high=8)
    assert elections.tick(known, live, own, 0.0) == [RequestBallot(to=B, term=4)]

    assert elections.on_ballot(BallotReceived(term=4, ballot=far), known, live, 0.1) == []
    (swap,) = elections.on_ballot(
        BallotReceived(term=4, ballot=replace(far, last_term=3 + TERMS_MAX)), known, live, 0.2
    )

    assert isinstance(swap, Swap)
    assert swap.after.term == 4 + TERMS_MAX
