"""Settings that the server gives to every session, and that VENUS's sessions must override."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pymysql
import pytest
import sqlalchemy

from tests.integration.mysql.conftest import Shop
from tests.support.databases.mariadb import DEFAULT_MODE, MariaServer, running_mariadb
from tests.support.waiting import eventually
from venus.adapters.dialects.mysql.connection import MysqlConnection, parse_address
from venus.adapters.dialects.mysql.source import MysqlSource
from venus.cli.probes import read_source
from venus.cli.prove.follower import Follower
from venus.config import Settings, SourceSettings
from venus.errors import DatabaseUnavailable
from venus.model import BatchNo

Configure = Callable[[str, int], None]


def set_global(server: MariaServer, name: str, value: int) -> bool:
    """Set a global variable; return whether it succeeded: a limit of one second may end the session that lifts it."""
    try:
        server.execute(f"SET GLOBAL {name} = {value}")
    except pymysql.err.OperationalError:
        return False
    return True


@pytest.fixture
def configure(mariadb_server: MariaServer) -> Iterator[Configure]:
    """Set a variable of the server for one test."""
    before: dict[str, int] = {}

    def set_variable(name: str, value: int) -> None:
        ((before[name],),) = mariadb_server.execute(f"SELECT CAST(@@global.{name} + 0 AS UNSIGNED)")
        mariadb_server.execute(f"SET GLOBAL {name} = {value}")

    yield set_variable
    for name, value in before.items():
        eventually(partial(set_global, mariadb_server, name, value))


def test_a_limit_on_rows_loses_no_change(shop: Shop, configure: Configure) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY, v int)", "INSERT INTO item SELECT seq, seq FROM seq_1_to_60")
    before = shop.capture()
    configure("sql_select_limit", 14)
    shop.restart()
    follower = Follower(shop.source)
    follower.tables = before.tables
    shop.run("SET sql_select_limit = DEFAULT", "UPDATE item SET v = 0 ORDER BY id DESC", "SET sql_select_limit = 1000")
    follower.drain()
    shop.check_same(follower, "item")


def test_keys_that_begin_alike_for_longer_than_the_server_sorts_by_are_all_read(shop: Shop) -> None:
    """A SET is sorted by its text, without an index; the server compares 1,024 bytes by default."""
    labels = ", ".join(f"'{letter * 60}'" for letter in "abcdefghijklmnopqrst")
    shop.run(
        f"CREATE TABLE item (k set({labels}) PRIMARY KEY)",
        "INSERT INTO item SELECT (1 << 20) - 1 - seq FROM seq_0_to_300",
    )
    shop.source.installer.install(["*"], [])
    follower = Follower(shop.source)
    follower.drain(fill_rows=7)
    assert len(follower.rows("item")) == 301


def test_a_small_sort_buffer_stops_nothing(shop: Shop, configure: Configure) -> None:
    configure("sort_buffer_size", 32768)
    shop.run("CREATE TABLE item (k varchar(768) PRIMARY KEY)")
    follower = shop.capture()
    shop.run("INSERT INTO item SELECT concat(repeat('a', 100), seq) FROM seq_1_to_3000")
    follower.drain()
    assert len(follower.rows("item")) == 3000


def test_statements_after_a_cut_are_committed(shop: Shop, configure: Configure) -> None:
    """With CHAIN a COMMIT begins another transaction, which no statement would end."""
    configure("completion_type", 1)
    shop.run("CREATE TABLE item (id int PRIMARY KEY)")
    follower = shop.capture()
    shop.run("INSERT INTO item VALUES (1)")
    follower.drain()
    shop.source.registry.set_table_state(follower.table_id("item"), "RESYNC", "")
    assert shop.run("SELECT state FROM venus_captured_table WHERE name = 'item'") == [("RESYNC",)]


def test_a_definition_is_read_with_one_quoting(shop: Shop, configure: Configure) -> None:
    configure("sql_quote_show_create", 0)
    shop.run(
        "CREATE TABLE item (id int PRIMARY KEY, twice int AS (id * 2) VIRTUAL)", "INSERT INTO item (id) VALUES (1)"
    )
    follower = shop.capture()
    shop.source.capture.refresh_schemas()
    shop.run("ALTER TABLE item MODIFY twice int AS (id * 3) VIRTUAL")
    shop.source.capture.refresh_schemas()
    follower.drain()
    shop.check_same(follower, "item")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_statement_time", 1),
        ("idle_transaction_timeout", 1),
        ("idle_readonly_transaction_timeout", 1),
        ("wait_timeout", 1),
        ("tx_read_only", 1),
        ("tx_isolation", 3),
        ("innodb_lock_wait_timeout", 1),
        ("lock_wait_timeout", 1),
        ("foreign_key_checks", 0),
        ("autocommit", 0),
    ],
)
def test_time_limits_and_modes_do_not_apply_to_venus(name: str, value: int, shop: Shop, configure: Configure) -> None:
    """Otherwise cuts would be retried for ever, or capture would end, by limits meant for another user's sessions."""
    shop.run("CREATE TABLE item (id int PRIMARY KEY, v int)", "INSERT INTO item VALUES (1, 1)")
    before = shop.capture()
    configure(name, value)
    shop.restart()
    follower = Follower(shop.source)
    follower.tables = before.tables
    shop.run("UPDATE item SET v = 2", "INSERT INTO item VALUES (3, 3)")
    cut = follower.open([])
    assert cut is not None
    assert sum(section.count for section in cut.read_sections(rows_max=1, bytes_max=1)) == 2
    time.sleep(1.5)  # the broker takes long
    cut.commit(follower.epoch, [], [], BatchNo(0))
    time.sleep(1.2)
    (slept,) = shop.source._reader.row("SELECT sleep(1.2)")
    assert slept == "0", "a statement that took long was not ended"
    follower.drain()
    assert not follower.due()


