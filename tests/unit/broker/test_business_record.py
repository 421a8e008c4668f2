"""The record of a business is stored with every command group: unchanged parts are not encoded again."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from venus.broker.machine import half_messages, records
from venus.broker.machine.business import Business
from venus.broker.machine.consumers import QueueMark, add_mark
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.store.rocks import StoreBatch
from venus.model import Verdict


class RecordingBatch(StoreBatch):
    """A batch that records every stored value."""

    def __init__(self) -> None:
        self.value = b""

    def put(self, family: str, key: bytes, value: bytes) -> None:
        self.value = value


def saved_record(business: Business) -> Any:
    puts = RecordingBatch()
    records.save(business, puts)
    return json.loads(puts.value)


def outcome(n: int, verdict: Verdict = Verdict.COMMIT) -> half_messages.HalfOutcome:
    return half_messages.HalfOutcome(batch_no=n, digest=(1 << 64) - n, verdict=verdict, next_offset=10 * n)


def grown_business() -> Business:
    business = Business(1, 'a "name", with commas', ReviewSchedule(first_s=6.0))
    business.applying = half_messages.HalfState(outcomes=(outcome(1), outcome(2, Verdict.ROLLBACK)))
    business.marks = add_mark(
        [QueueMark(at_us=1, sequence=2, next_offset=3)], QueueMark(at_us=10**12, sequence=5, next_offset=7)
    )
    return business


def test_the_stored_record_is_complete() -> None:
    empty = Business(1, "main", ReviewSchedule(first_s=6.0))
    short = json.loads(json.dumps(records._short_parts(empty)))
    assert saved_record(empty) == short | {"outcomes": [], "marks": []}

    business = grown_business()
    short = json.loads(json.dumps(records._short_parts(business)))
    outcomes = [[1, (1 << 64) - 1, int(Verdict.COMMIT), 10], [2, (1 << 64) - 2, int(Verdict.ROLLBACK), 20]]
    for _ in range(2):
        assert saved_record(business) == short | {"outcomes": outcomes, "marks": [[1, 2, 3], [10**12, 5, 7]]}


def test_unchanged_parts_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []

    def record_writes(name: str, rows: Callable[[Any], list[str]], value: Any) -> list[str]:
        encoded.append(name)
        return rows(value)

    for name in ("_mark_rows", "_outcome_rows"):
        monkeypatch.setattr(records, name, partial(record_writes, name, getattr(records, name)))
    business = grown_business()
    for _ in range(10):
        saved_record(business)
    assert sorted(encoded) == ["_mark_rows", "_outcome_rows"]

    business.applying = half_messages.HalfState(outcomes=(*business.applying.outcomes, outcome(3)))
    assert saved_record(business)["outcomes"][-1] == [3, (1 << 64) - 3, int(Verdict.COMMIT), 30]
    business.marks = add_mark(business.marks, QueueMark(at_us=10**13, sequence=8, next_offset=9))
    assert saved_record(business)["marks"][-1] == [10**13, 8, 9]
    business.marks = []
    assert saved_record(business)["marks"] == []
