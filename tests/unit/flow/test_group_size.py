"""The commit group grows until writing it takes as long as its fsync."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from venus.flow.write_queue import GroupSize

KIB = 1 << 10


def learn_size(sync_s: float, byte_s: float, fixed_s: float = 0.0) -> int:
    size = GroupSize(256 * KIB, 2048 * KIB)
    for _ in range(200):
        size.record_group(size.size, fixed_s + size.size * byte_s, sync_s)
    return size.size


def test_the_group_is_as_large_as_one_fsync_allows() -> None:
    assert abs(learn_size(sync_s=0.008, byte_s=0.008 / (1024 * KIB)) - 1024 * KIB) < 16 * KIB


def test_groups_are_small_on_a_fast_disk_and_large_on_a_slow_one() -> None:
    byte_s = 0.004 / (1024 * KIB)
    assert learn_size(sync_s=0.0001, byte_s=byte_s) <= 257 * KIB
    assert learn_size(sync_s=0.05, byte_s=byte_s) >= 2047 * KIB


def test_a_group_that_was_hardly_full_changes_nothing() -> None:
    size = GroupSize(256 * KIB, 2048 * KIB)
    size.record_group(100, 1.0, 0.001)
    size.record_group(2048 * KIB, 0.0, 0.0)
    assert size.size == 2048 * KIB


@given(st.lists(st.tuples(st.integers(0, 1 << 24), st.floats(0, 10), st.floats(0, 10))))
def test_the_group_size_stays_within_its_limits(groups: list[tuple[int, float, float]]) -> None:
    size = GroupSize(256 * KIB, 2048 * KIB)
    for nbytes, work_s, sync_s in groups:
        size.record_group(nbytes, work_s, sync_s)
        assert 256 * KIB <= size.size <= 2048 * KIB
