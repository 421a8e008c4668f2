"""A broker that fails or is slow is isolated at once, probed periodically, and used again once it answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from venus.flow.breaker import LATENCY_CLASSES, Breaker, Circuit, isolation_for_s


@pytest.mark.parametrize(
    ("latency_s", "expected"),
    [(0, 0), (0.05, 0), (0.1, 0), (0.549, 0), (0.55, 2), (1.8, 5), (3, 6), (5, 10), (15, 30), (1000, 30)],
)
def test_latency_classes_set_the_isolation(latency_s: float, expected: float) -> None:
    assert isolation_for_s(latency_s) == expected


def test_the_breaker_opens_after_consecutive_errors_and_lets_one_probe_through() -> None:
    breaker = Breaker(errors_max=3, wait_first_s=2)
    for _ in range(2):
        breaker.record_failure(0.0)
    breaker.record_success(0.01, 0.0)
    for n in range(3):
        assert breaker.state is Circuit.CLOSED
        breaker.record_failure(float(n), "refused")
    assert (breaker.state, breaker.reason, breaker.since) == (Circuit.OPEN, "refused", 2.0)
    assert breaker.is_isolated(2.1)
    assert not breaker.start_probe(2.1)
    later = 2.0 + breaker.remaining_s(2.0)
    assert breaker.start_probe(later)
    assert not breaker.start_probe(later), "one call is out"
    assert breaker.is_isolated(later)
    breaker.record_success(0.01, later)
    assert breaker.state is Circuit.CLOSED
    assert not breaker.is_isolated(later)


def test_a_probe_that_fails_reopens_it_for_longer() -> None:
    breaker = Breaker(errors_max=1, wait_first_s=2, wait_max_s=30)
    waits = []
    now = 0.0
    for _ in range(7):
        waits.append(breaker.record_failure(now))
        now += breaker.remaining_s(now)
        assert breaker.start_probe(now)
    assert waits == [2, 4, 8, 16, 30, 30, 30]
    assert breaker.since == 0.0, "of the whole episode"


def test_a_slow_answer_isolates_at_once_and_a_fast_one_ends_the_isolation() -> None:
    breaker = Breaker()
    breaker.record_success(30.0, 100.0)
    assert breaker.is_isolated(100.0)
    assert breaker.remaining_s(100.0) == 30
    assert breaker.reason == "answered after 30.0 s"
    assert breaker.start_probe(130.0)
    breaker.record_success(0.01, 130.0)
    assert (breaker.state, breaker.reason) == (Circuit.CLOSED, "")


def test_a_probe_without_an_outcome_is_forgotten() -> None:
    breaker = Breaker(errors_max=1, wait_first_s=1, probe_s=10)
    breaker.record_failure(0.0)
    assert breaker.start_probe(1.0)
    assert not breaker.start_probe(10.9)
    assert breaker.start_probe(11.0)


@given(st.lists(st.tuples(st.sampled_from(["worked", "failed", "slow", "probe"]), st.floats(0, 40)), max_size=60))
def test_the_breaker_never_stays_open_permanently(events: list[tuple[str, float]]) -> None:
    breaker, now = Breaker(), 0.0
    for kind, later in events:
        now += later
        if kind == "worked":
            breaker.record_success(0.0, now)
            assert not breaker.is_isolated(now)
        elif kind == "failed":
            assert 0 < breaker.record_failure(now) <= breaker.wait_max_s
        elif kind == "slow":
            breaker.record_success(2.0, now)
            assert breaker.is_isolated(now)
        else:
            breaker.start_probe(now)
        longest = max(breaker.wait_max_s, breaker.probe_s, LATENCY_CLASSES[-1][1])
        assert breaker.remaining_s(now) <= longest + 1e-6
        assert not breaker.is_isolated(now + longest + 1e-6)
