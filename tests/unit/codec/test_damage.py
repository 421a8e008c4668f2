"""Invalid input raises an error with its position, or has exactly the result of the plain codec."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.codec import plain
from venus.codec import row_bytes
from venus.codec.columns import from_columns, keys_from_columns, to_columns
from venus.codec.copy_text import from_copy, keys_to_copy, to_copy
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.errors import ProtocolError
from venus.model import Kind, TableSchema

LAYOUT = Layout.of(
    plain.table(plain.column("id", 1), plain.column("blob", 300, Kind.BYTES), plain.column("note", 3), key=["id"])
)
PIECES = [b"\\", b"\t", b"\n", b"\\N", b"\\\\x", b"a", b"0", b"f", b"\\n", b"\xc3", b"\xff", b"\0", b"t\t1\t"]


@pytest.fixture(params=["few rows", "batches"], scope="module", autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test with both ways of the codec: value by value, which is used for few rows, and batch by batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_bytes, "FEW_VALUES_MAX", 1_000_000 if request.param == "few rows" else 0)
        yield


@st.composite
def damages(draw: st.DrawFn, data: bytes) -> bytes:
    """Truncate, overwrite or insert, one to three times."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.integers(0, 3)))
        data = data[:start] + draw(st.sampled_from(PIECES) | st.binary(max_size=3)) + data[stop:]
    return data


@settings(deadline=None, max_examples=100)
@given(plain.tables_with_rows(), st.data())
def test_damaged_copy_text_is_refused_or_read_as_the_plain_codec_reads_it(
    case: tuple[TableSchema, list[plain.Row]], data: st.DataObject
) -> None:
    schema, rows = case
    layout = Layout.of(schema)
    text = data.draw(damages(plain.copy_lines([r for r in rows if sum(map(len, filter(None, r))) < 500])))
    k = layout.key_count
    try:
        expected = plain.parse_lines(text, layout.binary)
        if any(None in row[:k] for row in expected):
            raise plain.MalformedText
    except plain.MalformedText:
        with pytest.raises(ProtocolError, match=r"shop\.orders version 1"):
            from_copy(text, layout, flagged=False)
        return

    record_ids, others, _ = from_copy(text, layout, flagged=False)

    assert record_ids.split() == [plain.encode_row(row[:k], layout.numbers[:k]) for row in expected]
    assert others.split() == [plain.encode_row(row[k:], layout.numbers[k:]) for row in expected]


@settings(deadline=None, max_examples=100)
@given(plain.tables_with_rows(), st.data())
def test_damaged_rows_are_refused_or_read_as_the_plain_codec_reads_them(
    case: tuple[TableSchema, list[plain.Row]], data: st.DataObject
) -> None:
    schema, rows = case
    layout = Layout.of(schema)
    k = layout.key_count
    keys = [plain.encode_row(row[:k], layout.numbers[:k]) for row in rows]
    others = [plain.encode_row(row[k:], layout.numbers[k:]) for row in rows]
    if rows:
        at = data.draw(st.integers(0, len(rows) - 1))
        chosen = data.draw(st.sampled_from([keys, others]))
        chosen[at] = data.draw(damages(chosen[at]))
    try:
        expected = [
            plain.decode_row(key, layout.numbers[:k], layout.binary[:k])
            + plain.decode_row(other, layout.numbers[k:], layout.binary[k:])
            for key, other in zip(keys, others, strict=True)
        ]
        if any(None in row[:k] for row in expected):
            raise plain.MalformedText
    except plain.MalformedText:
        with pytest.raises(ProtocolError, match=r"shop\.orders version 1"):
            to_copy(PackedBytes.of(keys), PackedBytes.of(others), layout)
        with pytest.raises(ProtocolError, match=r"shop\.orders version 1"):
            to_columns(PackedBytes.of(keys), PackedBytes.of(others), layout)
        return

    assert to_copy(PackedBytes.of(keys), PackedBytes.of(others), layout) == plain.copy_lines(expected)
    columns = to_columns(PackedBytes.of(keys), PackedBytes.of(others), layout)
    assert [list(r) for r in zip(*columns, strict=True)] == expected


