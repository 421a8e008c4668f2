"""Installation and removal where DDL commits by itself; the findings of a check and the grants it asks for."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.integration.mysql.conftest import Shop
from tests.support.databases.mariadb import catalogue
from venus.adapters.dialects.mysql.connection import MysqlConnection
from venus.adapters.dialects.mysql.installation import installer
from venus.cli.prove.follower import Follower
from venus.errors import DatabaseUnavailable, LockTimeout, Refused

TABLES = (
    "CREATE TABLE up (id int PRIMARY KEY)",
    "CREATE TABLE down (id int PRIMARY KEY, up_id int, FOREIGN KEY (up_id) REFERENCES up (id) ON DELETE CASCADE)",
    "CREATE VIEW seen AS SELECT * FROM up",
    "CREATE TRIGGER theirs AFTER INSERT ON up FOR EACH ROW INSERT INTO down VALUES (NEW.id + 100, NEW.id)",
)


class PowerLoss(Exception):
    """Stands for a power cut."""


def fail_after(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let only this many statements of an installation succeed."""
    real = installer.run_with_retries
    done: list[str] = []

    def run(connection: MysqlConnection, sql: str) -> None:
        if len(done) == after:
            raise PowerLoss
        done.append(sql)
        real(connection, sql)

    monkeypatch.setattr(installer, "run_with_retries", run)


def test_an_installation_cut_off_anywhere_is_finished_by_the_next(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.run(*TABLES)
    before = catalogue(shop.server, shop.database)
    steps = len(shop.source.installer.plan_install(["*"], []))
    for after in range(steps):
        with monkeypatch.context() as patch, suppress(PowerLoss):
            fail_after(patch, after)
            shop.source.installer.install(["*"], [])
        shop.run(f"INSERT INTO up VALUES ({after})")
        if after % 3:  # the next attempt begins at the statement at which this one failed
            continue
        shop.source.installer.uninstall()
        assert catalogue(shop.server, shop.database) == before, after
    follower = shop.capture()
    assert {t.state for t in shop.source.registry.read_registered_tables()} == {"ACTIVE"}
    shop.run("DELETE FROM up WHERE id < 3", "INSERT INTO up VALUES (900)")
    follower.drain()
    shop.check_same(follower, "up", "down")


def test_a_removal_cut_off_anywhere_is_finished_by_the_next(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.run(*TABLES)
    before = catalogue(shop.server, shop.database)
    for after in range(0, 19, 3):
        shop.source.installer.install(["*"], [])
        assert len(shop.source.installer.plan_uninstall()) > after
        with monkeypatch.context() as patch, suppress(PowerLoss):
            fail_after(patch, after)
            shop.source.installer.uninstall()
            pytest.fail("it was not cut off")
        shop.run(f"INSERT INTO up VALUES ({after})")
        shop.source.installer.uninstall()
        assert catalogue(shop.server, shop.database) == before, after


def test_an_open_writer_delays_the_installation_and_is_not_lost(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)")
    writer = shop.server.connect(shop.database)
    try:
        writer.cursor().execute("INSERT INTO item VALUES (1)")
        object.__setattr__(shop.source._writer.options, "install_attempts", 1)
        with pytest.raises(DatabaseUnavailable, match="in use"):
            shop.source.installer.install(["*"], [])
        shop.run("INSERT INTO item VALUES (2)")  # the application does not wait
        writer.commit()
    finally:
        writer.close()
    follower = shop.capture()
    shop.check_same(follower, "item")


def test_missing_privileges_are_named_as_grants_that_suffice(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)")
    shop.server.execute("CREATE OR REPLACE USER 'venus'@'127.0.0.1' IDENTIFIED BY 'pw'")
    shop.server.execute(f"GRANT SELECT ON `{shop.database}`.* TO 'venus'@'127.0.0.1'")
    shop.url = shop.server.url(shop.database, "venus", "pw")
    findings = [f for f in shop.source.installer.check(["*"], []) if f.where == "privileges"]
    assert [f.blocks for f in findings] == [True, False]
    with pytest.raises(Refused, match="TRIGGER"):
        shop.source.installer.install(["*"], [])
    for finding in findings:
        shop.server.execute(finding.remedy)
    shop.restart()
    assert shop.source.installer.check(["*"], []) == []
    follower = shop.capture()
    shop.run("INSERT INTO item VALUES (1)")
    follower.drain()
    shop.check_same(follower, "item")
    shop.source.installer.uninstall()


def test_without_process_capture_works_and_names_what_it_cannot_see(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY)")
    shop.server.execute("CREATE OR REPLACE USER 'venus'@'127.0.0.1' IDENTIFIED BY 'pw'")
    shop.server.execute(f"GRANT ALL ON `{shop.database}`.* TO 'venus'@'127.0.0.1'")
    shop.url = shop.server.url(shop.database, "venus", "pw")
    (finding,) = shop.source.installer.check(["*"], [])
    assert "TRUNCATE" in finding.message
    follower = shop.capture()
    shop.run("INSERT INTO item VALUES (1)")
    assert shop.source.capture.read_backlog()[follower.table_id("item")] == (1, 0)
    follower.drain()
    shop.check_same(follower, "item")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("CREATE TABLE x (id int PRIMARY KEY) ENGINE=MyISAM", "no transactions"),
        ("CREATE TABLE x (id int PRIMARY KEY, p point)", "spatial"),
        ("CREATE TABLE x (id double PRIMARY KEY)", "no usable key"),
        ("CREATE TABLE x (t text, PRIMARY KEY (t(10)))", "no usable key"),
        ("CREATE TABLE x (id int UNIQUE)", "no usable key"),
    ],
)
def test_tables_that_cannot_be_carried_exactly_are_refused_with_the_reason(shop: Shop, table: str, said: str) -> None:
    shop.run(table)
    (finding,) = [f for f in shop.source.installer.check(["*"], []) if f.blocks]
    assert said in finding.message
    assert "exclude" in finding.remedy
    with pytest.raises(Refused):
        shop.source.installer.install(["*"], [])
    shop.source.installer.install(["*"], ["x"])


