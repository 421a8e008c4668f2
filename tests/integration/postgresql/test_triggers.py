"""What PostgreSQL's triggers see and do not see: each case has once lost rows in some product."""

from __future__ import annotations

import psycopg2
import pytest

from tests.integration.postgresql.conftest import Sql, Start, keys, state
from tests.support.databases.postgres import Server
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.cli.prove.follower import Follower

# -- partitions and inheritance ------------------------------------------------------------------------------------


# -- keys that are equal but not identical -----------------------------------------------------------------------------


#: A type like citext, with citext's trap: without app in the search_path, = silently compares as text.
CASE_INSENSITIVE = """
CREATE SCHEMA app;
CREATE TYPE app.ci;
CREATE FUNCTION app.ci_in(cstring) RETURNS app.ci LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION app.ci_out(app.ci) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE TYPE app.ci (INPUT = app.ci_in, OUTPUT = app.ci_out, LIKE = text, COLLATABLE = true);
CREATE CAST (app.ci AS text) WITHOUT FUNCTION AS IMPLICIT;
CREATE FUNCTION app.cmp(app.ci, app.ci) RETURNS int LANGUAGE sql IMMUTABLE
    AS 'SELECT bttextcmp(lower($1::text COLLATE "C"), lower($2::text COLLATE "C"))';
CREATE FUNCTION app.lt(app.ci, app.ci) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT app.cmp($1, $2) < 0';
CREATE FUNCTION app.le(app.ci, app.ci) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT app.cmp($1, $2) <= 0';
CREATE FUNCTION app.eq(app.ci, app.ci) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT app.cmp($1, $2) = 0';
CREATE FUNCTION app.ge(app.ci, app.ci) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT app.cmp($1, $2) >= 0';
CREATE FUNCTION app.gt(app.ci, app.ci) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT app.cmp($1, $2) > 0';
CREATE OPERATOR app.< (LEFTARG = app.ci, RIGHTARG = app.ci, FUNCTION = app.lt);
CREATE OPERATOR app.<= (LEFTARG = app.ci, RIGHTARG = app.ci, FUNCTION = app.le);
CREATE OPERATOR app.= (LEFTARG = app.ci, RIGHTARG = app.ci, FUNCTION = app.eq);
CREATE OPERATOR app.>= (LEFTARG = app.ci, RIGHTARG = app.ci, FUNCTION = app.ge);
CREATE OPERATOR app.> (LEFTARG = app.ci, RIGHTARG = app.ci, FUNCTION = app.gt);
CREATE OPERATOR CLASS app.ci_ops DEFAULT FOR TYPE app.ci USING btree AS OPERATOR 1 app.<, OPERATOR 2 app.<=,
    OPERATOR 3 app.=, OPERATOR 4 app.>=, OPERATOR 5 app.>, FUNCTION 1 app.cmp(app.ci, app.ci);
"""


@pytest.mark.parametrize(
    ("key_type", "before", "after"),
    [
        ("numeric", "1.0", "1.00"),
        ("interval", "'24:00:00'", "'1 day'"),
        ("double precision", "'0'", "'-0'"),
        ("app.ci", "'ab'", "'AB'"),
        ("bpchar", "'a'", "'a  '"),
        ("jsonb", "'1.0'", "'1.00'"),
    ],
)
def test_a_key_rewritten_as_an_equal_one_leaves_no_old_row(
    key_type: str, before: str, after: str, sql: Sql, capture: Start
) -> None:
    sql(CASE_INSENSITIVE)
    sql(f"CREATE TABLE odd (k {key_type} PRIMARY KEY, v int)")
    sql(f"INSERT INTO odd VALUES ({before}, 1)")
    follower = capture()
    assert len(keys(follower, "odd")) == 1
    assert len(follower.drain(fill_rows=1)) == 0
    sql(f"UPDATE odd SET k = {after}")
    follower.drain()
    first = keys(follower, "odd")
    assert len(first) == 1
    sql("DELETE FROM odd")
    sql(f"INSERT INTO odd VALUES ({before}, 2)")
    follower.drain()
    assert len(keys(follower, "odd")) == 1
    assert keys(follower, "odd") != first
    sql("BEGIN")
    sql(f"UPDATE odd SET k = {after}")
    sql(f"UPDATE odd SET k = {before}, v = 3")
    sql("COMMIT")
    follower.drain()
    assert [r["v"] for r in follower.rows("odd").values()] == ["3"]
    sql("DELETE FROM odd")
    follower.drain()
    assert follower.rows("odd") == {}


