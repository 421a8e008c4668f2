"""A table with a hundred thousand quarantined changes: neither its next changes nor a retry walk through all."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.brokers.feed import items, put, section
from venus.adapters.targets.contract import QuarantineRow
from venus.adapters.targets.relational import control
from venus.adapters.targets.relational.parking import ChangeCounts, QuarantineWriter
from venus.adapters.targets.relational.verdicts import PARKED, RefusedChange, Verdicts
from venus.adapters.under.row_changes import RowChanges, to_row_changes

ROWS = 5000


def _rows(first: int, count: int) -> RowChanges:
    return to_row_changes(section(items(), [put(first + n, "x", 1) for n in range(count)]), 1000)


def _parking(
    parked: dict[bytes, int], suspects: dict[bytes, RefusedChange], kept: list[RowChanges]
) -> QuarantineWriter:
    catalogue = SimpleNamespace(skipped={}, parked={items().table_id: parked})
    verdicts = Verdicts(suspects={items().table_id: suspects})
    counts = SimpleNamespace(for_table=lambda _table_id: SimpleNamespace(quarantined=0))
    parking = QuarantineWriter(
        cast(Any, None), cast(Any, None), cast(Any, catalogue), verdicts, cast(ChangeCounts, counts)
    )
    parking._store = lambda rows, *_: kept.append(rows)  # type: ignore[method-assign]
    return parking


def test_the_quarantine_of_a_table_is_not_copied_for_each_section() -> None:
    ids = [f"other {n}".encode() for n in range(100_000)]
    parking = _parking(dict.fromkeys(ids, 7), {}, [])
    few = _rows(1, 1)

    began = time.thread_time()
    for _ in range(200):
        assert parking.park_waiting(few, cast(Any, None), items(), catching_up=False) == (few, None)

    assert time.thread_time() - began < 0.5


def test_a_change_waits_behind_the_first_quarantined_one_of_its_key() -> None:
    rows = _rows(1, 4)  # offsets 1000..1003
    first, second, third, fourth = rows.record_ids.split()

    def suspect(offset: int) -> RefusedChange:
        return RefusedChange(record_id=b"", offset=offset, sqlstate="23505", message="", summary="")

    kept: list[RowChanges] = []
    parking = _parking(
        {first: 5, second: 1001}, {second: suspect(9000), third: suspect(1002), fourth: suspect(1004)}, kept
    )
    applied, parked = parking.park_waiting(rows, cast(Any, None), items(), catching_up=False)

    assert applied.record_ids.split() == [fourth]
    assert parked is not None
    assert parked.record_ids.split() == [first, second, third]
    parking._emptied[items().table_id] = 1002
    applied, parked = parking.park_waiting(rows, cast(Any, None), items(), catching_up=False)
    assert parked is not None
    assert parked.record_ids.split() == [third], "what was refused before a TRUNCATE is gone"


def _quarantine_row(number: int) -> QuarantineRow:
    return QuarantineRow(
        id=number,
        table_id=items().table_id,
        table="shop.item",
        schema_version=items().version,
        record_id=b"%d" % (number // 2),
        key="",
        offset=number,
        sequence=number,
        sqlstate="23505",
        message="",
        row_message=b"",
        is_deleted=False,
        state=PARKED,
        reason="",
        created_at=datetime.now(UTC),
        decided_at=None,
    )


def test_a_retry_of_thousands_walks_through_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [_quarantine_row(n) for n in range(ROWS)]
    chains: list[list[QuarantineRow]] = []

    def apply_key(_target: object, _session: object, chain: list[QuarantineRow], *_: object) -> str:
        chains.append(chain)
        return ""

    monkeypatch.setattr(control, "_read_quarantine", lambda *_: waiting)
    monkeypatch.setattr(control, "_apply_key", apply_key)
    target = cast(Any, SimpleNamespace(read_schemas=lambda _session: [items()], read_tables=lambda _session: []))

    began = time.thread_time()
    report = control._apply_and_resume(target, cast(Any, None), waiting, {1})

    assert time.thread_time() - began < 0.5
    assert report.applied == ROWS
    assert [q.id for chain in chains for q in chain] == list(range(ROWS))
    assert len(chains) == ROWS // 2
