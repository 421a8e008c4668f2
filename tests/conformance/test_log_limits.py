"""A log that has reached its limit records nothing more; the application continues, and the table is filled again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg2
import pytest

from tests.conformance.place_oracle import StandInPlace
from tests.conformance.places import Application, MariaPlace, Place, PostgresPlace, SqlitePlace, run_transaction
from tests.support.databases.postgres import libpq
from tests.support.waiting import eventually
from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.oracle.session.driver import OracleOptions
from venus.adapters.dialects.oracle.source import OracleSource
from venus.adapters.dialects.registry import open_source
from venus.adapters.dialects.registry_rules import LogLimits
from venus.cli.prove.follower import Follower
from venus.config import Settings
from venus.errors import ConfigError

ROWS_MAX, BYTES_MAX = 10, 16_384
#: More changes than a log may hold; PostgreSQL measures a log in pages.
MANY = {"postgresql": 900}


@pytest.fixture
def app(place: Place) -> Iterator[Application]:
    """Open a session of the application."""
    app = place.connect()
    yield app
    app.close()


@pytest.fixture
def limited_source(place: Place, app: Application) -> Iterator[Source]:
    """Capture two tables with limited logs."""
    t = place.types
    for name in ("item", "shelf"):
        run_transaction(app, f"CREATE TABLE {name} (id {t['int']} NOT NULL PRIMARY KEY, name {t['text']})")
    if isinstance(place, StandInPlace):
        place.standin.server.execute("INSERT INTO SESSION_PRIVS VALUES ('CREATE JOB')", "DICTIONARY")
        source: Source = OracleSource(place.standin, OracleOptions(log=LogLimits(rows_max=ROWS_MAX)))
    else:
        assert isinstance(place, MariaPlace | PostgresPlace | SqlitePlace)
        url = f"sqlite:///{place.path}" if isinstance(place, SqlitePlace) else place.url
        option = {"log_bytes_max": BYTES_MAX} if isinstance(place, PostgresPlace) else {"log_rows_max": ROWS_MAX}
        source = open_source(Settings.model_validate({"source": {"url": url, **option}}))
    source.installer.install(["*"], [])
    yield source
    source.close()


def insert(app: Application, table: str, numbers: range) -> None:
    for number in numbers:
        app.execute(f"INSERT INTO {table} VALUES (?, ?)", number, "v")
    app.commit()


def states(source: Source) -> dict[str, tuple[str, str]]:
    return {t.schema.name: (t.state, t.reason) for t in source.registry.read_registered_tables()}


def test_a_log_at_its_limit_records_nothing_and_its_table_is_filled_again(
    place: Place, app: Application, limited_source: Source
) -> None:
    follower = Follower(limited_source)
    follower.drain()
    many = MANY.get(place.dialect, ROWS_MAX)
    insert(app, "shelf", range(3))
    limited_source.capture.limit_logs()
    assert states(limited_source)["item"] == ("ACTIVE", "")

    insert(app, "item", range(many))
    limited_source.capture.limit_logs()
    insert(app, "item", range(many, many + 50))
    waiting = limited_source.capture.read_backlog()[follower.table_id("item")][0]
    assert waiting <= many
    follower.drain()
    limited_source.capture.refresh_schemas()
    state, reason = states(limited_source)["item"]
    assert state == "RESYNC"
    assert reason.startswith("its log reached log_")
    assert states(limited_source)["shelf"] == ("ACTIVE", "")
    assert len(follower.rows("shelf")) == 3

    if isinstance(place, PostgresPlace):  # as autovacuum does
        with closing(psycopg2.connect(libpq(place.url))) as session:
            session.autocommit = True
            session.cursor().execute("VACUUM venus.l_00002")
    limited_source.installer.install(["*"], [])
    limited_source.capture.restart_fill(follower.table_id("item"))
    follower.drain()
    insert(app, "item", range(5000, 5003))
    follower.drain()
    assert states(limited_source)["item"] == ("ACTIVE", "")
    assert len(follower.rows("item")) == many + 53


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_log_is_limited_while_venus_is_away(app: Application, limited_source: Source) -> None:
    follower = Follower(limited_source)
    follower.drain()
    insert(app, "item", range(ROWS_MAX))
    assert states(limited_source)["item"] == ("ACTIVE", "")
    insert(app, "item", range(ROWS_MAX, ROWS_MAX + 50))
    app.execute("UPDATE item SET name = 'w' WHERE id = 1")
    app.execute("DELETE FROM item WHERE id = 2")
    app.commit()
    assert limited_source.capture.read_backlog()[follower.table_id("item")][0] == ROWS_MAX
    state, reason = states(limited_source)["item"]
    assert (state, reason.startswith("its log reached log_")) == ("RESYNC", True)
    assert states(limited_source)["shelf"] == ("ACTIVE", "")
    follower.drain()
    limited_source.installer.install(["*"], [])
    limited_source.capture.restart_fill(follower.table_id("item"))
    insert(app, "item", range(5000, 5003))
    follower.drain()
    assert states(limited_source)["item"] == ("ACTIVE", "")
    assert len(follower.rows("item")) == ROWS_MAX + 52


@pytest.fixture
def scheduler(place: MariaPlace) -> Iterator[None]:
    """Enable the server's event scheduler, which many servers have on."""
    place.server.execute("SET GLOBAL event_scheduler = ON")
    yield
    place.server.execute("SET GLOBAL event_scheduler = OFF")