@settings(deadline=None, max_examples=75)
@given(st.binary(max_size=40), st.lists(st.integers(0, 12), max_size=5))
def test_any_bytes_and_any_sizes_are_refused_without_a_crash(data: bytes, sizes: list[int]) -> None:
    noise = PackedBytes(data, np.array(sizes, dtype=np.uint32))
    try:
        to_copy(noise, noise, LAYOUT)
    except ProtocolError as e:
        assert "shop.orders" in str(e)  # noqa: PT017


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"f\t1\t\\N\ta\nf\t2\t\\N\n", "line 2 of the COPY text has 3 fields, not 4"),
        (b"f\t1\t\\N\ta\tb\n", "line 1 of the COPY text has 5 fields, not 4"),
        (b"f\t1\t\\N\ta\n\nf\t2\t\\N\ta\n", "line 2 of the COPY text has 1 fields, not 4"),
        (b"f\t1\t\\N\ta\nf\t2\t\\N\ta", "ends within line 2"),
        (b"f\t1\t\\N\ta\nf\t2\t\\N\ta\\\n", "line 2 has an escape that COPY does not write"),
        (b"f\t1\t\\N\ta\nf\t2\t\\N\t\\101\n", "line 2 has an escape that COPY does not write"),
        (b"f\t1\t\\N\ta\nf\t2\t\\N\t\\Nx\n", "line 2 has an escape that COPY does not write"),
        (b"f\t1\t\\N\ta\nx\t2\t\\N\ta\n", "line 2 does not begin with t or f"),
        (b"f\t1\t\\N\ta\n\t2\t\\N\ta\n", "line 2 does not begin with t or f"),
        (b"f\t1\t\\N\ta\ntf\t2\t\\N\ta\n", "line 2 does not begin with t or f"),
        (b"f\t1\t\\N\ta\nf\t2\t\\N\t\xff\n", "line 2 is not UTF-8"),
        (b"f\t1\t\\N\ta\nf\t2\t616\ta\n", r"line 2 has a binary value that is not \\x hex"),
        (b"f\t1\t\\N\ta\nf\t2\t\\\\x616\ta\n", r"line 2 has a binary value that is not \\x hex"),
        (b"f\t1\t\\N\ta\nf\t2\t\\\\x6g\ta\n", r"line 2 has a binary value that is not \\x hex"),
        (b"f\t1\t\\N\ta\nf\t2\t\ta\n", r"line 2 has a binary value that is not \\x hex"),
        (b"f\t1\t\\N\ta\nf\t\\N\t\\N\ta\n", "key column id is NULL in row 2"),
        (b"f\t1\t\\N\ta\nt\t2\t\\N\ta\n", "row 2 is deleted and has values"),
    ],
)
def test_the_error_names_the_line(text: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        from_copy(text, LAYOUT, flagged=True)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"\x1a\x02a", "row 2 ends within a value"),
        (b"\x1a", "row 2 ends within a value"),
        (b"\x1a\x80", "row 2 ends within a value"),
        (b"\x1a\xff\xff\xff\xff\x7f", "row 2 ends within a value"),
        (b"\x1a\x80\x80\x80\x80\x80\x01", "row 2 ends within a value"),
        (b"\x1a\x01a\x22\x01b", "row 2 has bytes that are not a field of this schema version"),
        (b"\x18\x01", "row 2 has bytes that are not a field of this schema version"),
        (b"\x1a\x01a\xe2\x12\x01b", "row 2 has bytes that are not a field of this schema version"),
        (b"\x1a\x01a\x1a\x01a", "row 2 has bytes that are not a field of this schema version"),
        (b"\x1a\x01\xff", "not UTF-8"),
    ],
)
def test_the_error_names_the_row(row: bytes, message: str) -> None:
    keys, rows = PackedBytes.of([b"\x0a\x011", b"\x0a\x012"]), PackedBytes.of([b"\x1a\x01a", row])

    with pytest.raises(ProtocolError, match=message):
        to_copy(keys, rows, LAYOUT)
    with pytest.raises(ProtocolError, match=message):
        to_columns(keys, rows, LAYOUT)


def test_rows_with_a_shifted_boundary_are_refused() -> None:
    keys = PackedBytes.of([plain.encode_row([str(n)], [1]) for n in range(2)])
    data = plain.encode_row(["n"], [3]) + plain.encode_row(["abc"], [3])
    assert to_columns(keys, PackedBytes(data, np.array([3, 5], dtype=np.uint32)), LAYOUT)[2] == ["n", "abc"]

    with pytest.raises(ProtocolError, match=r"shop\.orders version 1: row 1"):  # all bytes together are right
        to_columns(keys, PackedBytes(data, np.array([6, 2], dtype=np.uint32)), LAYOUT)


def test_a_record_id_without_its_key_is_refused() -> None:
    with pytest.raises(ProtocolError, match="key column id is NULL in row 2"):
        keys_to_copy(PackedBytes.of([b"\x0a\x011", b""]), LAYOUT)


def test_sizes_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ProtocolError, match="add up to 2 bytes, not 3"):
        keys_to_copy(PackedBytes(b"\x0a\x011", np.array([2], dtype=np.uint32)), LAYOUT)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([["1"], [None]], "2 columns, not 3"),
        ([["1"], [None], ["a", "b"]], "columns of different lengths"),
        ([["1", "2"], [b"", "a"], ["a", "b"]], "column blob has str in row 2, not bytes"),
        ([["1", "2"], [b"", None], ["a", b"b"]], "column note has bytes in row 2, not str"),
        ([["1", "2"], [b"", None], ["a", 7]], "column note has int in row 2, not str"),
        ([["1", None], [b"", None], ["a", "b"]], "key column id is NULL in row 2"),
        ([["1"], [b""], ["\ud800"]], "column note has text in row 1 that is not valid Unicode"),
    ],
)
def test_columns_of_different_lengths_are_refused(columns: list[list[plain.Value]], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        from_columns(columns, LAYOUT)


def test_a_null_key_is_refused() -> None:
    with pytest.raises(ProtocolError, match="key column id is NULL in row 1"):
        keys_from_columns([[None]], LAYOUT)
