"""The half messages that a broker plans to ask about after it has applied a command group."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from venus.broker.machine.business import Business
from venus.broker.machine.half_messages import HalfMessage, HalfState, SharedSequence
from venus.broker.machine.machine import EntryEffects
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.pipeline.publisher import Publisher


@pytest.mark.parametrize(
    ("expected", "settled", "undecided"),
    [
        ([3], [], [3]),
        (list(range(1, 100)), list(range(1, 99)), [99]),  # a replica that catches up applies all of it at once
        ([3, 3], [3], [3]),  # rolled back, after which its number is used again
        ([3], [3], []),
    ],
)
def test_a_half_message_decided_in_the_same_group_is_not_asked_about(
    expected: list[int], settled: list[int], undecided: list[int]
) -> None:
    """Otherwise its timer would never stop; with 64 such timers the next leader would ask about nothing else."""
    nothing: Any = SimpleNamespace()
    business = Business(1, "main", ReviewSchedule(first_s=1.0))
    halves = [HalfMessage(batch_no=n, digest=n, first_sequence=n, count=1) for n in undecided]
    last = undecided[0] - 1 if undecided else max(expected)
    business.applying = replace(HalfState(), last_batch=last, halves=SharedSequence(halves))
    publisher = Publisher(nothing, nothing, notice=nothing, monotonic=lambda: 0.0)
    group: Any = SimpleNamespace(applied={business: EntryEffects(expected=expected, settled=settled)})
    publisher._clock_reviews(group)
    assert sorted(business.reviews.asked) == undecided
