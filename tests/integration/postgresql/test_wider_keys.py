"""A key gets a wider type: the application's statements succeed at once, and the table continues by itself."""

from __future__ import annotations

from contextlib import closing

import psycopg2
import pytest

from tests.integration.postgresql.conftest import Sql, Start
from tests.support.databases.postgres import libpq
from venus.cli.prove.follower import Follower

pytestmark = pytest.mark.integration

#: Old and new type of a key, and a value that the old type cannot hold.
WIDER = {
    "int": ("int", "bigint", "3000000000"),
    "smallint": ("smallint", "bigint", "3000000000"),
    "smallint-int": ("smallint", "int", "70000"),
    "varchar": ("varchar(3)", "varchar(30)", "much longer"),
    "varchar-text": ("varchar(3)", "text", "much longer"),
    "numeric": ("numeric(4)", "numeric(20)", "12345678901234567890"),
    "scale": ("numeric(4,2)", "numeric(9,2)", "1234567.25"),
}
#: An ordinary table has a statement trigger, a partitioned one a row trigger.
PARTITIONED = {"statement": "", "row": " PARTITION BY LIST (part)"}


def state(follower: Follower) -> tuple[str, str]:
    (table,) = [t for t in follower.source.registry.read_registered_tables() if t.schema.name == "item"]
    return table.state, table.reason


def make(sql: Sql, kind: str, style: str = "") -> None:
    sql(f"CREATE TABLE item (id {kind}, part int DEFAULT 1, v text, PRIMARY KEY (id, part)){style}")
    if style:
        sql("CREATE TABLE item_1 PARTITION OF item FOR VALUES IN (1)")
    sql("INSERT INTO item SELECT n, 1, 'old' FROM generate_series(1, 9) n")


def follow(sql: Sql, follower: Follower) -> None:
    """Read everything, and compare it with the table."""
    follower.source.capture.refresh_schemas()
    follower.read_registry()
    follower.drain()
    found = {key: row["v"] for (key, _), row in follower.rows("item").items()}
    assert found == dict(sql("SELECT id::text, v FROM item"))
    assert state(follower) == ("ACTIVE", "")
    assert sql("SELECT count(*) FROM venus.l_00002") == [(0,)]
    assert all(step.exists for step in follower.source.installer.install(["*"], []))


@pytest.mark.parametrize("style", PARTITIONED)
@pytest.mark.parametrize("change", WIDER)
def test_a_wider_key_takes_a_new_value_in_the_same_transaction(
    change: str, style: str, database: str, sql: Sql, capture: Start
) -> None:
    before, now, beyond = WIDER[change]
    make(sql, before, PARTITIONED[style])
    follower = capture()
    with closing(psycopg2.connect(libpq(database))) as session:
        cursor = session.cursor()
        # the session keeps the plans of these statements
        cursor.execute("INSERT INTO item VALUES ('10', 1, 'before')")
        cursor.execute("UPDATE item SET v = 'before' WHERE id::text LIKE '1%'")
        cursor.execute(f"ALTER TABLE item ALTER id TYPE {now}")
        cursor.execute("INSERT INTO item VALUES (%s, 1, 'new'), ('77', 1, 'new')", (beyond,))
        cursor.execute("UPDATE item SET id = '78' WHERE id::text LIKE '77%'")
        cursor.execute("UPDATE item SET v = 'changed' WHERE id::text = %s", (beyond,))
        cursor.execute("DELETE FROM item WHERE id::text LIKE '2%'")
        session.commit()
        follow(sql, follower)
        cursor.execute("DELETE FROM item WHERE id::text = %s", (beyond,))
        cursor.execute("INSERT INTO item VALUES ('79', 1, 'later')")
        session.commit()
    follow(sql, follower)


@pytest.mark.parametrize(("before", "now"), [("narrow", "bigint"), ("bigint", "numeric(20)"), ("bigint", "int")])
def test_a_key_of_another_type_with_the_same_text_is_followed(before: str, now: str, sql: Sql, capture: Start) -> None:
    sql("CREATE DOMAIN narrow AS int CHECK (VALUE < 100)")
    make(sql, before)
    follower = capture()
    sql(f"ALTER TABLE item ALTER id TYPE {now}")
    follow(sql, follower)
    sql("INSERT INTO item VALUES (101, 1, 'new')")
    sql("DELETE FROM item WHERE id = 3")
    follow(sql, follower)


