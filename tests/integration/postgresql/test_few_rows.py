"""Few rows are read without COPY: every value must equal the one that COPY would write."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable

import pytest

from tests.integration.postgresql.conftest import Sql
from tests.support.waiting import eventually
from venus.adapters.dialects.postgresql import rows as copy_stream
from venus.adapters.dialects.postgresql.capture import capture as sources
from venus.adapters.dialects.postgresql.capture import cut, cut_statements
from venus.adapters.dialects.postgresql.capture.cut import parse_row
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.postgresql.sql import statement
from venus.cli.prove.follower import Follower

pytestmark = pytest.mark.integration

TABLES = 20
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
def connection(database: str) -> PostgresConnection:
    return PostgresConnection(database)


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_is_what_copy_writes(connection: PostgresConnection, kind: str) -> None:
    query = f"SELECT true, {VALUES[kind]}::{kind}, NULL::{kind}"
    copied = io.BytesIO()
    connection.copy_out(f"COPY ({query}) TO STDOUT", copied)

    connection.expect_types(oid for (oid,) in connection.rows(statement("cut", "types")))
    connection.run(f"PREPARE one AS {query}")

    assert copy_stream.copy_text(connection.fetch_texts("EXECUTE one")) == copied.getvalue()


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_that_is_read_with_other_tables_is_what_copy_writes(connection: PostgresConnection, kind: str) -> None:
    query = f"SELECT true, {VALUES[kind]}::{kind}, NULL::{kind}"
    copied = io.BytesIO()
    connection.copy_out(f"COPY ({query}) TO STDOUT", copied)

    connection.run(cut_statements.session_functions())
    (first, line), end = connection.rows(statement("cut", "read_together"), [[query], 1000])

    assert (first, end) == (1, (1, None))
    assert copy_stream.copy_text([parse_row(line)]) == copied.getvalue()


LIMITS: dict[str, dict[str, object]] = {
    "together": {},
    "one or two at a time": {"TOGETHER_BYTES": 1},
    "planned each time": {"PREPARED_COLUMNS_MAX": -1},
}


@pytest.mark.parametrize("limit", LIMITS)
def test_few_rows_of_many_tables_take_one_round_trip(
    limit: str, sql: Sql, capture: Callable[[], Follower], statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in LIMITS[limit].items():
        monkeypatch.setattr(cut, name, value)
    columns = ", ".join(f"c{n} {kind}" for n, kind in enumerate(VALUES))
    values = ", ".join(f"{v}::{k}" for k, v in VALUES.items())
    for n in range(TABLES):
        sql(f"CREATE TABLE item_{n} (id int PRIMARY KEY, {columns})")
    follower = capture()
    for again in range(2):
        inserts = [f"INSERT INTO item_{n} SELECT {again}, {values}" for n in range(TABLES)]
        many = f"INSERT INTO item_3 SELECT n, {values} FROM generate_series({1 + again}00, {1 + again}50) n"
        sql("; ".join(["BEGIN", *inserts, many, f"DELETE FROM item_4 WHERE id = {again}", "COMMIT"]))
        assert follower.source.capture.wait(0.001)
        statements.clear()
        assert follower.cut() is not None
        # besides the follower's own statements: the opening, the preparation, the few rows, and the end
        asked = [t for t in statements if "LOCK TABLE" in t or t.startswith(("PREPARE venus_read", "SELECT place"))]
        if limit == "one or two at a time":
            assert sum(t.startswith("SELECT place") for t in asked) >= TABLES // 2 - 1, "what is at hand has no bound"
        else:
            assert len(asked) == 3 - (again or limit == "planned each time")
    assert not [n for n in range(TABLES) if sql(f"SELECT FROM venus.l_{follower.table_id(f'item_{n}'):05}")]
    for n in range(TABLES):
        rows = follower.rows(f"item_{n}")
        assert len(rows) == {3: 104, 4: 0}.get(n, 2)
        assert len({str({**row, "id": ""}) for row in rows.values()}) == (n != 4)
    assert follower.rows("item_0")["1",] == follower.rows("item_3")["1",]


def test_a_table_that_was_emptied_is_read_with_the_others(sql: Sql, capture: Callable[[], Follower]) -> None:
    for n in range(3):
        sql(f"CREATE TABLE item_{n} (id int PRIMARY KEY); INSERT INTO item_{n} VALUES (1)")
    follower = capture()
    sql("BEGIN; INSERT INTO item_0 VALUES (2); TRUNCATE item_1; INSERT INTO item_2 VALUES (2); COMMIT")
    assert follower.source.capture.wait(0.001)
    assert follower.cut() is not None
    assert [len(follower.rows(f"item_{n}")) for n in range(3)] == [2, 0, 2]


def test_few_and_many_rows_are_captured_alike(sql: Sql, capture: Callable[[], Follower], statements: list[str]) -> None:
    columns = ", ".join(f"c{n} {kind}" for n, kind in enumerate(VALUES))
    sql(f"CREATE TABLE item (id int PRIMARY KEY, {columns})")
    follower = capture()
    statements.clear()
    insert = f"INSERT INTO item SELECT n, {', '.join(f'{v}::{k}' for k, v in VALUES.items())} FROM generate_series"
    few = cut_statements.FEW_ROWS
    for first, last in ((1, 1), (11, 10 + few), (21, 21 + few), (31, 60)):
        sql(f"{insert}({first}, {last}) n")
        follower.drain()
    sql("DELETE FROM item WHERE id IN (1, 60)")
    sql("UPDATE item SET c1 = NULL, c6 = NULL WHERE id = 31")
    follower.drain()

    assert not [t for t in statements if "venus_read" in t], "the opening reads few rows"
    assert not sql(f"SELECT FROM venus.l_{follower.table_id('item'):05}")
    rows = follower.rows("item")
    assert len(rows) == 1 + few + few + 1 + 30 - 2
    changed = rows.pop(("31",))
    assert all({**row, "id": ""} == {**rows["32",], "id": ""} for row in rows.values())
    assert {name for name, value in changed.items() if value != rows["32",][name]} == {"id", "c1", "c6"}


# -- a cut right after another one -------------------------------------------------------------------------------------


@pytest.fixture
def follow_item(sql: Sql, capture: Callable[[], Follower]) -> Follower:
    """Return a follower that has just completed a cut of `item`."""
    sql("CREATE TABLE item (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY, v text)")
    follower = capture()
    for number in (1, 2):
        sql(f"INSERT INTO item VALUES ({number})")
        assert follower.source.capture.wait(0.001)
        assert follower.cut(fill=False) is not None
    return follower


def test_the_next_cut_takes_two_round_trips(sql: Sql, follow_item: Follower, statements: list[str]) -> None:
    sql("INSERT INTO item VALUES (3)")
    statements.clear()
    assert follow_item.source.capture.wait(0.001)
    assert follow_item.cut(fill=False) is not None
    opened, committed = statements
    assert "venus_wait" in opened
    assert "EXECUTE venus_open" in opened
    assert committed.endswith("COMMIT")
    assert len(follow_item.rows("item")) == 3


def test_the_next_cut_sees_commits_during_the_wait(
    sql: Sql, follow_item: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "WAIT_S", 120.0)
    assert follow_item.source.capture.wait(0.001)
    insert = threading.Timer(0.2, sql, ["INSERT INTO item VALUES (3)"])
    insert.start()
    found = follow_item.cut(fill=False)
    insert.join()
    assert found is not None, "its snapshot is from behind the wait"
    assert len(follow_item.rows("item")) == 3


def test_the_next_cut_leaves_no_transaction_open_without_changes(sql: Sql, follow_item: Follower) -> None:
    assert follow_item.source.capture.wait(0.001)
    assert follow_item.cut(fill=False) is None
    assert sql("SELECT DISTINCT state FROM pg_stat_activity WHERE application_name LIKE 'venus capture%'") == [
        ("idle",)
    ]
    sql("ALTER TABLE item ADD COLUMN w int")
    sql("INSERT INTO item VALUES (3, 'x', 5)")
    follow_item.drain()
    assert follow_item.rows("item")["3",]["w"] == "5"


def test_the_next_cut_may_be_of_other_tables(sql: Sql, follow_item: Follower) -> None:
    sql("INSERT INTO other VALUES (1, 'x'); DELETE FROM item WHERE id = 1")
    assert follow_item.source.capture.wait(0.001)
    assert follow_item.cut(fill=False) is not None
    assert (len(follow_item.rows("item")), len(follow_item.rows("other"))) == (1, 1)
    sql("INSERT INTO item VALUES (7)")
    assert follow_item.source.capture.wait(0.001)
    assert follow_item.cut(fill=False) is not None
    assert len(follow_item.rows("item")) == 2


def test_the_next_cut_does_not_wait_for_a_locked_table_without_changes(
    sql: Sql, follow_item: Follower, database: str
) -> None:
    application = PostgresConnection(database, application="application")
    application.run("BEGIN; LOCK TABLE public.item IN ACCESS EXCLUSIVE MODE")
    sql("INSERT INTO other VALUES (1, 'x')")

    def take() -> bool:
        follow_item.source.capture.wait(0.001)
        return follow_item.cut(fill=False) is not None

    eventually(take)
    assert len(follow_item.rows("other")) == 1
    application.close()


def test_the_next_cut_leaves_out_a_table_that_was_dropped_meanwhile(sql: Sql, follow_item: Follower) -> None:
    sql("DROP TABLE item")
    sql("INSERT INTO other VALUES (1, 'x')")

    def take() -> bool:
        follow_item.source.capture.wait(0.001)
        return follow_item.cut(fill=False) is not None

    eventually(take)
    assert len(follow_item.rows("other")) == 1
