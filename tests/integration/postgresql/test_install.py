"""Installation beside a working application, with the privileges that a DBA grants."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy

from tests.integration.postgresql.conftest import Sql
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.cli.prove.follower import Follower
from venus.errors import ConfigError, DatabaseUnavailable, LockTimeout, Refused

ROLE = "venus_test_role"


@pytest.fixture
def role(sql: Sql, database: str) -> Iterator[str]:
    """Make a role without any privileges; return the URL by which it connects."""
    sql(f"DROP ROLE IF EXISTS {ROLE}")
    sql(f"CREATE ROLE {ROLE} LOGIN")
    sql("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    yield sqlalchemy.make_url(database).set(username=ROLE).render_as_string(hide_password=False)
    sql(f"DROP OWNED BY {ROLE} CASCADE")
    sql(f"DROP ROLE {ROLE}")


def test_the_missing_grants_are_named_and_are_enough(sql: Sql, role: str) -> None:
    sql('CREATE TABLE "Item" (id int PRIMARY KEY)')
    source = PostgresSource(role)
    try:
        with pytest.raises(Refused) as refused:
            source.installer.install(["*"], [])
        assert 'GRANT SELECT, TRIGGER ON "public"."Item"' in refused.value.hint
        grants = [f.remedy for f in source.installer.check(["*"], []) if f.remedy.startswith("GRANT")]
        for grant in grants:
            sql(grant)
        assert [f for f in source.installer.check(["*"], []) if f.blocks or "GRANT" in f.remedy] == []
        source.installer.install(["*"], [])
        follower = Follower(source)
        sql('INSERT INTO "Item" VALUES (1)')
        follower.drain()
        assert follower.rows("Item") == {("1",): {"id": "1"}}
        source.installer.uninstall()  # the role does not own the table
    finally:
        source.close()
    assert sql("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'venus%'") == [(0,)]


def test_row_security_that_would_hide_rows_blocks(sql: Sql, role: str) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    sql("ALTER TABLE item ENABLE ROW LEVEL SECURITY")
    sql(f"GRANT SELECT, TRIGGER ON item TO {ROLE}; GRANT USAGE ON SCHEMA public TO {ROLE}")
    source = PostgresSource(role)
    try:
        blocking = [f for f in source.installer.check(["*"], []) if f.blocks and "row security" in f.message]
        assert [f.remedy for f in blocking] == [f'ALTER ROLE "{ROLE}" BYPASSRLS;']
    finally:
        source.close()


def test_tables_that_cannot_be_captured_are_reported(sql: Sql, source: PostgresSource) -> None:
    sql("CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY)")
    sql("CREATE TABLE pointing (id int PRIMARY KEY, what regclass)")
    sql("CREATE DOMAIN lo AS oid")
    sql("CREATE DOMAIN small AS lo")
    sql("CREATE TABLE with_objects (id int PRIMARY KEY, picture lo, icon small, pictures small[])")
    sql("CREATE TEMP TABLE passing (id int)")
    findings = source.installer.check(["*", "typo*"], [])
    blocking = {f.where: f.message for f in findings if f.blocks}
    large = "cannot be carried exactly: a reference to a large object, whose bytes are not in the row"
    assert blocking == {
        "public.pointing.what": "cannot be carried exactly: regclass means something only inside its own database",
        **{f"public.with_objects.{column}": large for column in ("picture", "icon", "pictures")},
    }
    notes = {f.where: f.message for f in findings if not f.blocks}
    assert "unlogged" in notes["public.fleeting"]
    assert "no table matches" in notes["typo*"]
    assert "3 tables" in notes["tables"]
    with pytest.raises(Refused, match="regclass"):
        source.installer.install(["*"], [])


def test_a_database_that_was_never_analyzed_has_no_row_counts(sql: Sql, source: PostgresSource) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    sql("INSERT INTO item SELECT generate_series(1, 5000)")
    (size,) = [f.message for f in source.installer.check(["*"], []) if f.where == "tables"]
    assert size == "1 table; row counts are unknown before ANALYZE, but `venus assess` estimates them"
    sql("ANALYZE item")
    (size,) = [f.message for f in source.installer.check(["*"], []) if f.where == "tables"]
    assert size == "1 table, about 5,000 rows; the largest is public.item with about 5,000"


def test_sessions_that_disable_triggers_are_noticed(sql: Sql, source: PostgresSource, database: str) -> None:
    name = sqlalchemy.make_url(database).database
    sql(f"ALTER DATABASE {name} SET session_replication_role = replica")
    found = [f for f in source.installer.check(["*"], []) if "session_replication_role" in f.message]
    assert len(found) == 1
    assert "venus_always=true" in found[0].remedy


def test_a_transaction_that_wrote_before_the_installation_loses_no_row(
    sql: Sql, open_sessions: Callable[[], Sql], source: PostgresSource
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY, v text)")
    sql("INSERT INTO item VALUES (1, 'old')")
    writer = open_sessions()
    writer("BEGIN")
    writer("UPDATE item SET v = 'new' WHERE id = 1")
    writer("INSERT INTO item VALUES (2, 'new')")
    done = threading.Event()

    def install() -> None:
        source.installer.install(["*"], [])
        done.set()

    thread = threading.Thread(target=install)
    thread.start()
    sql.wait_for_a_waiter()
    assert not done.is_set()
    writer("COMMIT")
    thread.join()
    assert done.is_set()
    follower = Follower(source)
    follower.drain()
    assert {k: r["v"] for k, r in follower.rows("item").items()} == {("1",): "new", ("2",): "new"}


def test_a_transaction_that_writes_after_the_installation_loses_no_row(
    sql: Sql, open_sessions: Callable[[], Sql], source: PostgresSource
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY, v text)")
    sql("INSERT INTO item VALUES (1, 'old')")
    writer = open_sessions()
    writer("BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert writer("SELECT v FROM item") == [("old",)]  # its snapshot is older than the triggers
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    writer("UPDATE item SET v = 'new' WHERE id = 1")
    writer("INSERT INTO item VALUES (2, 'new')")
    writer("COMMIT")
    follower.drain()
    assert {k: r["v"] for k, r in follower.rows("item").items()} == {("1",): "new", ("2",): "new"}


def test_an_installation_behind_a_long_transaction_does_not_block_the_application(
    sql: Sql, open_sessions: Callable[[], Sql], database: str
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    long = open_sessions()
    long("SET application_name = 'month end'")
    long("BEGIN")
    long("INSERT INTO item VALUES (1)")
    source = PostgresSource(f"{database}&venus_install_lock_timeout_s=0.1&venus_install_attempts=2")
    try:
        began = time.monotonic()
        with pytest.raises(DatabaseUnavailable, match=r"month end.* on .*item") as refused:
            source.installer.install(["*"], [])
        assert time.monotonic() - began < 60  # two short attempts, not two waits for a lock
        assert refused.value.exit_code == 75
        assert sql("SELECT to_regnamespace('venus')") == [(None,)]
        long("COMMIT")
        source.installer.install(["*"], [])
    finally:
        source.close()


def test_a_removal_that_waits_for_a_lock_does_not_mention_an_installation(
    sql: Sql, open_sessions: Callable[[], Sql], database: str, caplog: pytest.LogCaptureFixture
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    source = PostgresSource(f"{database}&venus_install_lock_timeout_s=0.1&venus_install_attempts=2")
    long = open_sessions()
    try:
        source.installer.install(["*"], [])
        long("SET application_name = 'month end'")
        long("BEGIN")
        long("INSERT INTO item VALUES (1)")
        with pytest.raises(DatabaseUnavailable, match=r"month end.* on .*item"):
            source.installer.uninstall()
        (line,) = caplog.messages
        assert line.startswith("waiting for a lock: ")
        assert "month end" in line
        assert "install" not in line
    finally:
        long("ROLLBACK")
        source.close()


@pytest.mark.parametrize("query", ["venus_typo=1", "venus_lock_timeout_s=soon", "venus_always=1"])
def test_a_wrong_option_in_the_url_is_named(query: str) -> None:
    with pytest.raises(ConfigError, match=r"venus_|soon"):
        PostgresSource(f"postgresql://u:secret@127.0.0.1:1/x?{query}")


def test_the_password_is_never_in_a_message() -> None:
    with pytest.raises(DatabaseUnavailable) as refused:
        PostgresSource("postgresql://u:hunter2@127.0.0.1:1/x")
    assert "hunter2" not in f"{refused.value} {refused.value.hint}"


def test_the_dictionary_has_everything_that_a_target_needs(sql: Sql, source: PostgresSource) -> None:
    sql("CREATE TYPE mood AS ENUM ('a')")
    sql(
        "CREATE TABLE t (id bigserial PRIMARY KEY, n numeric(12,3) DEFAULT 1.5, s varchar(20) DEFAULT 'it''s',"
        " at timestamptz(3) DEFAULT now(), r int DEFAULT floor(random() * 3), m mood DEFAULT 'a', a int[],"
        " b boolean DEFAULT true, c char(3), u uuid DEFAULT gen_random_uuid())"
    )
    sql("COMMENT ON TABLE t IS 'the table'; COMMENT ON COLUMN t.n IS 'a number'")
    sql(
        "CREATE INDEX plain ON t (n DESC, s); CREATE INDEX part ON t (n) WHERE n > 1; CREATE INDEX expr ON t (lower(s))"
    )
    (schema,) = source.dictionary.read_tables(["t"], [])
    columns = {c.name: c for c in schema.columns}
    assert schema.comment == "the table"
    assert columns["n"].comment == "a number"
    assert {n: c.default_sql for n, c in columns.items()} == {
        "id": "",
        "n": "1.5",
        "s": "'it''s'",
        "at": "CURRENT_TIMESTAMP",
        "m": "'a'",
        "a": "",
        "b": "true",
        "r": "floor((random() * (3)::double precision))",
        "c": "",
        "u": "gen_random_uuid()",
    }
    assert columns["id"].identity
    assert [i.name for i in schema.indexes] == ["expr", "part", "plain"]
    kinds = {n: (c.type.kind.name, c.type.precision, c.type.scale, c.type.length) for n, c in columns.items()}
    assert kinds["n"] == ("DECIMAL", 12, 3, 0)
    assert kinds["s"] == ("TEXT", 0, 0, 20)
    assert kinds["at"] == ("TIMESTAMPTZ", 3, 0, 0)
    assert kinds["c"] == ("CHAR", 0, 0, 3)
    assert columns["m"].type.name == "public.mood"
    assert columns["a"].type.element is not None
    assert [c.number for c in schema.columns] == list(range(1, 11))


def test_locked_tables_of_venus_are_waited_for_and_then_named(sql: Sql, source: PostgresSource, database: str) -> None:
    source.installer.install(["*"], [])
    sql("BEGIN")
    sql("LOCK TABLE venus.venus_alembic_version IN ACCESS EXCLUSIVE MODE")
    impatient = PostgresSource(f"{database}{'&' if '?' in database else '?'}venus_lock_timeout_s=0.3")
    try:
        with pytest.raises(LockTimeout, match="lock timeout"):
            impatient.installer.plan_install(["*"], [])
    finally:
        sql("ROLLBACK")
        impatient.close()


def test_uninstall_keeps_objects_of_others_in_its_schema(sql: Sql, source: PostgresSource) -> None:
    sql("CREATE SCHEMA venus")
    sql("CREATE FUNCTION venus.total() RETURNS int LANGUAGE sql AS 'SELECT 42'")
    sql("CREATE TABLE venus.l_00077 (id int PRIMARY KEY)")
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    source.installer.install(["*"], [])
    source.installer.uninstall()
    assert sql("SELECT venus.total()") == [(42,)]
    assert sql("SELECT count(*) FROM venus.l_00077") == [(0,)]


def test_a_table_that_cannot_be_captured_is_named_with_the_obstacle(sql: Sql, source: PostgresSource) -> None:
    sql("CREATE TABLE orders (id int PRIMARY KEY)")
    source.installer.install(["*"], [])
    sql("CREATE TABLE odd (id int PRIMARY KEY, at regclass)")
    sql("CREATE SCHEMA elsewhere CREATE TABLE away (id int PRIMARY KEY)")
    sql("CREATE TEMPORARY TABLE own (id int PRIMARY KEY)")

    (odd,) = source.dictionary.find_uncaptured_tables(["*"], [])
    assert (odd.name, odd.obstacle) == (
        "public.odd",
        "column at cannot be carried exactly: regclass means something only inside its own database",
    )
    assert [t.name for t in source.dictionary.find_uncaptured_tables(["*.*"], ["odd"])] == ["elsewhere.away"]


def test_one_statement_shows_that_every_table_is_captured(
    sql: Sql, source: PostgresSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(20):
        sql(f"CREATE TABLE t{n} (id int PRIMARY KEY)")
    source.installer.install(["*"], ["t1?"])
    said: list[str] = []
    asked = PostgresConnection.rows

    def count_call(self: PostgresConnection, text: str, *parameters: Any) -> list[Any]:
        said.append(text)
        return asked(self, text, *parameters)

    monkeypatch.setattr(PostgresConnection, "rows", count_call)
    assert source.dictionary.find_uncaptured_tables(["*"], ["t1?"]) == []
    assert len([text for text in said if "pg_class" in text]) == 1
