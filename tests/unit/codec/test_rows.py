"""Rows as bytes: the fast codec compared with plain Python and with protobuf itself."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.codec import plain
from venus.codec import row_bytes
from venus.codec.columns import from_columns, keys_from_columns, keys_to_columns, row_as_dict, to_columns
from venus.codec.copy_text import from_copy, from_copy_with_new, keys_to_copy, messages_to_copy, to_copy
from venus.codec.packed import FEW_ITEMS_MAX, PackedBytes, join_items, pack_items, position_type
from venus.codec.row_bytes import Layout
from venus.codec.schema import message_class
from venus.errors import ProtocolError
from venus.model import Kind, TableSchema

Case = tuple[TableSchema, list[plain.Row]]

many = settings(deadline=None, max_examples=40)


@pytest.fixture(params=["few rows", "batches"], scope="module", autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test with both ways of the codec: value by value, which is used for few rows, and batch by batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_bytes, "FEW_VALUES_MAX", 1_000_000 if request.param == "few rows" else 0)
        yield


def pack_rows(rows: list[plain.Row], layout: Layout) -> tuple[PackedBytes, PackedBytes]:
    """Return the expected bytes of the rows."""
    k = layout.key_count
    return (
        PackedBytes.of(plain.encode_row(row[:k], layout.numbers[:k]) for row in rows),
        PackedBytes.of(plain.encode_row(row[k:], layout.numbers[k:]) for row in rows),
    )


def are_equal(left: PackedBytes, right: PackedBytes) -> bool:
    return left.data == right.data and left.sizes.tolist() == right.sizes.tolist()


@many
@given(plain.tables_with_rows())
def test_copy_text_is_encoded_as_by_the_plain_codec(case: Case) -> None:
    schema, rows = case
    layout = Layout.of(schema)

    record_ids, others, is_deleted = from_copy(plain.copy_lines(rows), layout, flagged=False)

    expected_ids, expected_rows = pack_rows(rows, layout)
    assert are_equal(record_ids, expected_ids)
    assert are_equal(others, expected_rows)
    assert is_deleted.tolist() == [False] * len(rows)


@many
@given(plain.tables_with_rows())
def test_bytes_are_decoded_to_copy_text_as_by_the_plain_codec(case: Case) -> None:
    schema, rows = case
    layout = Layout.of(schema)
    record_ids, others = pack_rows(rows, layout)

    assert to_copy(record_ids, others, layout) == plain.copy_lines(rows)
    assert keys_to_copy(record_ids, layout) == plain.copy_lines([row[: layout.key_count] for row in rows])


@many
@given(plain.tables_with_rows())
def test_copy_text_survives_encoding_and_decoding(case: Case) -> None:
    schema, rows = case
    layout = Layout.of(schema)
    text = plain.copy_lines(rows)

    record_ids, others, _ = from_copy(text, layout, flagged=False)

    assert to_copy(record_ids, others, layout) == text


@many
@given(plain.tables_with_rows())
def test_columns_have_the_same_bytes_and_are_decoded_again(case: Case) -> None:
    schema, rows = case
    layout = Layout.of(schema)
    columns = [list(c) for c in zip(*rows, strict=True)] or [[] for _ in layout.columns]

    record_ids, others = from_columns(columns, layout)

    expected_ids, expected_rows = pack_rows(rows, layout)
    assert are_equal(record_ids, expected_ids)
    assert are_equal(others, expected_rows)
    assert are_equal(keys_from_columns(columns[: layout.key_count], layout), expected_ids)
    assert to_columns(record_ids, others, layout) == columns
    assert keys_to_columns(record_ids, layout) == columns[: layout.key_count]


@many
@given(plain.tables_with_rows())
def test_protobuf_reads_a_row_as_we_wrote_it(case: Case) -> None:
    schema, rows = case
    layout = Layout.of(schema)
    message = message_class(schema)
    record_ids, others, _ = from_copy(plain.copy_lines(rows), layout, flagged=False)

    for row, record_id, other in zip(rows, record_ids.split(), others.split(), strict=True):
        parsed = message.FromString(record_id + other)
        found = {field.number: value for field, value in parsed.ListFields()}
        assert found == {n: v for n, v in zip(layout.numbers, row, strict=True) if v is not None}


@many
@given(plain.tables_with_rows())
def test_we_read_a_row_as_protobuf_wrote_it_field_by_field(case: Case) -> None:
    schema, rows = case
    layout = Layout.of(schema)
    message = message_class(schema)
    names = {f.number: f.name for f in message.DESCRIPTOR.fields}

    def serialise(number: int, value: plain.Value) -> bytes:
        return b"" if value is None else message(**{names[number]: value}).SerializeToString()

    parts = [[serialise(n, v) for n, v in zip(layout.numbers, row, strict=True)] for row in rows]
    record_ids = PackedBytes.of(b"".join(p[: layout.key_count]) for p in parts)
    others = PackedBytes.of(b"".join(p[layout.key_count :]) for p in parts)

    assert to_copy(record_ids, others, layout) == plain.copy_lines(rows)
    ours = pack_rows(rows, layout)
    assert are_equal(ours[0], record_ids)
    assert are_equal(ours[1], others)


@many
@given(plain.tables_with_rows(), st.data())
def test_deleted_rows_are_flagged_and_have_only_a_key(case: Case, data: st.DataObject) -> None:
    schema, rows = case
    layout = Layout.of(schema)
    deleted = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    rows = [
        [*row[: layout.key_count], *([None] * (len(row) - layout.key_count) if gone else row[layout.key_count :])]
        for row, gone in zip(rows, deleted, strict=True)
    ]
    text = plain.copy_lines([["t" if gone else "f", *row] for row, gone in zip(rows, deleted, strict=True)])

    record_ids, others, is_deleted = from_copy(text, layout, flagged=True)

    expected_ids, expected_rows = pack_rows(rows, layout)
    assert are_equal(record_ids, expected_ids)
    assert are_equal(others, expected_rows)
    assert is_deleted.tolist() == deleted


@pytest.mark.parametrize("repeated", [1, 100], ids=["few", "many"])
def test_new_rows_are_flagged_beside_deleted_ones(repeated: int) -> None:
    layout = Layout.of(plain.table(plain.column("id", 1), plain.column("note", 2), key=["id"]))
    lines = b"f\t7\ta\nn\t8\tb\nt\t9\t\\N\n" * repeated

    record_ids, rows, is_deleted, is_new = from_copy_with_new(lines, layout)

    assert is_deleted.tolist() == [False, False, True] * repeated
    assert is_new.tolist() == [False, True, False] * repeated
    assert to_copy(record_ids, rows, layout) == b"7\ta\n8\tb\n9\t\\N\n" * repeated
    with pytest.raises(ProtocolError, match="line 2 does not begin with t or f"):
        from_copy(lines, layout, flagged=True)


def test_a_row_of_nulls_is_not_a_deleted_row() -> None:
    layout = Layout.of(plain.table(plain.column("id", 1), plain.column("note", 2), key=["id"]))

    _, rows, is_deleted = from_copy(b"f\t7\t\\N\nt\t8\t\\N\n", layout, flagged=True)

    assert rows.sizes.tolist() == [0, 0]
    assert is_deleted.tolist() == [False, True]


def test_a_table_with_only_key_columns_has_empty_rows() -> None:
    layout = Layout.of(plain.table(plain.column("a", 1), plain.column("b", 2), key=["b", "a"]))

    record_ids, rows, is_deleted = from_copy(b"f\tB\tA\nt\tD\tC\n", layout, flagged=True)

    assert record_ids.split() == [b"\x12\x01B\x0a\x01A", b"\x12\x01D\x0a\x01C"]
    assert rows.sizes.tolist() == [0, 0]
    assert is_deleted.tolist() == [False, True]
    assert to_copy(record_ids, rows, layout) == b"B\tA\nD\tC\n"
    assert to_columns(record_ids, rows, layout) == [["B", "D"], ["A", "C"]]


def test_an_empty_text_is_not_null() -> None:
    layout = Layout.of(plain.table(plain.column("id", 1), plain.column("note", 2), key=["id"]))

    record_ids, rows, _ = from_copy(b"1\t\n2\t\\N\n3\t\\\\N\n", layout, flagged=False)

    assert rows.split() == [b"\x12\x00", b"", b"\x12\x02\\N"]
    assert to_columns(record_ids, rows, layout)[1] == ["", None, "\\N"]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 10_000_000])
def test_values_of_every_size_are_exact(size: int) -> None:
    schema = plain.table(
        plain.column("id", 1), plain.column("blob", 2047, Kind.BYTES), plain.column("text", 3), key=["id"], version=9
    )
    layout = Layout.of(schema)
    blob = bytes(range(256)) * (size // 256) + bytes(size % 256)
    rows: list[plain.Row] = [
        ["1", blob, "a"],
        ["2", b"\\", "x" * size],
        ["3", None, None],
        ["4", blob, "\t" * (size // 9)],
    ]
    text = plain.copy_lines(rows)

    record_ids, others, _ = from_copy(text, layout, flagged=False)

    assert to_copy(record_ids, others, layout) == text
    assert [list(r) for r in zip(*to_columns(record_ids, others, layout), strict=True)] == rows
    message = message_class(schema).FromString(record_ids.split()[0] + others.split()[0])
    assert {f.number: v for f, v in message.ListFields()} == {1: "1", 2047: blob, 3: "a"}


def test_a_row_is_shown_by_column_name() -> None:
    schema = plain.table(plain.column("b", 2), plain.column("a b", 7, Kind.BYTES), plain.column("id", 1), key=["id"])
    layout = Layout.of(schema)
    record_ids, rows = from_columns([["7"], [None], [b"\0"]], layout)

    assert row_as_dict(record_ids.data, rows.data, layout) == {"id": "7", "b": None, "a b": b"\0"}


def test_no_rows_are_no_bytes() -> None:
    layout = Layout.of(plain.table(plain.column("id", 1), plain.column("note", 2), key=["id"]))
    none = PackedBytes.of([])

    record_ids, rows, is_deleted = from_copy(b"", layout, flagged=True)

    assert (len(record_ids), len(rows), len(is_deleted)) == (0, 0, 0)
    assert to_copy(none, none, layout) == b""
    assert keys_to_copy(none, layout) == b""
    assert to_columns(none, none, layout) == [[], []]
    assert from_columns([[], []], layout)[0].data == b""


def test_the_largest_number_of_columns_in_postgresql_is_encoded() -> None:
    count = 1600
    columns = [plain.column(f"c{i}", i) for i in range(1, count + 1)]
    layout = Layout.of(plain.table(*columns, key=["c800"]))
    rows: list[plain.Row] = [[str(i), *[None if (i + j) % 3 else f"v{j}" for j in range(count - 1)]] for i in range(20)]
    text = plain.copy_lines(rows)

    record_ids, others, _ = from_copy(text, layout, flagged=False)

    expected_ids, expected_rows = pack_rows(rows, layout)
    assert are_equal(record_ids, expected_ids)
    assert are_equal(others, expected_rows)
    assert to_copy(record_ids, others, layout) == text


def test_keys_and_rows_of_different_numbers_are_refused() -> None:
    layout = Layout.of(plain.table(plain.column("id", 1), plain.column("note", 2), key=["id"]))

    with pytest.raises(ProtocolError, match="1 record ids and 2 rows"):
        to_copy(PackedBytes.of([b"\x0a\x011"]), PackedBytes.of([b"", b""]), layout)


@pytest.mark.parametrize("seed", range(40))
def test_separate_byte_strings_are_joined_and_packed(seed: int) -> None:
    chance = random.Random(seed)
    count, head = chance.choice((1, 2, FEW_ITEMS_MAX, FEW_ITEMS_MAX + 1, 300)), chance.choice((0, 1, 8, 17))
    sizes = chance.choice(((4,), (0,), (0, 0, 1, 5, 300)))
    heads, *parts = (
        [chance.randbytes(n) for n in chance.choices(choice, k=count)] for choice in ((head,), sizes, (3, 0), sizes)
    )
    matrix = np.frombuffer(b"".join(heads), dtype=np.uint8).reshape(count, head)

    found = join_items(matrix, *(PackedBytes.of(part) for part in parts))

    assert found == [b"".join(strings) for strings in zip(heads, *parts, strict=True)]
    assert are_equal(pack_items(found), PackedBytes.of(found))
    assert PackedBytes.of(found).split() == found


def test_an_empty_list_of_byte_strings_is_joined_and_packed() -> None:
    assert join_items(np.zeros((0, 8), dtype=np.uint8), PackedBytes.of([])) == []
    assert are_equal(pack_items([]), PackedBytes.of([]))
    assert PackedBytes.of([]).split() == []


@many
@given(plain.tables_with_rows())
def test_whole_rows_after_headers_have_the_same_copy_text(case: Case) -> None:
    schema, rows = case
    layout = Layout.of(schema)
    record_ids, others = pack_rows(rows, layout)
    messages = PackedBytes.of(b"\x12" * 7 + a + b for a, b in zip(record_ids.split(), others.split(), strict=True))

    assert messages_to_copy(messages, layout, head=7) == plain.copy_lines(rows)


def test_a_row_that_is_shorter_than_its_header_is_refused() -> None:
    layout = Layout.of(plain.table(plain.column("id", 1), key=["id"]))
    with pytest.raises(ProtocolError, match="row 2 is shorter than its head of 7 bytes"):
        messages_to_copy(PackedBytes.of([b"1234567\x0a\x011", b"123456"]), layout, head=7)


def test_positions_beyond_int32_are_counted_in_int64() -> None:
    assert position_type(2**27, 2**27) is np.int32
    assert position_type(2**27 + 1, 1) is np.int64
    assert position_type(1, 2**27 + 1) is np.int64