@pytest.mark.parametrize("place", ["mariadb"], indirect=True)
@pytest.mark.usefixtures("scheduler")
def test_an_event_limits_the_logs_while_venus_is_away(
    place: MariaPlace, app: Application, limited_source: Source
) -> None:
    def triggers(table: str) -> int:
        counted = place.server.execute(
            "SELECT count(*) FROM information_schema.triggers"
            f" WHERE event_object_schema = '{place.namespace}' AND event_object_table = '{table}'"
        )
        return int(counted[0][0])

    assert all(step.exists for step in limited_source.installer.install(["*"], []))
    assert [o for o in limited_source.dictionary.read_other_objects() if o.kind == "event"] == []
    place.server.execute(f"ALTER EVENT {place.namespace}.venus_valve ON SCHEDULE EVERY 1 SECOND")
    insert(app, "shelf", range(ROWS_MAX - 1))
    insert(app, "item", range(ROWS_MAX))
    eventually(lambda: triggers("item") == 0, "the event to drop the triggers")
    insert(app, "item", range(ROWS_MAX, ROWS_MAX + 50))
    assert triggers("shelf") == 3
    state, reason = states(limited_source)["item"]
    assert (state, reason.startswith("its log reached log_rows_max")) == ("RESYNC", True)
    assert states(limited_source)["shelf"] == ("ACTIVE", "")
    follower = Follower(limited_source)
    follower.drain()
    limited_source.installer.install(["*"], [])
    limited_source.capture.restart_fill(follower.table_id("item"))
    follower.drain()
    assert states(limited_source)["item"] == ("ACTIVE", "")
    assert len(follower.rows("item")) == ROWS_MAX + 50
    limited_source.installer.uninstall()
    assert place.server.execute("SELECT count(*) FROM information_schema.events")[0][0] == 0


@pytest.mark.parametrize("place", ["mariadb"], indirect=True)
def test_a_server_without_the_event_scheduler_is_named(place: MariaPlace, limited_source: Source) -> None:
    said = [f.remedy for f in limited_source.installer.check(["*"], []) if "only while capture runs" in f.message]
    assert said == ["SET GLOBAL event_scheduler = ON; then `venus install-triggers`"]
    without = place.open()
    assert not [f for f in without.installer.check(["*"], []) if "only while capture runs" in f.message]


def test_a_limit_is_added_to_an_installation_and_taken_away_without_a_resync(
    place: Place, app: Application, limited_source: Source
) -> None:
    without = place.open()
    try:
        for source in (without, limited_source):
            source.installer.install(["*"], [])
            source.capture.refresh_schemas()
            assert states(source)["item"] == ("ACTIVE", "")
    finally:
        without.close()


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_limit_that_a_database_does_not_know_is_refused(place: SqlitePlace) -> None:
    for option in ("log_bytes_max", "log_tablespace"):
        given = {"url": f"sqlite:///{place.path}", option: 5 if "bytes" in option else "LOGS"}
        with pytest.raises(ConfigError, match=rf"{option} is not available for sqlite"):
            open_source(Settings.model_validate({"source": given}))