def test_capture_waits_for_a_read_only_server(shop: Shop, mariadb_server: MariaServer) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)")
    follower = shop.capture()
    mariadb_server.execute("CREATE USER reader@'127.0.0.1'")
    mariadb_server.execute(f"GRANT ALL ON {shop.database}.* TO reader@'127.0.0.1'")
    mariadb_server.execute("SET GLOBAL read_only = 1")
    try:
        url = mariadb_server.url(shop.database, "reader")
        with (
            closing(MysqlSource(url)) as source,
            pytest.raises(DatabaseUnavailable, match="replica or read-only"),
        ):
            source.registry.raise_epoch(follower.epoch)
    finally:
        mariadb_server.execute("SET GLOBAL read_only = 0")
        mariadb_server.execute("DROP USER reader@'127.0.0.1'")


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_the_age_of_open_transactions_does_not_depend_on_the_servers_time_zone(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """InnoDB reports times in the time zone of the server's system: the age was wrong by five hours, or minus nine."""
    monkeypatch.setenv("TZ", zone)
    with running_mariadb(DEFAULT_MODE) as server:
        monkeypatch.delenv("TZ")
        url = server.create_database()
        name = str(sqlalchemy.make_url(url).database)
        server.execute("CREATE TABLE item (id int PRIMARY KEY, v int)", name)
        with closing(MysqlSource(url)) as source, closing(server.connect(name, program_name="nightly")) as app:
            source.installer.install(["*"], [])
            cursor = app.cursor()
            cursor.execute("SELECT connection_id()")
            ((session,),) = cursor.fetchall()
            cursor.execute("INSERT INTO item VALUES (1, 4711)")
            time.sleep(2.1)
            (age,) = {age for _, age in source.capture.read_backlog().values()}
            assert 1 <= age <= 60
            assert f"session {session} (user root, " in source.capture.describe_blockers()
            assert "4711" not in source.capture.describe_blockers()
            app.rollback()


@pytest.mark.timeout(45, func_only=True)
def test_status_does_not_wait_for_locks_and_names_what_they_hide(shop: Shop) -> None:
    """Without a limit, a statement of the status would wait for 50 s."""
    shop.run("CREATE TABLE item (id int PRIMARY KEY)")
    follower = shop.capture()
    chosen = Settings(source=SourceSettings.model_validate({"url": shop.url}))
    shop.run(f"LOCK TABLES venus_l_{follower.table_id('item'):05} WRITE")
    found = read_source(chosen)
    assert found.error == ""
    assert "Lock wait timeout" in found.busy
    assert [table.name.rpartition(".")[2] for table in found.tables] == ["item"]
    shop.run("UNLOCK TABLES")
    assert read_source(chosen).busy == ""


@pytest.mark.parametrize("code", [1021, 1047, 1114, 1206, 1290, 1792, 1836, 1969, 3024, 3100, 4031])
def test_temporary_obstacles_are_waited_for(code: int) -> None:
    connection = MysqlConnection(parse_address("mysql+pymysql://venus@db/shop"), "READ COMMITTED")
    assert connection._to_venus_error(pymysql.err.OperationalError(code, "not now")).retryable
