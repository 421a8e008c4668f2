"""Batches and chunks are decoded completely or refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engines.stored import HEAD, plain_rows, stored_rows
from tests.unit.codec import plain
from venus.codec.batch import (
    Batch,
    TableChanges,
    changes_from_wire,
    changes_to_wire,
    decode,
    digest,
    encode,
    marker,
)
from venus.codec.packed import PackedBytes
from venus.codec.stored_rows import TOMBSTONE, Chunk, RowTotals, SealedChunk, decode_chunk, encode_chunk, rows_digest
from venus.errors import ProtocolError
from venus.model import BatchNo, ChangeKind, Sequence
from venus.wire import broker_pb2, change_pb2

SCHEMA = plain.table(plain.column("id", 1), plain.column("note", 2), key=["id"], table_id=4, version=2)


def section(deleted: list[bool], **what: object) -> TableChanges:
    changes = TableChanges(
        table_id=4,
        schema_version=2,
        record_ids=PackedBytes.of(b"\x0a\x01%d" % i for i in range(len(deleted))),
        rows=PackedBytes.of(b"" if gone else b"\x12\x02ab" for gone in deleted),
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


def are_equal(left: TableChanges, right: TableChanges) -> bool:
    return changes_to_wire(left) == changes_to_wire(right) and left.is_deleted.tolist() == right.is_deleted.tolist()


def test_a_batch_is_decoded_completely() -> None:
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
    assert all(are_equal(a, b) for a, b in zip(got.sections, sections, strict=True))
    assert got.sections[1].record_ids.split() == sections[1].record_ids.split()
    assert got.sections[1].inserts_only
    assert got.sections[3].sweep_before == 99


def test_decoding_reads_the_sizes_in_place() -> None:
    got = decode(encode(batch(section([False, True])))).sections[0]

    assert not got.record_ids.sizes.flags.owndata
    assert not got.rows.sizes.flags.owndata
    assert not got.is_deleted.flags.owndata


def test_a_batch_without_deletions_carries_no_flags() -> None:
    assert changes_to_wire(section([False, False])).is_deleted == b""
    assert changes_to_wire(section([False, True])).is_deleted == b"\0\1"


@pytest.mark.parametrize("count", [0, 2, 4])
def test_an_inconsistent_batch_is_refused_by_encoder_and_decoder(count: int) -> None:
    wrong = batch(section([False, False]), marker(4, 2, ChangeKind.SWEEP_BEGIN), count=count)

    with pytest.raises(ProtocolError, match=f"batch 17 declares {count} changes and has 3"):
        encode(wrong)
    body = change_pb2.BatchBody.FromString(encode(replace(wrong, count=3)))
    body.count = count
    with pytest.raises(ProtocolError, match=f"batch 17 declares {count} changes and has 3"):
        decode(body.SerializeToString())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": 9}, "kind 9 is unknown to this version"),
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


def test_sizes_that_overflow_are_refused() -> None:
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
    with pytest.raises(ProtocolError, match="3 bytes are not a batch"):
        decode(b"\xff\xff\xff")
    with pytest.raises(ProtocolError, match="3 bytes are not a chunk"):
        decode_chunk(b"\xff\xff\xff")


def test_the_digest_is_xxh3_64_of_the_body() -> None:
    # The value is that of the reference implementation for the empty input.
    assert digest(b"") == 0x2D06800538D394C2


def test_a_chunk_is_decoded_completely() -> None:
    rows = [(5, 2, b"\x0a\x010", b"\x12\x02ab"), (2**63, 3, b"\x0a\x0211", b""), (7, 2, b"\x0a\x012", b"x" * 300)]
    sent = Chunk(
        chunk_no=3, table_id=4, rows=stored_rows(rows), last=b"\x0a\x012", end=True, totals=RowTotals(9, 2**64 - 1)
    )

    got = decode_chunk(encode_chunk(sent))

    assert replace(got, rows=sent.rows) == sent
    assert plain_rows(got.rows) == rows
    sections = {each.schema_version: each for each in got.sections}
    assert {v: plain_rows(each.stored) for v, each in sections.items()} == {2: [rows[0], rows[2]], 3: [rows[1]]}
    changes = sections[2].changes
    assert (changes.table_id, changes.schema_version, changes.inserts_only, changes.count) == (4, 2, True, 2)
    assert changes.record_ids.split() == [b"\x0a\x010", b"\x0a\x012"]
    assert changes.rows.split() == [b"\x12\x02ab", b"x" * 300]
    assert sections[2].stored.sequences.tolist() == [5, 7]


def test_a_chunk_without_rows_is_decoded() -> None:
    got = decode_chunk(encode_chunk(Chunk(chunk_no=0, table_id=4, rows=stored_rows([]), last=b"")))

    assert (len(got.rows), list(got.sections), got.end, got.totals) == (0, [], False, None)


def test_concatenated_parts_equal_protobufs_own_encoding() -> None:
    body = encode_chunk(Chunk(chunk_no=3, table_id=4, rows=stored_rows([(5, 2, b"key", b"row")]), last=b"key"))
    sealed = SealedChunk.of(body)

    message = broker_pb2.ChunkBody.FromString(body)
    assert (message.chunk_no, message.table_id, message.last) == (3, 4, b"key")
    assert (message.stored[-6:], message.stored_sizes) == (b"keyrow", b"\x17\0\0\0")
    assert sealed.serialise() == sealed.to_message().SerializeToString()
    assert sealed.digest == digest(body)


def test_a_deleted_row_in_a_chunk_is_refused_by_encoder_and_decoder() -> None:
    rows = stored_rows([(1, 2, b"key", b"")], flags=TOMBSTONE)
    with pytest.raises(ProtocolError, match="table 4 has rows that are not live"):
        encode_chunk(Chunk(chunk_no=1, table_id=4, rows=rows, last=b""))

    body = broker_pb2.ChunkBody(chunk_no=1, table_id=4, stored=rows.packed.data, stored_sizes=rows.packed.wire_sizes())
    with pytest.raises(ProtocolError, match="table 4 has rows that are not live"):
        decode_chunk(body.SerializeToString())


@pytest.mark.parametrize(
    ("stored", "sizes", "message"),
    [
        (b"x" * 20, b"\x14\0\0", "not an array of fixed32"),
        (b"x" * 20, b"\x15\0\0\0", "do not add up to 20 bytes"),
        (b"x" * 16, b"\x10\0\0\0", "stored row 1 is shorter than its head"),
        (HEAD.pack(1, 2, 0, 3) + b"ab", b"\x13\0\0\0", "shorter than its record_id"),
    ],
)
def test_a_chunk_that_contradicts_itself_is_refused(stored: bytes, sizes: bytes, message: str) -> None:
    body = broker_pb2.ChunkBody(chunk_no=1, table_id=4, stored=stored, stored_sizes=sizes)

    with pytest.raises(ProtocolError, match=message):
        decode_chunk(body.SerializeToString())


def test_the_digest_of_rows_depends_on_every_sequence_but_not_on_the_order() -> None:
    numbers = np.array([1, 2, 3, 2**63], dtype=np.uint64)
    whole = rows_digest(numbers)

    # The value is that of the reference implementation of SplitMix64 for the state 1, without its increment.
    assert rows_digest(numbers[:1]) == 0x5692161D100B05E5
    assert rows_digest(numbers[::-1]) == whole
    assert rows_digest(np.array([0, 3, 3, 2**63], dtype=np.uint64)) != whole
    assert rows_digest(numbers[:0]) == 0


def test_totals_are_the_same_in_any_order_and_partition() -> None:
    rows = [(s, 2, b"key", b"") for s in (1, 2, 3, 2**63)]
    whole, parts = RowTotals(), RowTotals()

    whole.add(stored_rows(rows))
    for part in (rows[2:], rows[:0], rows[:2]):
        parts.add(stored_rows(part))

    assert parts == whole == RowTotals(4, rows_digest(np.array([1, 2, 3, 2**63], dtype=np.uint64)))
