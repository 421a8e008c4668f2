"""Folding of changes to the last one of each key, and assembly of cuts from increments, without a database."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.brokers.feed import deletion, items, put, section
from venus.adapters.targets.relational.verdicts import RefusedChange, RowsRefused, Verdicts
from venus.adapters.under.cut_assembler import CutAssembler, CutPiece
from venus.adapters.under.row_changes import (
    join_changes,
    mark_last,
    net_changes,
    select_packed,
    slice_changes,
    to_row_changes,
)
from venus.codec.batch import Batch
from venus.codec.packed import PackedBytes
from venus.errors import ProtocolError
from venus.model import BatchNo, Sequence


@given(st.lists(st.binary(max_size=12) | st.binary(min_size=60, max_size=70) | st.sampled_from([b"", b"\0", b"\0\0"])))
def test_the_last_change_of_each_key_is_found_as_by_a_dictionary(keys: list[bytes]) -> None:
    wanted = sorted({key: i for i, key in enumerate(keys)}.values())
    assert np.flatnonzero(mark_last(PackedBytes.of(keys))).tolist() == wanted


@given(st.lists(st.tuples(st.binary(max_size=9), st.booleans())))
def test_selecting_keeps_order_and_bytes(pairs: list[tuple[bytes, bool]]) -> None:
    mask = np.array([m for _, m in pairs], dtype=np.bool_)
    assert select_packed(PackedBytes.of(k for k, _ in pairs), mask).split() == [k for k, m in pairs if m]


def test_net_change_over_several_sections() -> None:
    first = section(items(), [put(1, "a", 1), put(2, "b", 1)])
    second = section(items(), [deletion(1), put(3, "c", 1), put(2, "d", 1)])
    rows = net_changes(join_changes([to_row_changes(first, 10), to_row_changes(second, 12)]))
    assert rows.offsets.tolist() == [12, 13, 14]
    assert rows.is_deleted.tolist() == [True, False, False]
    assert slice_changes(rows, 1, 2).offsets.tolist() == [13]


def piece(start: int, count: int, *, cut: int, end: bool = True) -> CutPiece:
    content = (section(items(), [put(i, "x", 1) for i in range(count)]),) if count else ()
    batch = Batch(
        batch_no=BatchNo(cut),
        first_sequence=Sequence(start + 1),
        count=count,
        cut=BatchNo(cut),
        cut_end=end,
        captured_at_us=0,
        schemas=(),
        sections=content,
    )
    return CutPiece(start=start, epoch=1, committed_at_us=0, digest=0, decided=True, batch=batch)


def test_small_cuts_are_applied_together_and_large_ones_alone() -> None:
    assembler = CutAssembler(0)
    for one in (piece(0, 3, cut=1, end=False), piece(3, 3, cut=1), piece(6, 3, cut=2), piece(9, 9, cut=3)):
        assembler.add(one)
    assembler.add(piece(18, 2, cut=4, end=False))
    assert [cut.rows for cut in assembler.take_group(10)] == [6, 3]
    assert [cut.rows for cut in assembler.take_group(5)] == [9]
    assert assembler.take_group(100) == []
    assert assembler.is_open_full(2)
    assert not assembler.is_open_full(3)
    assert len(assembler.take_open_pieces()) == 1
    assembler.add(piece(20, 1, cut=4))
    assert [p.start for p in assembler.take_open_pieces()] == [20]
    assert assembler.rows == 0


def large_piece(start: int, cut: int, *, end: bool = True) -> CutPiece:
    one = piece(start, 1, cut=cut, end=end)
    one.nbytes = 10 << 20
    return one


def test_few_large_rows_count_like_many_small_ones() -> None:
    assembler = CutAssembler(0)
    for n in range(8):
        assembler.add(large_piece(n, n + 1))
        assert assembler.is_full(1000) == (n >= 3)
    assert [len(assembler.take_group(1000)) for _ in range(4)] == [3, 3, 2, 0]
    assert assembler.nbytes == 0

    for n in range(8, 12):
        assert not assembler.is_open_full(1000)
        assembler.add(large_piece(n, 9, end=False))
    assert assembler.is_open_full(1000), "it goes into one target transaction while it arrives"
    assert len(assembler.take_open_pieces()) == 4
    assert not assembler.is_full(1000)
    assert (assembler.rows, assembler.nbytes) == (0, 0)


def test_one_large_cut_is_applied_alone() -> None:
    assembler = CutAssembler(0)
    for n in range(5):
        assembler.add(large_piece(n, 1, end=n == 4))
    assembler.add(piece(5, 3, cut=2))
    assert not assembler.is_open_full(1), "it is complete"
    assert [len(assembler.take_group(1000)) for _ in range(2)] == [1, 1]


def test_replays_are_dropped_and_gaps_and_overlaps_are_errors() -> None:
    assembler = CutAssembler(10)
    assembler.add(piece(5, 5, cut=1))
    assert assembler.replayed == 1
    with pytest.raises(ProtocolError):
        assembler.add(piece(8, 5, cut=2))
    with pytest.raises(ProtocolError):
        assembler.add(piece(12, 5, cut=2))
    assembler.add(piece(10, 5, cut=2, end=False))
    with pytest.raises(ProtocolError):
        assembler.add(piece(15, 5, cut=3))


def test_a_reader_of_one_table_ends_cuts_by_the_next_one() -> None:
    assembler = CutAssembler(10, dense=False)
    assembler.add(piece(10, 5, cut=2, end=False))
    assert not assembler.has_complete
    assembler.add(piece(30, 5, cut=4, end=False))
    assert assembler.take_group(9, end_max=14) == []
    assert len(assembler.take_group(1)) == 1
    assembler.close_below(35)
    assert [c.number for c in assembler.take_group(1)] == [4]


def test_verdicts_are_resolved_in_finite_time() -> None:
    verdicts = Verdicts()
    suspect = RefusedChange(record_id=b"k", offset=1, sqlstate="23514", message="no", summary="no")
    verdicts.record_refusal(RowsRefused(1, "no", [suspect]), quarantine=True)
    assert not verdicts.halts
    verdicts.record_refusal(RowsRefused(1, "no", [suspect]), quarantine=True)  # the same verdict again would never end
    assert verdicts.halts == {1: "no"}
    verdicts.record_refusal(RowsRefused(2, "whole table", []), quarantine=True)
    assert verdicts.halts[2] == "whole table"
