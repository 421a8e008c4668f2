"""Few rows are read without COPY: every value must be what COPY would have written."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from tests.integration.postgresql.conftest import Sql
from tests.support.follower import Follower
from venus.adapters.dialects.postgresql import cutsql, stream
from venus.adapters.dialects.postgresql.connection import Connection
from venus.adapters.dialects.postgresql.statements import statement

pytestmark = pytest.mark.integration

VALUES = {
    "boolean": "true",
    "integer": "-7",
    "numeric": "'NaN'",
    "numeric(12, 4)": "1234.5",
    "double precision": "0.1::float8 + 0.2",
    "real": "'-Infinity'",
    "text": r"E'tab\tnewline\nreturn\r\b\f\v backslash\\ \\N \U0001F642'",
    "char(6)": "'ab'",
    "varchar": "''",
    '"char"': r"E'\\'",
    "bytea": r"E'\\x00ff5c'",
    "date": "'0044-03-15 BC'",
    "timestamp": "'infinity'",
    "timestamptz": "'2024-02-29 12:00:00.000001+02'",
    "time": "'24:00:00'",
    "interval": "'1 year -3 days 04:05:06.7'",
    "uuid": "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
    "json": '\'{"a": "b\\tc"}\'',
    "jsonb": "'{\"a\": [1, null]}'",
    "integer[]": "'{1,NULL,3}'",
    "text[]": r"ARRAY[E'a\tb', 'NULL', NULL, '\\']",
    "timestamptz[]": "ARRAY['2024-01-01'::timestamptz]",
    "inet": "'10.0.0.0/8'",
    "int4range": "'[1,5)'",
    "bit(3)": "'101'",
    "money": "'12.34'",
    "point": "'(1,2)'",
    "oid": "4294967295",
}


@pytest.fixture
def connection(database: str) -> Connection:
    return Connection(database)


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_is_what_copy_writes(connection: Connection, kind: str) -> None:
    query = f"SELECT true, {VALUES[kind]}::{kind}, NULL::{kind}"
    copied = io.BytesIO()
    connection.copy_out(f"COPY ({query}) TO STDOUT", copied)

    connection.expect_types(oid for (oid,) in connection.rows(statement("cut", "types")))
    connection.run(f"PREPARE one AS {query}")

    assert stream.copy_text(connection.texts("EXECUTE one")) == copied.getvalue()


def test_few_and_many_rows_are_captured_alike(
    sql: Sql, capture: Callable[[], Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    few_rows = stream.FewRows.__init__

    def noted(self: stream.FewRows, connection: Connection, text: str) -> None:
        read.append(text)
        few_rows(self, connection, text)

    columns = ", ".join(f"c{n} {kind}" for n, kind in enumerate(VALUES))
    sql(f"CREATE TABLE item (id int PRIMARY KEY, {columns})")
    follower = capture()
    monkeypatch.setattr(stream.FewRows, "__init__", noted)
    insert = f"INSERT INTO item SELECT n, {', '.join(f'{v}::{k}' for k, v in VALUES.items())} FROM generate_series"
    for first, last in ((1, 1), (2, cutsql.FEW_ROWS + 1), (10, 30)):
        sql(f"{insert}({first}, {last}) n")
        follower.drain()
    sql("DELETE FROM item WHERE id IN (1, 30)")
    sql("UPDATE item SET c1 = NULL, c6 = NULL WHERE id = 2")
    follower.drain()

    assert len(read) == 3, "the first two, and the deletions with the update"
    assert len(set(read)) == 2, "planned once for inserts, once for what has a key twice"
    rows = follower.rows("item")
    assert len(rows) == cutsql.FEW_ROWS + 1 + 21 - 2
    changed = rows.pop(("2",))
    assert all({**row, "id": ""} == {**rows["10",], "id": ""} for row in rows.values())
    assert {name for name, value in changed.items() if value != rows["10",][name]} == {"id", "c1", "c6"}
