"""Joins with staged rows take time in proportion to the rows, whatever statistics the server has of the table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed, deletion, following, items, query, wait_until_caught_up
from tests.support.pipelines.applying import check_equal, load_target
from venus.adapters.targets.postgresql.database import PostgresDatabase
from venus.adapters.targets.postgresql.rowsql import RowSql
from venus.adapters.targets.postgresql.session import TargetSession

pytestmark = pytest.mark.integration

ROWS = 60_000
#: Some hundred times what it takes; row by row it is far more.
BOUND = "SET LOCAL statement_timeout = '60s'"


@pytest.fixture
def session_and_sql(database: str, broker: FakeDelivery, feed: Feed) -> Iterator[tuple[TargetSession, RowSql]]:
    """Return a session like the apply loop's, and the statements of a table analysed while it was being filled."""
    settings = load_target(database, feed, items(), rows=1)
    query(database, f"INSERT INTO shop.items (id, label, amount) SELECT g, 'x', g FROM generate_series(2, {ROWS}) g")
    query(database, "ANALYZE shop.items; UPDATE pg_class SET reltuples = 0 WHERE oid = 'shop.items'::regclass")
    target = PostgresDatabase(settings, "a")
    session = target.connect()
    session.run("SET enable_hashjoin = off; SET enable_mergejoin = off; BEGIN")
    yield session, RowSql(target.place(items()), target.group)
    session.rollback()
    session.close()


def stage_rows(session: TargetSession, sql: RowSql, stage: str, columns: str) -> None:
    """Fill a staging table with a copy of every row."""
    session.run(f"{sql.create_stages}; INSERT INTO {stage} SELECT {columns} FROM shop.items; {BOUND}")


def has_usual_plans(session: TargetSession) -> bool:
    """Return whether later statements are planned as before."""
    found = session.row("SELECT current_setting('enable_nestloop'), current_setting('enable_hashjoin')")
    return found == ("on", "off")


def test_many_keys_are_deleted_from_a_table_that_was_analysed_while_its_rows_came(
    session_and_sql: tuple[TargetSession, RowSql],
) -> None:
    session, sql = session_and_sql
    stage_rows(session, sql, sql.key_stage, sql.key)

    session.run(sql.text("delete_staged", stage=sql.key_stage, staged="0"))

    assert session.row("SELECT count(*) FROM shop.items") == (0,)
    assert has_usual_plans(session)


def test_repeated_keys_are_dropped_from_a_large_stage(session_and_sql: tuple[TargetSession, RowSql]) -> None:
    session, sql = session_and_sql
    stage_rows(session, sql, sql.stage, sql.columns)
    session.run(f"INSERT INTO {sql.stage} SELECT {sql.columns} FROM shop.items LIMIT 10")

    session.run(sql.text("drop_repeated"))

    assert session.row(f"SELECT count(*) FROM {sql.stage}") == (ROWS,)
    assert has_usual_plans(session)


def test_a_few_keys_of_a_large_table_are_looked_up(session_and_sql: tuple[TargetSession, RowSql]) -> None:
    """A hash join reads the whole table, so it must not be used if the statistics show a large one."""
    session, sql = session_and_sql
    session.rollback()
    session.run("ANALYZE shop.items; BEGIN")
    session.run(f"{sql.create_stages}; INSERT INTO {sql.key_stage} SELECT id FROM shop.items WHERE id <= 200")
    choice, deletion, _ = sql.text("delete_staged", stage=sql.key_stage, staged="0").split(";\n")

    plan = " ".join(line for (line,) in session.rows(f"{choice}; EXPLAIN {deletion}"))

    assert "Index Scan using items_pkey" in plan, plan
    assert "Hash" not in plan


def test_many_keys_of_a_large_table_are_joined_in_one_pass(session_and_sql: tuple[TargetSession, RowSql]) -> None:
    session, sql = session_and_sql
    session.rollback()
    session.run("ANALYZE shop.items; BEGIN")
    session.run(f"{sql.create_stages}; INSERT INTO {sql.key_stage} SELECT id FROM shop.items WHERE id % 3 = 0")
    text = sql.text("delete_staged", stage=sql.key_stage, staged=str(ROWS // 3))
    choice, deletion, _ = text.split(";\n")

    plan = " ".join(line for (line,) in session.rows(f"{choice}; EXPLAIN {deletion}"))

    assert "Hash Join" in plan, plan
    session.run(text)
    assert session.row("SELECT count(*), min(id % 3) FROM shop.items") == (ROWS - ROWS // 3, 1)
    assert has_usual_plans(session)


def test_a_large_cut_of_deletions_is_applied_to_such_a_table(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = load_target(database, feed, items(), rows=3_000)
    query(database, "ANALYZE shop.items; UPDATE pg_class SET reltuples = 0 WHERE oid = 'shop.items'::regclass")

    with following(settings, "a"):
        feed.cut(*(deletion(n) for n in range(1, 2_000)))
        wait_until_caught_up(database, broker)

    check_equal(database, feed)
