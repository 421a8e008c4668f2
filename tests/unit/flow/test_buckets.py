"""Rates hold in the long run, bursts have the allowed size, and every batch gets through, however large."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from venus.flow.admission import LeakyBucket, TokenBucket

STEPS = st.lists(st.tuples(st.floats(0, 5), st.integers(1, 500)), min_size=1, max_size=80)


@given(st.integers(1, 1000), st.integers(1, 2000), STEPS)
def test_a_sender_that_pauses_as_asked_gets_the_rate_and_one_burst(
    rate: int, burst: int, steps: list[tuple[float, int]]
) -> None:
    bucket = TokenBucket.full(rate, burst, 0.0)
    now = sent = 0.0
    last = 0
    for idle, n in steps:
        now += idle
        now += bucket.take(n, now)
        sent += n
        last = n
        assert bucket.wait_s(now) < 1e-6, "after the wait nothing is owed"
    assert sent <= rate * now + burst + last + 1e-3


@given(st.integers(1, 1000), STEPS)
def test_a_sender_that_does_not_wait_is_overdrawn_after_a_burst(rate: int, steps: list[tuple[float, int]]) -> None:
    bucket = TokenBucket.full(rate, rate, 0.0)
    taken = 0
    for _, n in steps:
        if bucket.is_overdrawn(0.0):
            break
        bucket.take(n, 0.0)
        taken += n
    assert taken <= 2 * rate + max(n for _, n in steps)


def test_a_steady_sender_gets_the_rate_within_one_percent() -> None:
    bucket, now, sent = TokenBucket.full(1000, 1000, 0.0), 0.0, 0
    while now < 100:
        now += bucket.take(37, now)
        sent += 37
    assert sent == pytest.approx(100 * 1000 + 1000, rel=0.01)


def test_a_batch_larger_than_the_burst_is_sent_and_charged() -> None:
    bucket = TokenBucket.full(10, 10, 0.0)
    assert bucket.take(110, 0.0) == pytest.approx(10)
    assert bucket.wait_s(9.9) > 0
    assert bucket.take(0, 10.0) == pytest.approx(0)


def test_a_clock_that_stands_still_or_is_set_back_gives_no_tokens() -> None:
    bucket = TokenBucket.full(10, 10, 5.0)
    bucket.take(20, 5.0)
    assert bucket.wait_s(5.0) == bucket.wait_s(4.0) == pytest.approx(1)


@given(st.integers(1, 1000), STEPS)
def test_a_leaky_bucket_has_even_intervals(rate: int, steps: list[tuple[float, int]]) -> None:
    """Between the starts of two batches there is at least the time that the first one takes."""
    bucket, now, before = LeakyBucket(rate), 0.0, None
    for idle, n in steps:
        now += idle
        begins = now + bucket.delay_s(n, now)
        if before is not None:
            assert begins >= before - 1e-6
        before = begins + n / rate


def test_without_a_limit_there_is_no_wait() -> None:
    assert TokenBucket.full(0, 0, 0.0).take(10**12, 0.0) == 0
    assert not TokenBucket.full(0, 0, 0.0).is_overdrawn(0.0)
    assert LeakyBucket(0).delay_s(10**12, 0.0) == 0
