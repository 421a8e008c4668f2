"""When a load begins beside the first read of the source, and where it ends."""

from __future__ import annotations

import pytest

from venus.adapters.dialects.contract import FillState
from venus.cli.overlap import decided_end, is_overlap_due
from venus.model import Sequence
from venus.wire.broker_pb2 import BusinessStatus


def fill(rows: int, estimate: int = 0, *, done: bool = False) -> FillState:
    return FillState(table_id=1, sweep_from=Sequence(0), cursor=b"", rows_done=rows, rows_estimate=estimate, done=done)


@pytest.mark.parametrize(
    ("fills", "is_due"),
    [
        ([], False),
        ([fill(0, 5_000)], False),  # the broker has nothing yet
        ([fill(1, 5_000)], True),
        ([fill(1, 500), fill(1, 500)], False),
        ([fill(1, 600), fill(0, 600)], True),
        ([fill(4_500, 5_000)], True),
        ([fill(900, 1_000)], False),
        ([fill(999)], False),  # never analysed
        ([fill(1_000)], True),
        ([fill(100_000, 100_000, done=True), fill(10, 20)], False),
    ],
)
def test_a_load_overlaps_a_read_of_many_rows(fills: list[FillState], is_due: bool) -> None:
    assert is_overlap_due(fills, 1_000) is is_due


def test_the_end_is_known_once_the_last_batch_is_decided() -> None:
    business = BusinessStatus(last_batch=6, next_offset=60)
    assert decided_end(business, 7) is None
    assert decided_end(business, 6) == 60
