"""Work that the wall clock schedules continues after the clock is set back: a clock that was ahead stops nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from venus.broker.machine.consumers import QueueMark, add_mark, tombstone_limit
from venus.broker.snapshot.scrub import PASS_EVERY_S, Scrub

DAY_US, HOUR_US, MINUTE_US = 86_400 * 10**6, 3600 * 10**6, 60 * 10**6
NOW_US = 1_800_000_000 * 10**6


def make_marks(times: list[int]) -> list[QueueMark]:
    marks: list[QueueMark] = []
    for n, at_us in enumerate(times, 1):
        marks = add_mark(marks, QueueMark(at_us=at_us, sequence=n, next_offset=n))
    return marks


@pytest.mark.parametrize("ahead_us", [20 * MINUTE_US, 5 * HOUR_US, 50 * 365 * DAY_US])
def test_tombstones_are_removed_after_a_day_though_the_clock_was_once_ahead(ahead_us: int) -> None:
    """A machine without a battery, or a restored virtual one, has a wrong clock until it is set."""
    after = [NOW_US + n * HOUR_US for n in range(48)]
    marks = make_marks([NOW_US + ahead_us, *after])

    forgotten = tombstone_limit(marks, trim=10**9, now_us=after[-1])

    assert forgotten >= 20  # those of the first day


def test_small_clock_corrections_add_no_marks() -> None:
    assert len(make_marks([NOW_US + n % 2 * MINUTE_US for n in range(1000)])) == 1


@pytest.mark.parametrize("ahead_us", [3 * DAY_US, 50 * 365 * DAY_US])
def test_a_store_is_scrubbed_though_the_clock_was_ahead_at_the_last_pass(ahead_us: int) -> None:
    business = cast(
        "Any", SimpleNamespace(scrubbed_at_us=NOW_US + ahead_us, materialised=SimpleNamespace(offset=1), is_filled=True)
    )
    scrub = Scrub(cast("Any", None), businesses=lambda: [business], clock_us=lambda: NOW_US)

    assert scrub._find_due() == business
    business.scrubbed_at_us = NOW_US + MINUTE_US  # the clock was set back to just before the pass
    assert scrub._find_due() is None
    business.scrubbed_at_us = NOW_US - int(PASS_EVERY_S * 1e6)
    assert scrub._find_due() is business
