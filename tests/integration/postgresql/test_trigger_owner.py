"""The triggers run as the owner of their functions: the privileges of the application's role do not matter."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg2
import pytest
import sqlalchemy

from tests.integration.postgresql.conftest import Sql, Start, keys, state
from venus.adapters.dialects.contract import MissingGrant
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.cli.prove.follower import Follower

APP, CAPTURER = "venus_test_app", "venus_test_capturer"


@pytest.fixture
def application(sql: Sql, database: str) -> Iterator[Sql]:
    """Open a session of a role that may write to the application's tables, and nothing else."""
    sql(f"CREATE ROLE {APP} LOGIN; GRANT USAGE, CREATE ON SCHEMA public TO {APP}")
    sql(f"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO {APP}")
    session = Sql(sqlalchemy.make_url(database).set(username=APP).render_as_string(hide_password=False))
    yield session
    session.close()
    sql(f"DROP OWNED BY {APP} CASCADE; DROP ROLE {APP}")


def test_an_application_without_any_right_on_venus_is_captured(sql: Sql, application: Sql, capture: Start) -> None:
    sql("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    sql("CREATE TABLE part (id int PRIMARY KEY) PARTITION BY LIST (id)")
    sql("CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1, 2)")
    follower = capture()
    sql("REVOKE ALL ON SCHEMA venus FROM PUBLIC; REVOKE ALL ON ALL TABLES IN SCHEMA venus FROM PUBLIC")
    sql("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA venus FROM PUBLIC")
    application("CREATE FUNCTION public.current_setting(text, boolean) RETURNS text LANGUAGE sql AS $$SELECT 'on'$$")
    application("SET search_path = public, pg_catalog")  # a decoy that the functions must not call
    for table in ("item", "part"):
        application(
            f"INSERT INTO {table} VALUES (1), (2); UPDATE {table} SET id = id; DELETE FROM {table} WHERE id = 2"
        )
    application("TRUNCATE part_1")
    follower.drain()
    assert (keys(follower, "item"), keys(follower, "part")) == ({"1"}, set())
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        application("INSERT INTO venus.dirty VALUES (2)")


@pytest.mark.parametrize("harm", ["SECURITY INVOKER", "RESET search_path", "SET search_path = public"])
def test_a_function_with_other_properties_is_noticed_and_repaired(
    harm: str, sql: Sql, application: Sql, capture: Start
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    sql(f"ALTER FUNCTION venus.f_00002() {harm}")
    follower.source.capture.refresh_schemas()
    found, reason = state(follower, "item")
    assert (found, "venus.f_00002 missing or altered" in reason) == ("RESYNC", True), reason
    follower.source.installer.install(["*"], [])
    follower.source.capture.restart_fill(follower.table_id("item"))
    application("INSERT INTO item VALUES (1)")
    follower.read_registry()
    follower.drain()
    assert (state(follower, "item"), keys(follower, "item")) == (("ACTIVE", ""), {"1"})


@pytest.fixture
def capturer(sql: Sql, database: str) -> Iterator[PostgresSource]:
    """Open the source as a role that has not installed the triggers."""
    sql(f"CREATE ROLE {CAPTURER} LOGIN")
    source = PostgresSource(sqlalchemy.make_url(database).set(username=CAPTURER).render_as_string(hide_password=False))
    yield source
    source.close()
    sql(f"DROP OWNED BY {CAPTURER} CASCADE; DROP ROLE {CAPTURER}")


@pytest.fixture
def installed_by_another(sql: Sql, capture: Start, capturer: PostgresSource) -> Iterator[PostgresSource]:
    """Install as a role that is no superuser, and capture as another one."""
    sql("CREATE ROLE venus_test_installer")
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    capture()
    for kind, name in sql(
        "SELECT 'TABLE', oid::regclass::text FROM pg_class WHERE relnamespace = 'venus'::regnamespace AND relkind = 'r'"
        " UNION ALL SELECT 'FUNCTION', oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'venus'::regnamespace"
        " UNION ALL SELECT 'SCHEMA', 'venus'"
    ):
        sql(f"ALTER {kind} {name} OWNER TO venus_test_installer")
    sql(f"GRANT USAGE ON SCHEMA venus, public TO {CAPTURER}; GRANT SELECT ON item TO {CAPTURER}")
    sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA venus TO {CAPTURER}")
    yield capturer
    sql("DROP OWNED BY venus_test_installer CASCADE; DROP ROLE venus_test_installer")


def test_an_owner_that_may_not_write_to_a_log_halts_its_table(
    sql: Sql, application: Sql, installed_by_another: PostgresSource
) -> None:
    source = installed_by_another
    follower = Follower(source)
    source.capture.refresh_schemas()
    assert state(follower, "item") == ("ACTIVE", "")
    sql("REVOKE INSERT ON venus.l_00002 FROM venus_test_installer")
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        application("INSERT INTO item VALUES (1)")
    source.capture.refresh_schemas()
    grant = "GRANT INSERT ON venus.l_00002 TO venus_test_installer"
    assert state(follower, "item") == (
        "PAUSED",
        f"may not be read: it is captured again by itself after `{grant}`; until then its triggers fail the "
        "application's statements",
    )
    sql(grant)
    source.capture.refresh_schemas()
    assert state(follower, "item") == ("ACTIVE", "")
    application("INSERT INTO item VALUES (1)")
    follower.read_registry()
    follower.drain()
    assert keys(follower, "item") == {"1"}


@pytest.mark.parametrize(
    ("place", "privilege"), [("venus", "USAGE ON SCHEMA venus"), ("venus.dirty", "INSERT ON venus.dirty")]
)
def test_an_owner_that_lacks_what_every_trigger_needs_is_reported(
    place: str, privilege: str, sql: Sql, application: Sql, installed_by_another: PostgresSource
) -> None:
    assert installed_by_another.capture.find_missing_grants() == []
    sql(f"REVOKE {privilege} FROM venus_test_installer")
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        application("INSERT INTO item VALUES (1)")
    grant = f"GRANT {privilege} TO venus_test_installer"
    assert installed_by_another.capture.find_missing_grants() == [MissingGrant(table=place, grant=grant)]
    sql(grant)
    application("INSERT INTO item VALUES (1)")
    assert installed_by_another.capture.find_missing_grants() == []
