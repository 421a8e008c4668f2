"""Changes while capture was away that leave a table's definition unchanged, such as disabled triggers."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.integration.postgresql.conftest import Sql, Start, keys, state
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.cli.prove.follower import Follower
from venus.model import Finding


def test_triggers_that_were_disabled_between_two_looks_are_noticed(sql: Sql, capture: Start) -> None:
    """As after pg_restore --disable-triggers: the definition is unchanged, but rows were inserted and not logged."""
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    follower.source.capture.refresh_schemas()
    sql(
        "BEGIN; ALTER TABLE item DISABLE TRIGGER USER; INSERT INTO item VALUES (1);"
        "ALTER TABLE item ENABLE TRIGGER USER; COMMIT"
    )
    follower.source.capture.refresh_schemas()
    found, reason = state(follower, "item")
    assert found == "RESYNC"
    assert "venus_i_00002" in reason
    assert "was off for a while" in reason

    table_id = follower.table_id("item")
    follower.source.capture.restart_fill(table_id)
    follower.source.capture.refresh_schemas()
    assert state(follower, "item")[0] == "ACTIVE", "it is reported once"
    follower.drain()
    assert keys(follower, "item") == {"1"}


def test_triggers_disabled_while_capture_was_away_are_noticed(sql: Sql, capture: Start, database: str) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    capture().source.capture.refresh_schemas()
    sql("ALTER TABLE item DISABLE TRIGGER ALL")
    sql("INSERT INTO item VALUES (1)")
    sql("ALTER TABLE item ENABLE TRIGGER ALL")
    with closing(PostgresSource(database)) as later:
        follower = Follower(later)
        later.capture.refresh_schemas()
        assert state(follower, "item")[0] == "RESYNC"


def test_an_installation_without_the_table_seen_continues_and_gets_it_at_the_next_install(
    sql: Sql, capture: Start
) -> None:
    """An older version leaves such an installation."""
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    sql("DROP TABLE venus.seen")
    off_and_on = "ALTER TABLE item DISABLE TRIGGER USER; ALTER TABLE item ENABLE TRIGGER USER"
    sql(off_and_on)
    follower.source.capture.refresh_schemas()
    assert state(follower, "item")[0] == "ACTIVE"
    assert [step.what for step in follower.source.installer.install(["*"], []) if not step.exists] == [
        "table venus.seen"
    ]
    sql("CREATE TABLE other (id int PRIMARY KEY)")
    follower.source.capture.refresh_schemas()
    assert state(follower, "item")[0] == "ACTIVE", "what was seen first says nothing"
    sql(off_and_on)
    follower.source.capture.refresh_schemas()
    assert state(follower, "item")[0] == "RESYNC"


def test_check_reports_an_installation_without_the_table_seen(sql: Sql, capture: Start) -> None:
    def list_findings() -> list[Finding]:
        return [f for f in source.installer.check(["*"], []) if f.where == "installation"]

    sql("CREATE TABLE item (id int PRIMARY KEY)")
    source = capture().source
    assert list_findings() == []
    sql("DROP TABLE venus.seen")
    (finding,) = list_findings()
    assert not finding.blocks
    assert "run `venus install-triggers`" in finding.remedy
    source.installer.install(["*"], [])
    assert list_findings() == []
    source.installer.uninstall()
    assert list_findings() == []


def test_a_repeated_installation_causes_no_new_fill(sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    follower.source.capture.refresh_schemas()
    sql("DROP TRIGGER venus_u_00002 ON item")
    follower.source.installer.install(["*"], [])
    follower.source.registry.set_table_state(follower.table_id("item"), "ACTIVE", "")
    follower.source.capture.refresh_schemas()
    assert state(follower, "item")[0] == "ACTIVE"


@pytest.mark.parametrize(
    "statement",
    [
        "VACUUM FULL item",
        "CLUSTER item USING item_pkey",
        "ALTER TABLE item ALTER v SET STATISTICS 10",
        "ALTER TABLE item ENABLE TRIGGER ALL",
    ],
)
def test_ddl_that_changes_no_value_causes_no_new_fill(statement: str, sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY, v int)")
    follower = capture()
    follower.source.capture.refresh_schemas()
    sql(statement)
    follower.source.capture.refresh_schemas()
    assert state(follower, "item")[0] == "ACTIVE"
    assert follower.due() == []


def test_values_that_alter_table_has_computed_are_read_again(sql: Sql, capture: Start) -> None:
    """The type stays, so there is no new version; no trigger fires when the table is rewritten."""
    sql("CREATE TABLE item (id int PRIMARY KEY, price numeric(10, 2))")
    sql("INSERT INTO item VALUES (1, 10), (2, 20)")
    follower = capture()
    follower.source.capture.refresh_schemas()
    sql("ALTER TABLE item ALTER price TYPE numeric(10, 2) USING price * 2")
    follower.source.capture.refresh_schemas()
    follower.drain()
    assert {k[0]: r["price"] for k, r in follower.rows("item").items()} == {"1": "20.00", "2": "40.00"}
    assert state(follower, "item")[0] == "ACTIVE"


@pytest.mark.parametrize(("how", "since"), [("STORED", 17), ("VIRTUAL", 18)])
def test_another_expression_of_a_generated_column_is_followed(how: str, since: int, sql: Sql, capture: Start) -> None:
    ((version,),) = sql("SELECT current_setting('server_version_num')::int / 10000")
    if version < since:
        pytest.skip(f"PostgreSQL {since} and later")
    sql(f"CREATE TABLE item (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) {how})")
    sql("INSERT INTO item VALUES (1), (2)")
    follower = capture()
    follower.source.capture.refresh_schemas()
    sql("ALTER TABLE item ALTER twice SET EXPRESSION AS (id * 3)")
    follower.source.capture.refresh_schemas()
    follower.read_registry()
    follower.drain()
    assert {k[0]: r["twice"] for k, r in follower.rows("item").items()} == {"1": "3", "2": "6"}
