"""Which columns form the record_id, in which order, and which schemas are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.codec import plain
from venus.codec.row_bytes import Layout
from venus.errors import ProtocolError
from venus.model import Column, Kind

A, B, C = plain.column("a", 1), plain.column("b", 16, Kind.BYTES), plain.column("c", 2047)


def test_key_columns_come_first_and_in_key_order() -> None:
    layout = Layout.of(plain.table(A, B, C, key=["c", "a"]))

    assert [column.name for column in layout.columns] == ["c", "a", "b"]
    assert layout.key_count == 2
    assert layout.numbers == (2047, 1, 16)
    assert layout.binary == (False, False, True)
    assert layout.tags == (b"\xfa\x7f", b"\x0a", b"\x82\x01")


def test_a_layout_is_built_once_per_version() -> None:
    schema = plain.table(A, B, key=["a"], table_id=71)

    assert Layout.of(schema) is Layout.of(replace(schema))
    assert Layout.of(schema) is not Layout.of(replace(schema, version=2))


def test_the_same_ids_in_another_business_have_another_layout() -> None:
    ours = plain.table(A, B, key=["a"], table_id=72)
    theirs = plain.table(A, C, key=["c"], table_id=72)

    assert Layout.of(ours).numbers == (1, 16)
    assert Layout.of(theirs).numbers == (2047, 1)
    assert Layout.of(ours).numbers == (1, 16)


@pytest.mark.parametrize(
    ("columns", "key", "message"),
    [
        ([A, replace(C, name="a")], ["a"], "same name"),
        ([A, replace(C, number=1)], ["a"], "same field number"),
        ([A, replace(C, number=0)], ["a"], "0 is not a valid field number"),
        ([A, replace(C, number=19_000)], ["a"], "19000 is not a valid field number"),
        ([A, replace(C, number=2**29)], ["a"], "536870912 is not a valid field number"),
        ([A, C], [], "no key"),
        ([A, C], ["x"], "names a column twice or a missing column"),
        ([A, C], ["a", "a"], "names a column twice or a missing column"),
    ],
)
def test_a_schema_whose_rows_could_not_be_distinguished_is_refused(
    columns: list[Column], key: list[str], message: str
) -> None:
    with pytest.raises(ProtocolError, match=message):
        Layout.of(plain.table(*columns, key=key, table_id=73))
