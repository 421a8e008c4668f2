"""Installation and removal: printed statements are the executed ones, repetition changes nothing, nothing is left."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from tests.support.databases.sqlite import Copy, application, open_shop
from venus.adapters.dialects.sqlite.source import SqliteSource
from venus.errors import DatabaseUnavailable, NotInstalled, Refused, SourceError

pytestmark = pytest.mark.integration

SHOP = """
    CREATE TABLE person (id INTEGER PRIMARY KEY AUTOINCREMENT, email TEXT UNIQUE);
    CREATE TABLE visit (day DATE, person INT REFERENCES person, n INT, PRIMARY KEY (day, person)) WITHOUT ROWID;
    CREATE VIEW v AS SELECT * FROM person;
    CREATE VIRTUAL TABLE words USING fts5(t);
    PRAGMA user_version = 7;
    PRAGMA application_id = 42;
    INSERT INTO person (email) VALUES ('a');
"""


def dictionary(file: Path) -> list[object]:
    connection = application(file)
    try:
        pragmas = ("user_version", "application_id", "journal_mode", "auto_vacuum", "encoding")
        return [
            connection.execute("SELECT * FROM sqlite_master").fetchall(),
            [connection.execute(f"PRAGMA {p}").fetchone() for p in pragmas],
            *connection.execute("SELECT name FROM sqlite_master WHERE name = 'sqlite_sequence'").fetchall(),
            list(connection.iterdump()),
        ]
    finally:
        connection.close()


@pytest.mark.parametrize("ddl", [SHOP, "CREATE TABLE t (id INTEGER PRIMARY KEY);"])
def test_uninstalling_restores_the_file(tmp_path: Path, ddl: str) -> None:
    with open_shop(tmp_path / "a.db", ddl, install=False) as shop:
        before = dictionary(shop.file)
        shop.source.installer.install(["*"], [])
        shop.copy.catch_up()
        shop.source.installer.uninstall()

        assert dictionary(shop.file) == before
        assert shop.source.installer.uninstall() == []
        assert shop.source.registry.read_registered_tables() == []
        table = ddl.split()[2]
        shop.run(f"DELETE FROM {table}; INSERT INTO {table} (id) VALUES (99)")


def test_the_printed_plans_are_executed(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", SHOP, install=False) as shop:
        before = dictionary(shop.file)
        plan = shop.source.installer.plan_install(["*"], [])
        assert dictionary(shop.file) == before, "a plan only reads"
        executed: list[str] = []
        shop.source._writer.set_trace_callback(executed.append)
        steps = shop.source.installer.install(["*"], [])
        shop.source._writer.set_trace_callback(None)
        changing = [s for s in executed if s.startswith(("CREATE", "INSERT", "DROP", "UPDATE", "DELETE"))]

        assert steps == plan
        assert changing == [s.sql for s in plan]
        removal = shop.source.installer.plan_uninstall()
        for step in removal:
            shop.app.execute(step.sql).fetchall()
        assert dictionary(shop.file) == before


def test_a_plan_executed_by_hand_is_an_installation(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", SHOP, install=False) as shop:
        for step in shop.source.installer.plan_install(["*"], []):
            shop.app.execute(step.sql).fetchall()
        shop.copy.catch_up()

        assert all(step.exists for step in shop.source.installer.install(["*"], []))
        assert shop.copy.content("person") == {("1",): ("a",)}


def test_a_second_installation_changes_nothing_but_recreates_a_lost_trigger(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", SHOP) as shop:
        shop.copy.catch_up()
        assert [s.what for s in shop.source.installer.install(["*"], []) if not s.exists] == []
        shop.run("DROP TRIGGER venus_d_00002; DELETE FROM person; INSERT INTO person VALUES (5, 'b')")
        shop.copy.catch_up()
        state = {t.schema.name: t for t in shop.source.registry.read_registered_tables()}
        assert state["person"].state == "RESYNC"
        assert "venus_d_00002" in state["person"].reason
        assert state["visit"].state == "ACTIVE"

        made = [s.what for s in shop.source.installer.install(["*"], []) if not s.exists]

        assert made[0] == "trigger venus_d_00002"
        assert all(w.startswith("row of") for w in made[1:])
        shop.copy.catch_up()
        shop.source.capture.restart_fill(2)
        assert shop.source.registry.read_registered_tables()[1].fill.sweep_from > 0
        shop.copy.catch_up()
        assert ("5",) in shop.copy.content("person")


def test_a_lost_log_table_is_recreated_and_filled_again(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", SHOP) as shop:
        shop.run("INSERT INTO person VALUES (5, 'b')")
        shop.copy.catch_up()
        shop.run("DROP TABLE venus_l_00002")
        with pytest.raises(sqlite3.OperationalError):
            shop.run("INSERT INTO person VALUES (6, 'c')")
        shop.source.installer.install(["*"], [])
        shop.rows("SELECT id FROM person")  # after the error, only this makes SQLite read the dictionary again
        shop.run("INSERT INTO person VALUES (6, 'c')")
        shop.copy.catch_up()

        assert ("6",) in shop.copy.content("person")


def test_tables_selected_later_are_added(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", SHOP, install=False) as shop:
        shop.source.installer.install(["person"], [])
        shop.copy.catch_up()
        other = SqliteSource(shop.file)
        other.installer.install(["main.v*"], ["person"])
        other.close()
        new = shop.source.capture.refresh_schemas()
        shop.copy.catch_up()

        assert [s.name for s in new] == ["visit"]
        assert [t.schema.name for t in shop.source.registry.read_registered_tables()] == [
            "venus_heartbeat",
            "person",
            "visit",
        ]


def test_a_writer_that_is_active_during_the_installation_loses_no_row(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", SHOP, install=False) as shop:
        shop.run("BEGIN IMMEDIATE; INSERT INTO person VALUES (5, 'open')")
        installing = threading.Thread(target=shop.source.installer.install, args=(["*"], []))
        installing.start()
        installing.join(0.2)
        assert installing.is_alive(), "it waits for the transaction"
        shop.run("INSERT INTO person VALUES (6, 'late'); COMMIT")
        installing.join()
        shop.copy.catch_up()

        assert set(shop.copy.content("person")) == {("1",), ("5",), ("6",)}


@pytest.mark.parametrize(
    ("ddl", "says", "way_out"),
    [
        ("CREATE TABLE t (a TEXT, b TEXT);", "no key", "PRIMARY KEY"),
        ("CREATE TABLE t (a TEXT UNIQUE);", "no key", "NOT NULL"),
        ("CREATE TABLE t (id INTEGER PRIMARY KEY, x);", "column x", "declare a type"),
        (
            "CREATE TABLE t (id INTEGER PRIMARY KEY, x); INSERT INTO t VALUES (1, 1), (2, 'a');",
            "column x",
            "declare a type",
        ),
        ("CREATE TABLE t (id TEXT PRIMARY KEY); INSERT INTO t VALUES (NULL), (NULL);", "2 rows have NULL", "key"),
        (
            "CREATE TABLE t (id INTEGER PRIMARY KEY, d DATE); INSERT INTO t VALUES (1, 'soon');",
            "1 of 1 rows",
            "correct",
        ),
        (
            "CREATE TABLE t (id INTEGER PRIMARY KEY, d TEXT); INSERT INTO t VALUES (1, CAST(x'ff41' AS TEXT));",
            "not UTF-8",
            "BLOB",
        ),
    ],
)
def test_tables_that_cannot_be_carried_are_refused_and_nothing_is_installed(
    tmp_path: Path, ddl: str, says: str, way_out: str
) -> None:
    with open_shop(tmp_path / "a.db", ddl, install=False) as shop:
        with pytest.raises(Refused, match=says) as refused:
            shop.source.installer.install(["*"], [])

        assert way_out in refused.value.hint
        assert shop.rows("SELECT name FROM sqlite_master WHERE name LIKE 'venus%'") == set()
        shop.source.installer.install(["*"], ["t"])


def test_a_check_only_reads_and_names_excluded_objects(tmp_path: Path) -> None:
    with open_shop(tmp_path / "a.db", SHOP + "INSERT INTO person (email) VALUES ('nul' || char(0) || '!');") as shop:
        before = dictionary(shop.file)
        version = shop.app.execute("PRAGMA data_version").fetchone()
        findings = {f.where: f.message for f in shop.source.installer.check(["*"], [])}

        assert dictionary(shop.file) == before
        assert shop.app.execute("PRAGMA data_version").fetchone() == version
        assert "view" in findings["main.v"]
        assert "virtual" in findings["main.words"]
        assert "NUL" in findings["main.person"]


def test_an_index_ordered_by_the_applications_own_collation_is_refused(tmp_path: Path) -> None:
    app = application(tmp_path / "a.db")
    app.create_collation("backwards", lambda a, b: (a < b) - (a > b))
    app.execute("CREATE TABLE t (id TEXT COLLATE backwards NOT NULL PRIMARY KEY, v TEXT)")
    app.execute("CREATE TABLE u (id INTEGER PRIMARY KEY, v TEXT COLLATE backwards)")
    source = SqliteSource(tmp_path / "a.db")
    try:
        with pytest.raises(Refused, match="backwards"):
            source.installer.install(["*"], [])
        source.installer.install(["u"], [])
        app.execute("INSERT INTO u VALUES (1, 'a')")
        copy = Copy(source)
        copy.catch_up()
        assert copy.content("u") == {("1",): ("a",)}
    finally:
        source.close()
        app.close()


def test_a_missing_or_invalid_file_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailable, match="no such file"):
        SqliteSource(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "text.db").write_text("this is no database, it is a text of some length " * 20)
    with pytest.raises(SourceError, match="not a database"):
        SqliteSource(tmp_path / "text.db")


def test_capture_without_an_installation_is_reported_in_one_line(tmp_path: Path) -> None:
    with (
        open_shop(tmp_path / "a.db", SHOP, install=False) as shop,
        pytest.raises(NotInstalled, match="not installed") as e,
    ):
        shop.source.registry.read_state()
    assert "install-triggers" in e.value.hint