def test_a_value_that_using_has_computed_replaces_the_row(sql: Sql, capture: Start) -> None:
    make(sql, "int")
    follower = capture()
    sql("ALTER TABLE item ALTER id TYPE bigint USING id + 3000000000")
    follow(sql, follower)
    assert min(str(key) for key, _ in follower.rows("item")) == "3000000001"


@pytest.mark.parametrize(
    ("before", "change", "again"),
    [
        ("varchar(3)", "id TYPE varchar(30)", False),
        ("numeric(4)", "id TYPE numeric(20)", False),
        ("varchar(3)", "id TYPE varchar(30) USING id || 'x'", True),
        ("int", "id TYPE bigint", True),  # the table was rewritten, in which USING could have changed values
    ],
)
def test_rows_are_read_again_only_where_the_table_was_rewritten(
    before: str, change: str, again: bool, sql: Sql, capture: Start
) -> None:
    make(sql, before)
    follower = capture()
    follower.source.capture.refresh_schemas()
    sql(f"ALTER TABLE item ALTER {change}")
    follower.source.capture.refresh_schemas()
    follower.read_registry()
    assert bool(follower.due()) is again
    follow(sql, follower)


#: The log and the check of the key as an older version has made them.
OLDER_LOG = "ALTER TABLE venus.l_00002 ALTER k1 TYPE integer"
OLDER_CHECK = (
    "atttypid IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype)",
    "atttypid = 'integer'::regtype",
)


def restore_older_version(sql: Sql) -> None:
    """Give a table the log and the function of an older version."""
    sql(OLDER_LOG)
    ((body,),) = sql("SELECT prosrc FROM pg_proc WHERE proname = 'f_00002'")
    assert OLDER_CHECK[0] in body
    made = "CREATE OR REPLACE FUNCTION venus.f_00002() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
    sql(f"{made} SET search_path = pg_catalog, venus AS $x${body.replace(*OLDER_CHECK)}$x$")


def test_the_log_of_an_older_version_is_widened_by_capture_itself(sql: Sql, capture: Start) -> None:
    make(sql, "int")
    follower = capture()
    restore_older_version(sql)
    sql("UPDATE item SET v = 'waits' WHERE id = 1")
    follower.source.capture.refresh_schemas()
    sql("ALTER TABLE item ALTER id TYPE bigint")
    sql("INSERT INTO item VALUES (3000000000, 1, 'new')")
    follow(sql, follower)


def test_a_log_in_use_is_widened_later_and_its_function_with_it(
    database: str, sql: Sql, capture: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(sql, "int")
    follower = capture()
    restore_older_version(sql)
    with closing(psycopg2.connect(libpq(database))) as writer:
        writer.cursor().execute("UPDATE item SET v = 'open' WHERE id = 1")
        follower.source.capture.refresh_schemas()
        assert OLDER_CHECK[1] in sql("SELECT prosrc FROM pg_proc WHERE proname = 'f_00002'")[0][0]
        writer.commit()
    sql("CREATE TABLE reason_to_look (id int PRIMARY KEY)")
    follower.source.installer.install(["*"], [])
    follow(sql, follower)


def test_a_wider_key_with_the_log_of_an_older_version_never_fails_the_application(sql: Sql, capture: Start) -> None:
    make(sql, "int")
    follower = capture()
    restore_older_version(sql)
    sql("ALTER TABLE item ALTER id TYPE bigint")
    sql("INSERT INTO item VALUES (3000000000, 1, 'new')")
    follower.source.capture.refresh_schemas()
    follower.read_registry()
    follower.drain()
    assert state(follower) == ("RESYNC", "its key was renamed, retyped or dropped, and changes were made meanwhile")
    follower.source.capture.restart_fill(follower.table_id("item"))
    follow(sql, follower)