def test_a_session_that_changed_one_row_may_then_change_very_many(sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE many (id int PRIMARY KEY, v int)")
    sql("INSERT INTO many SELECT i, 0 FROM generate_series(1, 80000) i")
    capture()
    # plans are kept for the session: ones made for a single row took minutes for these
    sql("SET statement_timeout = '60s'")
    for number in range(1, 8):
        sql(f"UPDATE many SET v = v + 1 WHERE id = {number}")
    sql("UPDATE many SET v = v + 1")
    sql("UPDATE many SET id = id + 100000")
    sql("DELETE FROM many")
    sql("RESET statement_timeout")


def test_a_fill_follows_the_order_of_the_key(sql: Sql, source: PostgresSource) -> None:
    sql(CASE_INSENSITIVE)
    sql("CREATE TABLE odd (k app.ci, n int, PRIMARY KEY (k, n))")
    sql("INSERT INTO odd VALUES ('b', 1), ('A', 1), ('C', 1), ('a', 2), ('B', 2), ('c', 2), ('_', 1)")
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain(fill_rows=1)
    assert len(follower.rows("odd")) == 7


def test_the_applications_output_settings_do_not_matter(sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE f (k double precision PRIMARY KEY, t timestamptz, i interval, b bytea)")
    follower = capture()
    sql("SET extra_float_digits = -10; SET datestyle = 'German'; SET intervalstyle = 'iso_8601'")
    sql("SET timezone = 'Asia/Tokyo'; SET bytea_output = 'escape'; SET search_path = pg_temp")
    sql("INSERT INTO public.f VALUES (0.1, '2026-01-01 09:00', '1 day', '\\x00')")
    sql("UPDATE public.f SET k = 0.10000000000000002")
    follower.drain()
    assert follower.rows("f") == {
        ("0.10000000000000002",): {
            "k": "0.10000000000000002",
            "t": "2026-01-01 00:00:00+00",
            "i": "1 day",
            "b": b"\x00",
        }
    }


def test_a_key_of_a_domain_that_forbids_null_can_be_truncated(sql: Sql, capture: Start) -> None:
    sql("CREATE DOMAIN code AS text NOT NULL CHECK (VALUE <> '')")
    sql("CREATE TABLE d (k code PRIMARY KEY)")
    follower = capture()
    sql("INSERT INTO d VALUES ('a')")
    sql("TRUNCATE d")
    sql("INSERT INTO d VALUES ('b')")
    follower.drain()
    assert keys(follower, "d") == {"b"}


def test_a_deferrable_key_may_be_duplicate_for_a_moment(sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE d (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text)")
    sql("INSERT INTO d VALUES (1, 'a'), (2, 'b')")
    follower = capture()
    sql("BEGIN; UPDATE d SET id = 2 WHERE v = 'a'; UPDATE d SET id = 1 WHERE v = 'b'; COMMIT")
    follower.drain()
    assert {k: r["v"] for k, r in follower.rows("d").items()} == {("1",): "b", ("2",): "a"}


def test_generated_and_identity_columns_are_carried_as_values(sql: Sql, capture: Start) -> None:
    sql(
        "CREATE TABLE g (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int,"
        " b int GENERATED ALWAYS AS (a * 2) STORED)"
    )
    follower = capture()
    sql("INSERT INTO g (a) VALUES (4)")
    follower.drain()
    assert follower.rows("g") == {("1",): {"id": "1", "a": "4", "b": "8"}}
    (schema,) = [s for s in follower.schemas.values() if s.name == "g"]
    assert [(c.identity, c.default_sql) for c in schema.columns] == [(True, ""), (False, ""), (False, "")]


# -- sessions that write -----------------------------------------------------------------------------------------------


def test_an_application_without_any_right_on_venus_is_captured(sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    sql("DROP ROLE IF EXISTS clerk")
    sql("CREATE ROLE clerk")
    sql("GRANT INSERT, SELECT, DELETE ON item TO clerk")
    follower = capture()
    try:
        sql("SET ROLE clerk")
        sql("INSERT INTO item VALUES (1)")
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            sql("SELECT * FROM venus.l_00002")
    finally:
        sql("RESET ROLE")
        sql("DROP OWNED BY clerk")
        sql("DROP ROLE clerk")
    follower.drain()
    assert keys(follower, "item") == {"1"}


def test_only_changes_by_the_followers_session_are_not_captured(sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    sql("BEGIN; SET LOCAL venus.follows = 'on'; INSERT INTO item VALUES (1); TRUNCATE item; COMMIT")
    assert follower.cut() is None
    sql("BEGIN; SET LOCAL venus.apply = 'on'; INSERT INTO item VALUES (2); COMMIT")  # as targets of release 0.1.0 did
    follower.drain()
    assert keys(follower, "item") == {"2"}


def test_replicated_writes_are_captured_if_the_triggers_are_always_enabled(sql: Sql, database: str) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    source = PostgresSource(f"{database}&venus_always=true")
    source.installer.install(["*"], [])
    assert all(step.exists for step in source.installer.install(["*"], []))
    follower = Follower(source)
    follower.drain()
    sql("SET session_replication_role = replica")
    sql("INSERT INTO item VALUES (1)")
    follower.drain()
    assert keys(follower, "item") == {"1"}
    source.close()


def test_changes_of_a_prepared_transaction_arrive_when_it_commits(
    sql: Sql, capture: Start, postgres_server: Server
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    sql("BEGIN")
    sql("INSERT INTO item VALUES (1)")
    sql("PREPARE TRANSACTION 'two phases'")
    sql("INSERT INTO item VALUES (2)")
    follower.drain()
    assert keys(follower, "item") == {"2"}
    sql("COMMIT PREPARED 'two phases'")
    follower.drain()
    assert keys(follower, "item") == {"1", "2"}


# -- fail open -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE item RENAME COLUMN id TO number",
        "ALTER TABLE item DROP COLUMN id CASCADE",
        "ALTER TABLE item ALTER COLUMN id TYPE text USING 'n' || id",
        "ALTER TABLE item RENAME TO thing",
    ],
)
def test_the_application_continues_whatever_happens_to_the_key(
    ddl: str, partitioned: bool, sql: Sql, capture: Start
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY, v text)" + (" PARTITION BY HASH (id)" if partitioned else ""))
    if partitioned:
        if "DROP" in ddl or "TYPE" in ddl:
            return  # PostgreSQL itself refuses that for a partition key
        sql("CREATE TABLE item_0 PARTITION OF item FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    sql("CREATE TABLE other (id int PRIMARY KEY)")
    sql("INSERT INTO item VALUES (1, 'a')")
    follower = capture()
    sql(ddl)
    name = "thing" if "thing" in ddl else "item"
    sql(f"UPDATE {name} SET v = 'b'")
    sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE false")
    sql(f"DELETE FROM {name} WHERE v = 'c'")
    sql("INSERT INTO other VALUES (1)")
    follower.drain()
    assert keys(follower, "other") == {"1"}
    follower.source.capture.refresh_schemas()
    (table,) = [t for t in follower.source.registry.read_registered_tables() if t.schema.name == "item"]
    assert table.state == "RESYNC"
    assert table.reason
    sql(f"UPDATE {name} SET v = 'd'")
    assert follower.cut() is None


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("ADD at regclass", "column at cannot be carried: regclass means something only inside its own database"),
        ("ADD at lo[]", "column at cannot be carried: a reference to a large object, whose bytes are not in the row"),
        ("DROP CONSTRAINT item_pkey", "its key is gone: give it one, run `venus install-triggers`"),
        ("DROP CONSTRAINT item_pkey, ADD PRIMARY KEY (code)", "its key was (id) and is (code): run"),
        ("ALTER id TYPE text USING 'n' || id", "key column id was recreated as text: run"),
        ("RENAME TO thing", "the table is gone: dropped or renamed"),
    ],
)
def test_a_table_that_can_be_captured_again_has_no_reason(ddl: str, reason: str, sql: Sql, capture: Start) -> None:
    sql("CREATE DOMAIN lo AS oid")
    sql("CREATE TABLE item (id int PRIMARY KEY, code text NOT NULL)")
    follower = capture()
    sql(f"ALTER TABLE item {ddl}")
    for _ in range(2):
        follower.source.capture.refresh_schemas()
        found, why = state(follower, "item")
        assert (found, why[: len(reason)]) == ("RESYNC", reason)


@pytest.mark.parametrize("heir", [False, True], ids=["partitioned", "heir"])
@pytest.mark.parametrize(
    ("ddl", "name"),
    [
        ("ALTER TABLE item RENAME COLUMN id TO number", "item"),
        ("ALTER TABLE item ALTER COLUMN id TYPE text USING 'n' || id", "item"),
        ("ALTER TABLE item RENAME COLUMN id TO number; ALTER TABLE item RENAME TO thing", "thing"),
    ],
)
def test_a_transaction_that_alters_the_key_of_rows_that_it_writes_continues(
    ddl: str, name: str, heir: bool, sql: Sql, capture: Start
) -> None:
    sql(
        "CREATE TABLE item (id int, at int, v text, PRIMARY KEY (id, at))" + ("" if heir else " PARTITION BY HASH (at)")
    )
    if heir:
        sql("CREATE TABLE below (more int) INHERITS (item)")
        sql("ALTER TABLE below ADD PRIMARY KEY (id, at)")
    else:
        sql("CREATE TABLE item_0 PARTITION OF item FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    follower = capture()
    sql("BEGIN")
    sql("INSERT INTO item VALUES (1, 1, 'a')")
    sql(ddl)
    sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE false")
    sql(f"UPDATE {name} SET v = 'b'")
    sql(f"DELETE FROM {name} WHERE v = 'b'")
    sql("COMMIT")
    follower.source.capture.refresh_schemas()
    assert state(follower, "item")[0] == "RESYNC"


#: The function of a partitioned table as an older version (before 2026-11-25) installed it.
OLDER = """
BEGIN
  IF current_setting('venus.apply', true) = 'on' THEN RETURN NULL; END IF;
  IF TG_OP = 'TRUNCATE' THEN
    IF TG_WHEN = 'BEFORE' THEN
      INSERT INTO venus.l_00002 (op) VALUES ('T');
      {dirty}
      PERFORM set_config('venus.t00002', 'on', true);
    ELSE
      PERFORM set_config('venus.t00002', 'off', true);
    END IF;
    RETURN NULL;
  END IF;
  IF current_setting('venus.c00002', true) IS DISTINCT FROM TG_RELID::text THEN
    {dirty}
    IF {changed} THEN INSERT INTO venus.l_00002 (op) VALUES ('X'); RETURN NULL; END IF;
    PERFORM set_config('venus.c00002', TG_RELID::text, true);
  END IF;
  IF TG_OP = 'INSERT' THEN
    INSERT INTO venus.l_00002 (op, k1) VALUES ('I', NEW."id");
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO venus.l_00002 (op, k1) VALUES ('D', OLD."id");
  ELSE
    IF NOT (NEW."id" OPERATOR(pg_catalog.=) OLD."id") THEN INSERT INTO venus.l_00002 (op, k1) VALUES ('D', OLD."id"); END IF;
    INSERT INTO venus.l_00002 (op, k1) VALUES ('U', NEW."id");
  END IF;
  RETURN NULL;
END """.format(  # noqa: E501
    dirty="IF current_setting('venus.d00002', true) IS DISTINCT FROM 'on'"
    " AND set_config('venus.d00002', 'on', true) = 'on' THEN\n"
    "    INSERT INTO venus.dirty (table_id) VALUES (2);\n  END IF;",
    changed="NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = TG_RELID AND attname = 'id'"
    " AND atttypid = 'integer'::regtype)",
)


@pytest.mark.parametrize("installed", [False, True], ids=["captured", "installed-again"])
def test_a_function_of_an_older_version_has_missed_nothing(installed: bool, sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY, v text) PARTITION BY HASH (id)")
    sql("CREATE TABLE item_0 PARTITION OF item FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    follower = capture()
    made = "CREATE OR REPLACE FUNCTION venus.f_00002() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
    body = "SELECT prosrc FROM pg_proc WHERE proname = 'f_00002'"
    ((newest,),) = sql(body)
    assert newest != OLDER
    sql(f"{made} SET search_path = pg_catalog, venus AS $x${OLDER}$x$")
    if installed:
        steps = [step.what for step in follower.source.installer.install(["*"], []) if not step.exists]
        assert steps == ["newer function venus.f_00002"]
    follower.source.capture.refresh_schemas()
    assert state(follower, "item") == ("ACTIVE", "")
    assert sql(body) == [(newest,)]


@pytest.mark.parametrize("key", ["id int PRIMARY KEY", '"Id" int PRIMARY KEY', "b int, id int, PRIMARY KEY (id, b)"])
def test_a_recreated_index_under_the_key_only_slows_the_check(key: str, sql: Sql, capture: Start) -> None:
    sql(f"CREATE TABLE item ({key}, v text)")
    follower = capture()
    sql("REINDEX TABLE CONCURRENTLY item")  # the function names the index by its oid, which is another one now
    columns = "b, id" if "b int" in key else '"Id"' if '"' in key else "id"
    sql(f"INSERT INTO item ({columns}) VALUES ({', '.join('1' for _ in columns.split(','))})")
    follower.drain()
    assert len(keys(follower, "item")) == 1
    follower.source.capture.refresh_schemas()
    (table,) = [t for t in follower.source.registry.read_registered_tables() if t.schema.name == "item"]
    assert table.state != "RESYNC"


def test_a_key_that_was_renamed_and_renamed_back_has_missed_changes(sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY, v text)")
    follower = capture()
    sql("ALTER TABLE item RENAME COLUMN id TO number")
    sql("INSERT INTO item VALUES (1, 'unseen')")
    sql("ALTER TABLE item RENAME COLUMN number TO id")
    follower.drain()
    (table,) = [t for t in follower.source.registry.read_registered_tables() if t.schema.name == "item"]
    assert table.state == "RESYNC"


def test_after_a_key_change_a_new_installation_and_a_resync_complete_the_table(sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY, code text NOT NULL UNIQUE)")
    sql("INSERT INTO item VALUES (1, 'a'), (2, 'b')")
    follower = capture()
    sql("ALTER TABLE item DROP COLUMN id")
    sql("DELETE FROM item WHERE code = 'a'")
    follower.source.capture.refresh_schemas()
    table_id = follower.table_id("item")
    follower.source.capture.restart_fill(table_id)
    assert [t.state for t in follower.source.registry.read_registered_tables()] == ["ACTIVE", "RESYNC"], (
        "nothing captures it yet"
    )
    follower.source.installer.install(["*"], [])
    follower.source.capture.restart_fill(table_id)
    follower.read_registry()
    follower.drain()
    sql("INSERT INTO item VALUES ('c')")
    follower.drain()
    assert keys(follower, "item") == {"b", "c"}
    assert [t.state for t in follower.source.registry.read_registered_tables()] == ["ACTIVE", "ACTIVE"]


def test_a_disabled_trigger_is_noticed(sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    sql("ALTER TABLE item DISABLE TRIGGER USER")
    follower.source.capture.refresh_schemas()
    found, reason = state(follower, "item")
    assert found == "RESYNC"
    assert "venus_i_00002" in reason
    follower.source.installer.install(["*"], [])
    assert all(step.exists for step in follower.source.installer.install(["*"], []))
