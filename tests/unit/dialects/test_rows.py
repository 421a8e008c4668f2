"""Room for a row: a message without its other parts, to the byte."""

from __future__ import annotations

from venus.adapters.dialects.rows import ROW_BYTES_MAX, find_too_large
from venus.codec.packed import PackedBytes
from venus.rpc.channel import MESSAGE_BYTES_MAX


def pack_sizes(*sizes: int) -> PackedBytes:
    return PackedBytes.of([b"x" * size for size in sizes])


def test_a_message_holds_a_row_with_the_largest_key_and_description() -> None:
    assert MESSAGE_BYTES_MAX - ROW_BYTES_MAX == 1 << 20


def test_a_row_with_its_key_may_have_exactly_that_size() -> None:
    keys = pack_sizes(10, 10, 10)

    assert find_too_large(keys, pack_sizes(5, ROW_BYTES_MAX - 10, 5)) is None
    found = find_too_large(keys, pack_sizes(5, ROW_BYTES_MAX - 9, 5))

    assert found == (1, "15.0 MiB, a row can have 15 MiB")


def test_many_rows_that_are_large_together_can_be_carried() -> None:
    assert find_too_large(pack_sizes(10, 10), pack_sizes(ROW_BYTES_MAX - 10, ROW_BYTES_MAX - 10)) is None
