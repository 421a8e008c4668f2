"""A changed policy of a business in use: the next leader must still have every acknowledged entry."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.engines.memory_coordinator import MemoryCluster, MemoryCoordinator
from venus.coordination.operator_changes import change_policy, with_policy
from venus.errors import ConfigError, Unavailable
from venus.replication.records import Leadership, Member, Policy

A, B, C = (Member(broker=name, store="s") for name in "abc")
MAIN = Leadership(
    business="main", term=4, leader=A, in_sync=frozenset({A, B, C}), replicas=("a", "b", "c"), min_in_sync=2
)
STUCK = replace(MAIN, in_sync=frozenset({A}), last_in_sync=frozenset({B}))


def test_the_minimum_follows_the_policy() -> None:
    after = with_policy(MAIN, Policy.AVAILABILITY)
    assert (after.policy, after.min_in_sync) == (Policy.AVAILABILITY, 1)
    assert with_policy(after, Policy.CONSISTENCY) == MAIN
    assert with_policy(MAIN, Policy.AVAILABILITY, 2).min_in_sync == 2


def test_the_last_members_to_leave_are_forgotten_once_writes_are_acknowledged_without_them() -> None:
    assert STUCK.candidates == {A, B}
    after = with_policy(STUCK, Policy.AVAILABILITY)
    assert after.candidates == {A}
    # every entry acknowledged meanwhile is at a alone
    assert with_policy(after, Policy.CONSISTENCY).candidates == {A}


def test_the_last_members_to_leave_may_lead_while_nothing_could_be_acknowledged() -> None:
    assert with_policy(STUCK, Policy.CONSISTENCY).candidates == {A, B}
    assert with_policy(replace(STUCK, min_in_sync=3), Policy.CONSISTENCY).candidates == {A, B}


def records() -> MemoryCoordinator:
    made = MemoryCoordinator(MemoryCluster(lambda: 0.0), lease_s=3.0)
    made.create(MAIN)
    return made


def test_a_swap_that_came_too_late_is_retried() -> None:
    made = records()

    class RacingCoordinator(MemoryCoordinator):
        races = 2

        def swap(self, before: Leadership, after: Leadership) -> Leadership | None:
            if self.races:
                self.races -= 1
                assert super().swap(before, replace(before, term=before.term + 1)) is not None
            return super().swap(before, after)

    racing = RacingCoordinator(made._cluster, lease_s=3.0)
    before, after = change_policy(racing, "main", Policy.AVAILABILITY)
    assert (before.term, after.term, after.policy) == (6, 6, Policy.AVAILABILITY)
    racing.races = 100
    with pytest.raises(Unavailable, match="the record of main keeps changing"):
        change_policy(racing, "main", Policy.CONSISTENCY)


def test_an_unchanged_policy_is_not_written() -> None:
    made = records()
    before, after = change_policy(made, "main", Policy.CONSISTENCY)
    assert before == after
    assert before.version == after.version


def test_a_missing_business_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no business 'mian' \(did you mean main\?\)") as refused:
        change_policy(records(), "mian", Policy.AVAILABILITY)
    assert refused.value.hint == "it has: main"
