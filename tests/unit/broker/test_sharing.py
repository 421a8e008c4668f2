"""Versions of a shared sequence behave like independent tuples."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from venus.broker.machine.half_messages import SharedSequence

#: The version to continue from, and the change: append, or take the run between two positions.
STEPS = st.lists(st.tuples(st.integers(0, 99), st.sampled_from("aaars"), st.integers(-3, 9), st.integers(-3, 9)))


@given(STEPS)
def test_every_version_stays_unchanged(steps: list[tuple[int, str, int, int]]) -> None:
    versions: list[tuple[SharedSequence[int], tuple[int, ...]]] = [(SharedSequence(), ())]
    for number, (which, what, low, high) in enumerate(steps):
        shared, plain = versions[which % len(versions)]
        if what == "a":
            versions.append((shared.with_item(number), (*plain, number)))
        else:
            versions.append((shared[low:high], plain[low:high]))

    for shared, plain in versions:
        assert shared == plain
        assert list(shared) == list(plain)
        assert [shared[i] for i in range(len(shared))] == list(plain)
        assert shared[-1:] == plain[-1:]


def test_entries_that_a_version_leaves_out_are_freed() -> None:
    window: SharedSequence[int] = SharedSequence()
    for number in range(100_000):
        window = window.with_item(number)[-10:]

    assert window == tuple(range(99_990, 100_000))
    assert len(window._items) < 1000


def test_a_version_costs_no_copy() -> None:
    versions = [SharedSequence[int]()]
    for number in range(1000):
        versions.append(versions[-1].with_item(number))

    assert all(version._items is versions[0]._items for version in versions)
