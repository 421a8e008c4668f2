"""The upper adapter's answers when the broker asks about half messages (reviews)."""

from __future__ import annotations

import pytest

from venus.adapters.upper.ingest import judge_halves
from venus.errors import Diverged
from venus.model import BatchNo, BatchRecord, Epoch, Sequence, Verdict
from venus.wire.broker_pb2 import HalfRef


def _halves(*numbers: int) -> list[HalfRef]:
    return [HalfRef(batch_no=n, digest=n * 11) for n in numbers]


def _table(*numbers: int, digest: int | None = None) -> dict[BatchNo, BatchRecord]:
    return {
        BatchNo(n): BatchRecord(
            batch_no=BatchNo(n),
            epoch=Epoch(1),
            first_sequence=Sequence(n),
            last_sequence=Sequence(n),
            digest=n * 11 if digest is None else digest,
        )
        for n in numbers
    }


@pytest.mark.parametrize(
    ("halves", "table", "in_flight_from", "answers"),
    [
        ((), (), None, []),
        ((7, 8), (7, 8), None, [(8, Verdict.COMMIT)]),
        ((7, 8), (), None, [(7, Verdict.ROLLBACK)]),
        ((9, 7, 8), (7, 8), None, [(8, Verdict.COMMIT), (9, Verdict.ROLLBACK)]),
        ((7, 8), (), 7, [(7, Verdict.UNKNOWN)]),
        ((6, 7, 8), (6,), 7, [(6, Verdict.COMMIT), (7, Verdict.UNKNOWN)]),
    ],
)
def test_batches_in_the_batch_table_are_committed_and_the_rest_rolled_back(
    halves: tuple[int, ...], table: tuple[int, ...], in_flight_from: int | None, answers: list[tuple[int, Verdict]]
) -> None:
    flight = None if in_flight_from is None else BatchNo(in_flight_from)
    given = judge_halves(_halves(*halves), _table(*table), in_flight_from=flight)
    assert [(half.batch_no, verdict) for half, verdict in given] == answers


def test_a_broker_in_doubt_may_ask_about_an_earlier_use_of_a_number() -> None:
    given = judge_halves(_halves(6, 7, 8), {**_table(6), **_table(7, digest=1), **_table(8)}, in_doubt=True)
    assert [(half.batch_no, verdict) for half, verdict in given] == [(6, Verdict.COMMIT), (7, Verdict.ROLLBACK)]


def test_another_batch_with_the_same_number_is_never_confirmed() -> None:
    with pytest.raises(Diverged, match="batch 7"):
        judge_halves(_halves(7), _table(7, digest=1))
