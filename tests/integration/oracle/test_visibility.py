"""Rows and values hidden from VENUS's user: the table is refused by name, and no hidden row becomes a deletion."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.databases.mariadb import MariaServer
from venus.adapters.dialects.oracle.source import OracleSource
from venus.cli.prove.follower import Follower
from venus.errors import Refused

pytestmark = pytest.mark.integration


@pytest.fixture
def item(application: Any, source: OracleSource) -> Follower:
    application.execute('CREATE TABLE "ITEM" ("ID" NUMBER(9) PRIMARY KEY, "V" VARCHAR2(20))')
    application.execute("""INSERT INTO "ITEM" VALUES (1, 'a'), (2, 'b'), (3, 'c')""")
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    return follower


def state(source: OracleSource) -> tuple[str, str]:
    return next((t.state, t.reason) for t in source.registry.read_registered_tables() if t.schema.name == "ITEM")


def execute_untriggered(application: Any, sql: str) -> None:
    """Execute a statement without the trigger for deletions."""
    application.execute("SHOW CREATE TRIGGER VENUS_D_00002")
    made = application.fetchall()[0][2]
    application.execute("DROP TRIGGER VENUS_D_00002")
    application.execute(sql)
    application.execute(made)


def test_a_row_that_vanished_without_a_deletion_is_not_sent_as_deleted(
    item: Follower, application: Any, source: OracleSource
) -> None:
    application.execute("""UPDATE "ITEM" SET "V" = 'x'""")
    application.execute("""INSERT INTO "ITEM" VALUES (4, 'd'), (5, 'e')""")
    execute_untriggered(application, 'DELETE FROM "ITEM" WHERE "ID" IN (2, 4)')
    item.drain()
    assert {key: row["V"] for key, row in item.rows("ITEM").items()} == {
        ("1",): "x",
        ("2",): "b",
        ("3",): "x",
        ("5",): "e",
    }
    now, reason = state(source)
    assert now == "RESYNC"
    assert "row ID=2 was changed" in reason or "row ID=4 was changed" in reason
    assert "without a logged deletion" in reason


def test_a_new_fill_of_the_table_ends_the_halt(item: Follower, application: Any, source: OracleSource) -> None:
    application.execute("""UPDATE "ITEM" SET "V" = 'x'""")
    execute_untriggered(application, 'DELETE FROM "ITEM" WHERE "ID" = 2')
    item.drain()
    source.capture.restart_fill(2)
    item.drain()
    assert set(item.rows("ITEM")) == {("1",), ("3",)}
    assert state(source) == ("ACTIVE", "")


def test_a_sweep_in_progress_is_not_disturbed_by_a_vanished_row(
    item: Follower, application: Any, source: OracleSource
) -> None:
    application.execute("""UPDATE "ITEM" SET "V" = 'x'""")
    execute_untriggered(application, 'DELETE FROM "ITEM" WHERE "ID" = 2')
    source.capture.restart_fill(2)
    item.drain()
    assert set(item.rows("ITEM")) == {("1",), ("3",)}
    assert state(source) == ("ACTIVE", "")


def test_deleted_rows_are_still_sent_as_deletions(item: Follower, application: Any, source: OracleSource) -> None:
    application.execute("""UPDATE "ITEM" SET "V" = 'x' WHERE "ID" = 1""")
    application.execute('DELETE FROM "ITEM" WHERE "ID" < 3')
    application.execute("""INSERT INTO "ITEM" VALUES (7, 'd')""")
    application.execute('DELETE FROM "ITEM" WHERE "ID" = 7')
    item.drain()
    assert set(item.rows("ITEM")) == {("3",)}
    assert state(source) == ("ACTIVE", "")


@pytest.mark.parametrize(
    ("view", "values", "grant", "said"),
    [
        ("ALL_POLICIES", "('APP', 'ITEM', 'BY_BRANCH', 'YES', 'YES')", "EXEMPT ACCESS POLICY", "policy BY_BRANCH"),
        ("REDACTION_POLICIES", "('APP', 'ITEM', 'CARDS', 'YES')", "EXEMPT REDACTION POLICY", "redaction policy CARDS"),
    ],
)
def test_a_table_under_a_policy_is_refused_until_the_user_is_exempt(
    view: str, values: str, grant: str, said: str, application: Any, source: OracleSource
) -> None:
    application.execute('CREATE TABLE "ITEM" ("ID" NUMBER(9) PRIMARY KEY)')
    application.execute(f"INSERT INTO DICTIONARY.{view} VALUES {values}")
    (found,) = [f for f in source.installer.check(["*"], []) if f.blocks]
    assert said in found.message
    assert f'GRANT {grant} TO "APP";' in found.remedy
    with pytest.raises(Refused, match=said):
        source.installer.install(["*"], [])
    application.execute(f"INSERT INTO DICTIONARY.SESSION_PRIVS VALUES ('{grant}')")
    assert [f for f in source.installer.check(["*"], []) if f.blocks] == []
    source.installer.install(["*"], [])


def test_a_policy_that_is_added_later_is_noticed_and_no_row_is_read_under_it(
    item: Follower, application: Any, source: OracleSource
) -> None:
    application.execute("INSERT INTO DICTIONARY.ALL_POLICIES VALUES ('APP', 'ITEM', 'BY_BRANCH', 'YES', 'YES')")
    execute_untriggered(application, 'DELETE FROM "ITEM" WHERE "ID" = 2')  # as the policy would hide the row
    source.capture.refresh_schemas()
    now, reason = state(source)
    assert (now, "policy BY_BRANCH" in reason) == ("RESYNC", True)
    source.capture.restart_fill(2)
    item.drain()
    assert set(item.rows("ITEM")) == {("1",), ("2",), ("3",)}
    assert state(source)[0] == "RESYNC"
    application.execute("INSERT INTO DICTIONARY.SESSION_PRIVS VALUES ('EXEMPT ACCESS POLICY')")
    source.capture.refresh_schemas()
    source.capture.restart_fill(2)
    item.drain()
    assert set(item.rows("ITEM")) == {("1",), ("3",)}
    assert state(source) == ("ACTIVE", "")


def test_a_user_that_cannot_see_redaction_policies_gets_a_note(
    application: Any, source: OracleSource, mariadb_oracle_server: MariaServer
) -> None:
    mariadb_oracle_server.execute("RENAME TABLE REDACTION_POLICIES TO NOT_GRANTED", "DICTIONARY")
    try:
        (found,) = [f for f in source.installer.check(["*"], []) if "Data Redaction" in f.message]
    finally:
        mariadb_oracle_server.execute("RENAME TABLE NOT_GRANTED TO REDACTION_POLICIES", "DICTIONARY")
    assert not found.blocks
    assert "GRANT EXEMPT REDACTION POLICY" in found.remedy
