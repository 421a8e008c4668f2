"""Batches and chunks: whole, or refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.codec import plain
from venus.codec.batch import (
    Batch,
    add_digests,
    changes_from_wire,
    changes_to_wire,
    decode,
    decode_chunk,
    digest,
    encode,
    encode_chunk,
    rows_digest,
)
from venus.codec.changes import TableChanges, marker
from venus.codec.packed import Packed
from venus.errors import ProtocolError
from venus.model import BatchNo, ChangeKind, Sequence
from venus.wire import broker_pb2, change_pb2

SCHEMA = plain.table(plain.column("id", 1), plain.column("note", 2), key=["id"], table_id=4, version=2)


def section(deleted: list[bool], **what: object) -> TableChanges:
    changes = TableChanges(
        table_id=4,
        schema_version=2,
        record_ids=Packed.of(b"\x0a\x01%d" % i for i in range(len(deleted))),
        rows=Packed.of(b"" if gone else b"\x12\x02ab" for gone in deleted),
        is_deleted=np.array(deleted, dtype=np.bool_),
    )
    return replace(changes, **what)  # type: ignore[arg-type]


def batch(*sections: TableChanges, count: int | None = None) -> Batch:
    return Batch(
        batch_no=BatchNo(17),
        first_sequence=Sequence(2**40),
        count=sum(s.count for s in sections) if count is None else count,
        cut=BatchNo(15),
        cut_end=True,
        captured_at_us=1_795_000_000_000_000,
        schemas=(SCHEMA,),
        sections=sections,
    )


def same(left: TableChanges, right: TableChanges) -> bool:
    return changes_to_wire(left) == changes_to_wire(right) and left.is_deleted.tolist() == right.is_deleted.tolist()


def test_a_batch_comes_back_whole() -> None:
    sections = (
        marker(4, 2, ChangeKind.TRUNCATE),
        section([False, True, False], inserts_only=True),
        section([False]),
        marker(4, 2, ChangeKind.SWEEP_END, sweep_before=99),
    )
    given_batch = batch(*sections)

    got = decode(encode(given_batch))

    assert got.count == 6
    assert replace(got, sections=()) == replace(given_batch, sections=())
    assert all(same(a, b) for a, b in zip(got.sections, sections, strict=True))
    assert got.sections[1].record_ids.split() == sections[1].record_ids.split()
    assert got.sections[1].inserts_only
    assert got.sections[3].sweep_before == 99


def test_decoding_looks_at_the_sizes_where_they_are() -> None:
    got = decode(encode(batch(section([False, True])))).sections[0]

    assert not got.record_ids.sizes.flags.owndata
    assert not got.rows.sizes.flags.owndata
    assert not got.is_deleted.flags.owndata


def test_a_batch_without_deletions_carries_no_flags() -> None:
    assert changes_to_wire(section([False, False])).is_deleted == b""
    assert changes_to_wire(section([False, True])).is_deleted == b"\0\1"


@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_batch_that_does_not_add_up_is_refused_on_both_sides(count: int) -> None:
    wrong = batch(section([False, False]), marker(4, 2, ChangeKind.SWEEP_BEGIN), count=count)

    with pytest.raises(ProtocolError, match=f"batch 17 says {count} changes and has 3"):
        encode(wrong)
    body = change_pb2.BatchBody.FromString(encode(replace(wrong, count=3)))
    body.count = count
    with pytest.raises(ProtocolError, match=f"batch 17 says {count} changes and has 3"):
        decode(body.SerializeToString())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": 9}, "kind 9 is unknown here"),
        ({"count": 4}, "12 bytes of sizes for 4 changes"),
        ({"record_id_sizes": b"\0" * 11}, "record ids: 11 bytes of sizes for 3 changes"),
        ({"row_sizes": b"\0" * 16}, "rows: 16 bytes of sizes for 3 changes"),
        ({"record_ids": b"\x0a"}, "record ids: the sizes add up to 9 bytes, there are 1"),
        ({"rows": b""}, "rows: the sizes add up to 8 bytes, there are 0"),
        ({"is_deleted": b"\0\1"}, "2 deletion flags for 3 changes"),
        ({"is_deleted": b"\0\2\0"}, "deletion flag 2 is neither 0 nor 1"),
        ({"is_deleted": b"\1\1\0"}, "row 1 is deleted and has values"),
        ({"kind": 1}, "TRUNCATE marker counts 3 Sequences"),
        ({"kind": 1, "count": 1}, "12 bytes of sizes for 0 changes"),
    ],
)
def test_a_section_that_contradicts_itself_is_refused(change: dict[str, object], message: str) -> None:
    wire = changes_to_wire(section([False, True, False]))
    for name, value in change.items():
        setattr(wire, name, value)

    with pytest.raises(ProtocolError, match=message) as refused:
        changes_from_wire(wire)

    assert str(refused.value).startswith("changes of table 4 version 2")


def test_sizes_that_overflow_are_not_taken_for_small_ones() -> None:
    wire = changes_to_wire(section([False, False]))
    wire.rows, wire.row_sizes = b"", (b"\0\0\0\x80" * 2)

    with pytest.raises(ProtocolError, match="add up to 4294967296 bytes"):
        changes_from_wire(wire)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_damaged_batch_is_refused_or_consistent(data: st.DataObject) -> None:
    body = bytearray(encode(batch(marker(4, 2, ChangeKind.TRUNCATE), section([False, True, False]))))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else body
    try:
        got = decode(bytes(body))
    except ProtocolError:
        return
    assert got.count == sum(s.count for s in got.sections)
    for s in got.sections:
        assert len(s.record_ids) == len(s.rows) == len(s.is_deleted)
        assert sum(map(len, s.rows.split())) == len(s.rows.data)
        assert sum(map(len, s.record_ids.split())) == len(s.record_ids.data)


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(ProtocolError, match="3 bytes are no batch"):
        decode(b"\xff\xff\xff")
    with pytest.raises(ProtocolError, match="3 bytes are no chunk"):
        decode_chunk(b"\xff\xff\xff")


def test_the_digest_is_xxh3_64_of_the_body() -> None:
    # The value is the reference implementation's, for the empty input.
    assert digest(b"") == 0x2D06800538D394C2


def test_a_chunk_comes_back_whole() -> None:
    sections = (section([False, False]), section([False], schema_version=3))
    sequences = (np.array([5, 2**63], dtype=np.uint64), np.array([7], dtype=np.uint64))

    body = encode_chunk(
        chunk_no=3, sections=sections, sequences=sequences, last=b"\x0a\x012", end=True, rows=9, rows_digest=2**64 - 1
    )
    got = decode_chunk(body)

    assert (got.chunk_no, got.last, got.end, got.rows, got.rows_digest) == (3, b"\x0a\x012", True, 9, 2**64 - 1)
    assert [s.tolist() for s in got.sequences] == [[5, 2**63], [7]]
    assert all(same(a, b) for a, b in zip(got.sections, sections, strict=True))
    assert broker_pb2.ChunkBody.FromString(body).sequences[1] == b"\7\0\0\0\0\0\0\0"


@pytest.mark.parametrize(
    ("sections", "sequences", "message"),
    [
        ([section([False])], [], "1 sections and 0 arrays of Sequences"),
        ([section([False])], [[1, 2]], "1 rows and 2 Sequences"),
        ([section([False, True])], [[1, 2]], "table 4 has something else than live rows"),
        ([marker(4, 2, ChangeKind.TRUNCATE)], [[1]], "table 4 has something else than live rows"),
    ],
)
def test_a_chunk_that_contradicts_itself_is_refused_on_both_sides(
    sections: list[TableChanges], sequences: list[list[int]], message: str
) -> None:
    arrays = [np.array(s, dtype=np.uint64) for s in sequences]
    with pytest.raises(ProtocolError, match=message):
        encode_chunk(chunk_no=1, sections=sections, sequences=arrays, last=b"")

    body = broker_pb2.ChunkBody(
        chunk_no=1, tables=[changes_to_wire(s) for s in sections], sequences=[a.tobytes() for a in arrays]
    )
    with pytest.raises(ProtocolError, match=message):
        decode_chunk(body.SerializeToString())


def test_sequences_that_are_cut_short_are_refused() -> None:
    body = broker_pb2.ChunkBody(chunk_no=1, tables=[changes_to_wire(section([False]))], sequences=[b"\0" * 7])

    with pytest.raises(ProtocolError, match="no array of fixed64"):
        decode_chunk(body.SerializeToString())


def test_the_digest_of_rows_knows_every_sequence_but_no_order() -> None:
    numbers = np.array([1, 2, 3, 2**63], dtype=np.uint64)
    whole = rows_digest(numbers)

    # The value is that of the reference implementation of SplitMix64 for the state 1, without its increment.
    assert rows_digest(numbers[:1]) == 0x5692161D100B05E5
    assert rows_digest(numbers[::-1]) == whole
    assert add_digests(rows_digest(numbers[:1]), rows_digest(numbers[1:])) == whole
    assert rows_digest(np.array([0, 3, 3, 2**63], dtype=np.uint64)) != whole
    assert rows_digest(numbers[:0]) == 0
