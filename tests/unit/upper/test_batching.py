"""Sections become batches: numbers, Sequences, limits, order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from venus.adapters.upper.batching import Batcher
from venus.codec.batch import Batch, TableChanges, marker
from venus.codec.packed import PackedBytes
from venus.model import BatchNo, ChangeKind, Sequence

ROWS_MAX = 10
BYTES_MAX = 600


def _section(table_id: int, rows: int, row_bytes: int) -> TableChanges:
    return TableChanges(
        table_id=table_id,
        schema_version=1,
        record_ids=PackedBytes.of(str(i).encode() for i in range(rows)),
        rows=PackedBytes.of(b"x" * row_bytes for _ in range(rows)),
        is_deleted=np.zeros(rows, dtype=np.bool_),
    )


def _batches(sections: list[TableChanges], first_batch: int, first_sequence: int) -> list[Batch]:
    batcher = Batcher(
        first_batch=BatchNo(first_batch),
        first_sequence=Sequence(first_sequence),
        captured_at_us=7,
        schemas=(),
        rows_max=ROWS_MAX,
        bytes_max=BYTES_MAX,
    )
    ready = [batch for section in sections if (batch := batcher.add(section)) is not None]
    return [*ready, batcher.end()]


_sections = st.lists(
    st.one_of(
        st.builds(_section, st.integers(1, 3), st.integers(1, ROWS_MAX), st.integers(0, 60)),
        st.builds(marker, st.integers(1, 3), st.just(1), st.just(ChangeKind.TRUNCATE)),
    ),
    max_size=30,
)


@given(_sections, st.integers(1, 1000), st.integers(1, 10**12))
def test_numbers_and_sequences_are_dense_and_the_order_is_kept(
    sections: list[TableChanges], first_batch: int, first_sequence: int
) -> None:
    batches = _batches(sections, first_batch, first_sequence)
    assert [b.batch_no for b in batches] == list(range(first_batch, first_batch + len(batches)))
    sequence = first_sequence
    for batch in batches:
        assert batch.first_sequence == sequence
        assert batch.count == sum(s.count for s in batch.sections)
        sequence += batch.count
    assert [s for b in batches for s in b.sections] == sections


@given(_sections)
def test_a_cut_is_named_after_its_first_batch_and_only_its_last_batch_ends_it(sections: list[TableChanges]) -> None:
    batches = _batches(sections, 5, 1)
    assert {b.cut for b in batches} == {5}
    assert [b.cut_end for b in batches] == [False] * (len(batches) - 1) + [True]


@given(_sections)
def test_batches_respect_the_limits_and_are_as_few_as_the_order_allows(sections: list[TableChanges]) -> None:
    batches = _batches(sections, 1, 1)
    for batch in batches:
        if len(batch.sections) > 1:
            assert batch.count <= ROWS_MAX
            assert sum(s.nbytes for s in batch.sections) <= BYTES_MAX
    for batch, after in pairwise(batches):
        first = after.sections[0]
        rows = batch.count + first.count
        assert rows > ROWS_MAX or sum(s.nbytes for s in batch.sections) + first.nbytes > BYTES_MAX
    if sections:
        assert all(b.sections for b in batches)


def test_a_small_cut_of_several_tables_is_one_batch() -> None:
    (batch,) = _batches([_section(1, 2, 5), marker(2, 1, ChangeKind.TRUNCATE), _section(2, 3, 5)], 1, 1)
    assert (batch.count, batch.cut_end, len(batch.sections)) == (6, True, 3)


def test_an_empty_cut_is_one_empty_batch() -> None:
    (batch,) = _batches([], 4, 9)
    assert (batch.batch_no, batch.first_sequence, batch.count, batch.cut_end) == (4, 9, 0, True)


@given(_sections)
def test_the_next_sequence_is_that_of_the_next_section(sections: list[TableChanges]) -> None:
    batcher = Batcher(
        first_batch=BatchNo(1),
        first_sequence=Sequence(1),
        captured_at_us=0,
        schemas=(),
        rows_max=ROWS_MAX,
        bytes_max=BYTES_MAX,
    )
    expected = 1
    for section in sections:
        assert batcher.next_sequence == expected
        batcher.add(section)
        expected += section.count
