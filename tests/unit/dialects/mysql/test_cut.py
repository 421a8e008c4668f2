"""The log rows that a snapshot of MySQL or MariaDB sees: exactly, and in little memory however long the log is."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from venus.adapters.dialects.contract import FillState
from venus.adapters.dialects.mysql.capture.cut import LogNumbers, MysqlCut, MysqlFillPace
from venus.adapters.dialects.mysql.connection import MysqlConnection
from venus.adapters.dialects.mysql.registry import MysqlCapturedTable
from venus.adapters.dialects.registry_rules import HaltTracker, RestoreGuard

ROWS = 1_000_000

GAPS = st.one_of(st.just(1), st.just(3), st.integers(1, 300), st.integers(1, 1 << 40))


@given(st.integers(1, 1 << 50), st.lists(st.lists(GAPS, max_size=30)), st.integers(1, 40))
def test_added_numbers_are_returned_again(first: int, pieces: list[list[int]], rows_max: int) -> None:
    numbers, wanted, at = LogNumbers(), list[int](), first
    for gaps in pieces:
        piece = []
        for gap in gaps:
            piece.append(at)
            at += gap
        numbers.add(piece)
        wanted += piece

    found = list(numbers.portions(rows_max))

    assert [n for portion in found for n in portion] == wanted
    assert len(numbers) == len(wanted)
    assert all(1 <= len(portion) <= rows_max for portion in found)


class _Cursor:
    """A log of this many rows, with occasional gaps of rolled-back transactions."""

    def __init__(self) -> None:
        self._at = 0

    def fetchmany(self, count: int) -> list[tuple[int]]:
        first, self._at = self._at, min(ROWS, self._at + count)
        return [(n + n // 1000,) for n in range(first, self._at)]


class _Reader:
    @contextmanager
    def stream(self, _sql: str) -> Iterator[_Cursor]:
        yield _Cursor()


def test_a_week_old_log_takes_little_memory() -> None:
    cut = MysqlCut(
        reader=cast(MysqlConnection, _Reader()),
        writer=cast(MysqlConnection, None),
        captured_at_us=0,
        dirty=[],
        filling=dict[int, tuple[FillState, MysqlCapturedTable]](),
        pace=MysqlFillPace(),
        halts=cast(HaltTracker, None),
        left=RestoreGuard(),
    )
    tracemalloc.start()
    numbers = cut._read_numbers(1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(numbers) == ROWS
    assert peak < 6 << 20, "eight bytes a row, sorted, are 24 MB"
