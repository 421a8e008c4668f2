"""Values that two databases write differently are compared in the form that the target stores."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from tests.support.brokers.feed import query
from venus.adapters.cutover.certificate import TableHash
from venus.adapters.targets.postgresql.cutover.cutover_session import PostgresRowConverter, read_rows
from venus.adapters.targets.postgresql.naming import PlacedTable
from venus.adapters.targets.postgresql.session import TargetSession
from venus.codec.batch import TableChanges
from venus.codec.columns import from_columns
from venus.codec.row_bytes import Layout
from venus.model import Column, Kind, LogicalType, TableSchema

pytestmark = pytest.mark.integration

_COLUMNS = {
    "id": LogicalType(kind=Kind.INT, length=8),
    "price": LogicalType(kind=Kind.DECIMAL, precision=10, scale=2),
    "code": LogicalType(kind=Kind.CHAR, length=5),
    "at": LogicalType(kind=Kind.TIMESTAMP),
    "note": LogicalType(kind=Kind.TEXT),
}
SCHEMA = TableSchema(
    table_id=1,
    version=1,
    namespace="public",
    name="goods",
    key=("id",),
    columns=tuple(Column(name=n, number=i, type=k) for i, (n, k) in enumerate(_COLUMNS.items(), 1)),
)


def test_the_same_rows_in_other_text_forms_have_the_same_hash(database: str) -> None:
    query(database, "CREATE TABLE goods (id bigint, price numeric(10,2), code char(5), at timestamp, note text)")
    query(
        database,
        "INSERT INTO goods VALUES (1, 12.5, 'a', '2026-01-02 03:04:05.5', E'tab\\t and \\\\'), (2, NULL, '', NULL, '')",
    )
    values: list[list[str | bytes | None]] = [
        ["1", "2"],
        ["12.5", None],
        ["a", ""],
        ["2026-01-02 03:04:05.500", None],
        ["tab\t and \\", ""],
    ]
    ids, rows = from_columns(values, Layout.of(SCHEMA))
    section = TableChanges(
        table_id=1, schema_version=1, record_ids=ids, rows=rows, is_deleted=np.zeros(2, dtype=np.bool_)
    )
    placed = PlacedTable(schema=SCHEMA, namespace="public", name="goods")
    plain, converted, wanted = TableHash(), TableHash(), TableHash()
    plain.add(ids, rows)
    with closing(TargetSession(database, application="test")) as session:
        read_rows(session, placed, wanted.add)
        with PostgresRowConverter(session, placed) as converter:
            shown = converter.convert_rows(section, SCHEMA)
            converted.add(shown.record_ids, shown.rows)
        with PostgresRowConverter(session, placed):
            pass  # its temporary table is dropped at the end

    assert converted == wanted
    assert plain != wanted
