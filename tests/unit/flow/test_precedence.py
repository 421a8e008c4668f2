"""Large work pauses while small commits take too long: by how much, how long, and never without small senders."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from venus.flow import precedence
from venus.flow.precedence import (
    BESIDE_BYTES,
    GOAL_PART,
    REST_S_MAX,
    SEEN_S,
    SHARE_FOR_QUIET,
    SHARE_LEAST,
    SHARE_MOST,
    SMALL_BYTES,
    Precedence,
)

GOAL_S = 0.05
LARGE = "flood"


class MixedLoad:
    """Small commits beside large work, with a clock that the test advances."""

    def __init__(self, goal_s: float = GOAL_S) -> None:
        self.precedence = Precedence(goal_s)
        self.now = 100.0

    def commit(self, took_s: float, nbytes: int = 100, business: str = "trickle") -> None:
        asked_at = self.now
        self.precedence.on_arrival(business, nbytes, asked_at)
        self.now += 0.01
        self.precedence.on_answer(business, took_s, self.now, asked_at=asked_at)

    def turn(self, took_s: float = 0.01) -> float:
        return self.precedence.rest_s("full data", took_s, self.now)

    def run_commits(self, count: int, took_s: float) -> None:
        for _ in range(count):
            self.turn(0.0)
            self.commit(took_s)

    def run_commits_alone(self, count: int, took_s: float) -> None:
        """Run small commits without large work; the first ones detect that."""
        for _ in range(count):
            self.commit(took_s)


def test_large_work_does_not_pause_while_small_commits_meet_the_goal() -> None:
    scene = MixedLoad()
    scene.run_commits(1000, GOAL_S)
    assert scene.turn() == 0.0
    assert scene.precedence.rested_s == {}
    assert scene.precedence.slice_bytes(1000, 100, scene.now) == 1000


def test_pauses_grow_while_small_commits_are_late_and_shrink_otherwise() -> None:
    scene = MixedLoad()
    rests = []
    for _ in range(5):
        scene.run_commits(2, 2 * GOAL_S)
        rests.append(scene.turn())
    assert rests[0] > 0.0
    assert rests == sorted(set(rests)), "each time longer"
    scene.run_commits(300, GOAL_S / 2)
    assert 0.0 < scene.turn() < rests[-1]
    scene.run_commits(3000, GOAL_S / 2)
    assert scene.turn() == 0.0


def test_the_share_stays_constant_while_one_commit_in_a_hundred_is_late() -> None:
    """On this machine more than 1 % are late unless large work pauses for twice its turns."""
    scene, chance, shares = MixedLoad(), random.Random(7), []
    for _ in range(20_000):
        scene.turn(0.0)
        late = chance.random() < 0.02 / scene.precedence.share
        scene.commit(2 * GOAL_S if late else GOAL_S / 2)
        shares.append(scene.precedence.share)
    assert sum(shares[10_000:]) / 10_000 == pytest.approx(2.0, rel=0.25)


def test_without_small_senders_there_is_no_pause() -> None:
    scene = MixedLoad()
    scene.run_commits(50, 1.0)
    assert scene.turn() > 0.0
    scene.now += SEEN_S
    assert scene.turn() == 0.0, "the last small commit is too long ago"
    for _ in range(100):
        scene.commit(1.0, nbytes=2 * SMALL_BYTES, business=LARGE)
    assert scene.turn() == 0.0, "who sends much is not small"
    assert scene.precedence.slice_bytes(1000, 100, scene.now) == 1000


def test_a_large_half_message_that_waited_long_is_not_a_small_commit() -> None:
    """200 producers of batches of 100 KB: each waits for the others longer than its last size is remembered."""
    scene = MixedLoad()
    scene.turn()
    for n in range(200):
        scene.precedence.on_arrival(n, 2 * SMALL_BYTES, scene.now)
    asked_at, scene.now = scene.now, scene.now + 1.9
    for n in range(200):
        scene.precedence.on_answer(n, 2 * 1.9, scene.now, asked_at=asked_at)
    assert scene.turn() == 0.0


def test_a_small_commit_that_waited_long_is_still_small() -> None:
    scene = MixedLoad()
    scene.turn()
    asked_at = scene.now
    for _ in range(20):
        scene.precedence.on_arrival("trickle", 100, scene.now)
        scene.now += 1.0
        scene.turn(0.0)
    scene.precedence.on_answer("trickle", 20.0, scene.now, asked_at=asked_at)
    assert scene.turn() > 0.0


def test_a_late_commit_without_large_work_causes_no_pause() -> None:
    scene = MixedLoad()
    for _ in range(100):
        scene.commit(1.0)
    assert scene.precedence.share == SHARE_LEAST
    scene.turn()
    scene.commit(1.0)
    assert scene.precedence.share > SHARE_LEAST


def test_many_small_half_messages_count_as_large_until_they_become_few() -> None:
    found = Precedence(GOAL_S)
    for n in range(200):
        found.on_arrival(LARGE, 1000, 10.0 + n / 1000)
    assert not found.is_small(LARGE, 10.2)
    assert found.is_small("another", 10.2)
    assert found.is_small(LARGE, 12.2)


def test_a_goal_of_zero_turns_it_off() -> None:
    scene = MixedLoad(goal_s=0.0)
    scene.run_commits(100, 1.0)
    assert scene.turn() == 0.0
    assert scene.precedence.slice_bytes(1000, 100, scene.now) == 1000


def test_turns_shrink_with_the_share_down_to_the_minimum() -> None:
    scene = MixedLoad()
    scene.run_commits(200, 1.0)
    assert scene.precedence.share == SHARE_MOST
    assert scene.precedence.slice_bytes(1000, 100, scene.now) == 200
    assert scene.precedence.slice_bytes(1000, 300, scene.now) == 300
    assert scene.precedence.slice_bytes(50, 100, scene.now) == 50, "never more than without"


def test_small_commits_may_take_twice_as_long_as_alone() -> None:
    """Large work gives up half of its time to allow that, and gives up more only to reach the goal itself."""
    scene = MixedLoad()
    scene.run_commits_alone(500, GOAL_S / 5)
    scene.turn(0.0)
    scene.run_commits(500, 1.9 * GOAL_S / 5)
    assert scene.turn() == 0.0, "not twice as long"
    scene.run_commits(500, 2.1 * GOAL_S / 5)
    assert scene.precedence.share == SHARE_FOR_QUIET
    scene.run_commits(100, 1.1 * GOAL_S)
    assert scene.precedence.share == SHARE_MOST
    scene.run_commits(2000, 2.1 * GOAL_S / 5)
    assert scene.precedence.share == SHARE_FOR_QUIET, "within the goal again"
    scene.run_commits(2000, 1.9 * GOAL_S / 5)
    assert scene.precedence.share == SHARE_LEAST


def test_the_duration_alone_is_what_one_commit_in_a_hundred_exceeds() -> None:
    scene, chance = MixedLoad(), random.Random(7)
    for _ in range(20_000):
        scene.run_commits_alone(1, chance.random() * GOAL_S)
    assert scene.precedence.quiet_s == pytest.approx(0.99 * GOAL_S, rel=0.1)


def test_very_quick_commits_may_take_more_than_twice_as_long() -> None:
    scene = MixedLoad()
    scene.run_commits_alone(500, GOAL_S / 1000)
    scene.turn(0.0)
    scene.run_commits(500, GOAL_PART * GOAL_S)
    assert scene.turn() == 0.0


def test_while_small_commits_arrive_no_turn_exceeds_their_allowed_wait() -> None:
    scene = MixedLoad()
    assert scene.precedence.slice_bytes(8 << 20, 1, scene.now) == 8 << 20
    scene.commit(GOAL_S / 100)
    assert scene.precedence.slice_bytes(8 << 20, 1, scene.now) == BESIDE_BYTES
    assert scene.precedence.slice_bytes(1000, 1, scene.now) == 1000
    scene.now += SEEN_S
    assert scene.precedence.slice_bytes(8 << 20, 1, scene.now) == 8 << 20


def test_a_sender_that_becomes_large_does_not_wait_for_its_small_past() -> None:
    """The frames of a producer that begins with one row and continues with a flood were split for two seconds."""
    scene = MixedLoad()
    scene.commit(GOAL_S / 100, business=LARGE)
    scene.precedence.on_arrival(LARGE, 2 * SMALL_BYTES, scene.now)
    assert scene.precedence.slice_bytes(8 << 20, 1, scene.now) == 8 << 20
    scene.commit(GOAL_S / 100)
    scene.precedence.on_arrival(LARGE, 2 * SMALL_BYTES, scene.now)
    assert scene.precedence.slice_bytes(8 << 20, 1, scene.now) == BESIDE_BYTES, "another business is small"


def test_a_sender_that_becomes_large_takes_precedence_from_no_other() -> None:
    """Only the last small sender was remembered: when that became a flood, the others had no precedence for a while."""
    scene = MixedLoad()
    scene.run_commits(50, 1.0)
    scene.commit(1.0, business=LARGE)
    scene.precedence.on_arrival(LARGE, 2 * SMALL_BYTES, scene.now)
    assert scene.turn() > 0.0
    scene.now += SEEN_S - 0.005
    assert scene.turn() == 0.0, "and that of the others ends with their own last commit"


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.floats(0, 10))))
def test_large_work_always_gets_its_share(events: list[tuple[float, float, float]]) -> None:
    scene = MixedLoad()
    worked = 0.0
    for commit_s, turn_s, pause_s in events:
        scene.commit(commit_s)
        rest_s = scene.turn(turn_s)
        worked += turn_s
        assert 0.0 <= rest_s <= min(REST_S_MAX, SHARE_MOST * turn_s)
        scene.now += pause_s
    assert sum(scene.precedence.rested_s.values()) <= SHARE_MOST * worked
    assert SHARE_LEAST <= scene.precedence.share <= SHARE_MOST


def test_memory_of_senders_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precedence, "SENDERS_MAX", 3)
    found = Precedence(GOAL_S)
    for n in range(10):
        found.on_arrival(n, 2 * SMALL_BYTES, 1.0)
    assert len(found._senders) == 3
    assert not found.is_small(9, 1.0), "the newest are remembered"
    for n in range(10):
        found.on_arrival(100 + n, 1, 1.0)
    assert len(found._senders) == 3
    assert list(found._small) == [107, 108, 109], "the newest are remembered"
