"""Small splits share a connection: each is in one group, in order, and no group is too large."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from venus.adapters.targets.relational.load_task import GROUP_ROWS, GROUP_SPLITS, SplitTask, group_small_splits
from venus.wire import broker_pb2


def tasks(*estimates: int) -> list[SplitTask]:
    placed: Any = None
    return [
        SplitTask(
            kind="postgresql",
            url="",
            broker="",
            business="",
            group="",
            load_id="",
            snapshot_id="",
            split_no=n,
            split=broker_pb2.Split(table_id=n, rows_estimate=rows).SerializeToString(),
            placed=placed,
            versions=(),
        )
        for n, rows in enumerate(estimates)
    ]


def rows_of(group: tuple[SplitTask, ...]) -> int:
    return sum(broker_pb2.Split.FromString(task.split).rows_estimate for task in group)


@given(st.lists(st.sampled_from([0, 1, 100, GROUP_ROWS, GROUP_ROWS + 1, 1_000_000]), max_size=100))
def test_each_split_is_in_one_group_in_order_and_no_group_is_too_large(estimates: list[int]) -> None:
    made = tasks(*estimates)
    groups = group_small_splits(made)

    assert [task for group in groups for task in group] == made
    assert all(len(group) <= GROUP_SPLITS and (len(group) == 1 or rows_of(group) <= GROUP_ROWS) for group in groups)


def test_empty_tables_share_connections_even_if_they_come_first() -> None:
    assert [len(group) for group in group_small_splits(tasks(*[0] * 40, 5))] == [GROUP_SPLITS, 41 - GROUP_SPLITS]


def test_a_process_that_loads_splits_does_not_import_the_configuration() -> None:
    """Each process is started for a load, so its imports are part of every load."""
    text = "import sys, venus.adapters.targets.relational.load_task as t; print('venus.config' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], capture_output=True, check=True).stdout.split() == [b"False"]