@pytest.mark.parametrize(
    ("expression", "is_named"),
    [
        ("now()", True),
        ("timestampdiff(YEAR, born, curdate())", True),
        ("rand()", True),
        ("@@server_id", True),
        ("year(born)", False),
        ("`user`", False),
        ("unix_timestamp(born)", False),
    ],
)
def test_a_column_that_every_query_recomputes_is_named(shop: Shop, expression: str, is_named: bool) -> None:
    shop.run(f"CREATE TABLE x (id int PRIMARY KEY, born date, user int, c varchar(40) AS ({expression}) VIRTUAL)")
    findings = shop.source.installer.check(["*"], [])
    assert [f.where for f in findings] == ([f"{shop.database}.x.c"] if is_named else [])
    assert not any(f.blocks for f in findings)


def test_a_key_that_is_dropped_does_not_fail_the_application_for_long(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY, code int NOT NULL UNIQUE)", "INSERT INTO item VALUES (1, 1)")
    follower = shop.capture()
    shop.run("ALTER TABLE item DROP PRIMARY KEY, DROP COLUMN id")
    shop.source.capture.refresh_schemas()
    assert "its key was (id)" in shop.state("item")[1]
    shop.run("INSERT INTO item VALUES (2)")
    shop.source.installer.install(["*"], [])
    shop.source.capture.restart_fill(follower.table_id("item"))
    shop.restart()
    again = Follower(shop.source)
    again.drain()
    shop.run("INSERT INTO item VALUES (3)")
    again.drain()
    assert set(again.rows("item")) == {("1",), ("2",), ("3",)}


@pytest.mark.timeout(60, func_only=True)
def test_locked_tables_of_venus_are_waited_for_and_then_named(shop: Shop) -> None:
    shop.options = "?venus_lock_timeout_s=1"
    shop.source.installer.install(["*"], [])
    shop.run("LOCK TABLES venus_alembic_version WRITE")
    try:
        with pytest.raises(LockTimeout, match="Lock wait timeout"):
            shop.source.installer.plan_install(["*"], [])
    finally:
        shop.run("UNLOCK TABLES")


def test_a_table_that_cannot_be_captured_is_named_with_the_obstacle(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)")
    shop.capture()
    shop.run("CREATE TABLE marks (id int PRIMARY KEY) ENGINE=MyISAM")
    shop.run("CREATE TABLE places (id int PRIMARY KEY, at point)")

    found = {t.name.partition(".")[2]: t.obstacle for t in shop.source.dictionary.find_uncaptured_tables(["*"], [])}

    assert found == {
        "marks": "its engine is MyISAM, which has no transactions: VENUS could miss a change",
        "places": "column at cannot be carried exactly: spatial values have no form that both sides read alike",
    }
