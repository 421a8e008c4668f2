"""A DBA removes VENUS from one busy table at night, and adds the table again in the morning.

The application writes all the time, `venus sync` runs, and the other tables must not be affected.
"""

from __future__ import annotations

import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import sqlalchemy

from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import Pipeline, with_password

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TABLES = (
    "CREATE TABLE busy (id INTEGER NOT NULL PRIMARY KEY, v VARCHAR(40))",
    "CREATE TABLE line (id INTEGER NOT NULL PRIMARY KEY, busy_id INTEGER, v VARCHAR(40),"
    " FOREIGN KEY (busy_id) REFERENCES busy (id))",
    "INSERT INTO busy VALUES (1, 'one')",
    "INSERT INTO busy VALUES (2, 'two')",
    "INSERT INTO line VALUES (1, 1, 'a')",
)
Rows = list[tuple[Any, ...]]


@dataclass(slots=True)
class Shop:
    """A pipeline, and the application at its source."""

    pipeline: Pipeline
    connect: Callable[[], Any]
    namespace: str
    server: Server

    def run(self, *statements: str) -> Rows:
        """Run statements, each in a transaction of its own."""
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)
                rows = list(cursor.fetchall()) if cursor.description else []
                connection.commit()
        return rows

    def run_at_target(self, query: str, target: str = "main") -> Rows:
        """Query a target."""
        with closing(psycopg2.connect(libpq(self.pipeline.targets[target]))) as connection:
            cursor = connection.cursor()
            there = self.namespace if self.namespace != "main" else "public"  # SQLite's own schema name
            cursor.execute(f'SET search_path = "{there}"')
            cursor.execute(query)
            return list(cursor.fetchall())

    def is_equal(self, table: str, target: str = "main") -> bool:
        """Return whether a table is the same at both ends."""
        query = f"SELECT * FROM {table} ORDER BY 1"
        return [tuple(r) for r in self.run(query)] == [tuple(r) for r in self.run_at_target(query, target)]

    @contextmanager
    def write_meanwhile(self) -> Iterator[None]:
        """Write to both tables within the block."""
        stop, failed = threading.Event(), []

        def write() -> None:
            with closing(self.connect()) as connection:
                cursor, number = connection.cursor(), 1000 * (threading.get_ident() % 1000 + 1)
                while not stop.wait(0.005):
                    number += 1
                    try:
                        cursor.execute(f"INSERT INTO busy VALUES ({number}, 'new')")
                        cursor.execute(f"INSERT INTO line VALUES ({number}, {number}, 'new')")
                        cursor.execute(f"UPDATE busy SET v = 'seen {number}' WHERE id <= 2")
                        connection.commit()
                    except Exception as error:
                        failed.append(error)
                        return

        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield
        finally:
            stop.set()
            writer.join()
        assert not failed, failed


@pytest.fixture(params=("postgresql", "mariadb", "sqlite"))
def shop(request: pytest.FixtureRequest, tmp_path: Path, postgres_server: Server) -> Iterator[Shop]:
    target = postgres_server.create_database()
    connect: Callable[[], Any]
    if request.param == "postgresql":
        source = request.getfixturevalue("database")
        connect, namespace = lambda: psycopg2.connect(libpq(source)), "public"
    elif request.param == "mariadb":
        source, server = request.getfixturevalue("mariadb_database"), request.getfixturevalue("mariadb_server")
        namespace = str(sqlalchemy.make_url(source).database)
        connect = lambda: mariadb(server, namespace)  # noqa: E731
    else:
        source, namespace = f"sqlite:///{tmp_path}/app.db", "main"
        connect = lambda: sqlite3.connect(tmp_path / "app.db", timeout=30)  # noqa: E731
    pipeline = Pipeline(folder=tmp_path, source=source, targets={"main": with_password(target)})
    pipeline.configure()
    made = Shop(pipeline, connect, namespace, postgres_server)
    try:
        if request.param == "sqlite":
            made.run("PRAGMA journal_mode = WAL")
        made.run(*TABLES)
        pipeline.venus("install-triggers")
        pipeline.start_broker()
        pipeline.venus("migrate", "--target", "main")
        pipeline.start("sync", "sync")
        yield made
    finally:
        pipeline.close()
        for url in pipeline.targets.values():
            postgres_server.drop_database(url)


def mariadb(server: MariaServer, database: str) -> Any:
    return server.connect(database)


def wait_until_healthy(shop: Shop) -> None:
    shop.pipeline.until(lambda: shop.pipeline.status()["healthy"], "a healthy pipeline", every_s=0.2)


def states(shop: Shop) -> dict[str, str]:
    return {t["name"].rpartition(".")[2]: t["state"] for t in shop.pipeline.status()["source"]["tables"]}


def test_one_busy_table_leaves_capture_and_returns(shop: Shop) -> None:
    pipeline, name = shop.pipeline, f"{shop.namespace}.busy"
    wait_until_healthy(shop)
    refused = pipeline.venus("uninstall-triggers", "bsuy", code=2)
    assert "did you mean" in refused.err
    assert "DROP" in pipeline.venus("uninstall-triggers", "busy", "--dry-run").out
    assert states(shop) == {"busy": "ACTIVE", "line": "ACTIVE"}

    with shop.write_meanwhile():
        done = pipeline.ask("uninstall-triggers", "busy")
        assert done["released"] == [{"table": name, "left_out": 0}]
        assert done["still_chosen"] == [name]
        assert pipeline.ask("uninstall-triggers", "busy")["not_captured"] == [name]
        threading.Event().wait(4)  # capture compares registry and dictionary meanwhile
        assert states(shop) == {"busy": "RELEASED", "line": "ACTIVE"}
    pipeline.wait_until_caught_up("main")
    wait_until_healthy(shop)
    then = shop.run_at_target("SELECT * FROM busy ORDER BY 1")
    assert shop.is_equal("line")
    assert not shop.is_equal("busy")
    check_messages(shop, name)

    pipeline.venus("install-triggers")
    shop.run("DELETE FROM line WHERE id > 1", "DELETE FROM busy WHERE id > 2", "INSERT INTO busy VALUES (3, 'three')")
    pipeline.until(lambda: shop.is_equal("busy"), "busy to be equal", every_s=0.2)
    assert shop.run_at_target("SELECT * FROM busy ORDER BY 1") != then
    pipeline.until(lambda: shop.is_equal("line"), "line to be equal", every_s=0.2)
    wait_until_healthy(shop)
    assert pipeline.status()["released"] == ()
    assert pipeline.ask("verify")["verdict"].lower() == "same"
    assert pipeline.running["sync"].poll() is None
    assert "Traceback" not in pipeline.log.read_text()


def check_messages(shop: Shop, name: str) -> None:
    """Check that every command reports that the table is not captured."""
    pipeline = shop.pipeline
    sentence = f"{name} is not captured any more (taken out of capture at "
    pipeline.until_ok()
    status = pipeline.venus("status", code=(0, 1)).out
    assert sentence in " ".join(status.split())
    assert "1 table not captured" in " ".join(status.split())
    # without the source's URL the broker answers, to which capture reports at its next comparison
    kept = (pipeline.folder / "venus.toml").read_text()
    (pipeline.folder / "venus.toml").write_text(kept.replace(f'url = "{pipeline.source}"', "", 1))
    try:
        pipeline.until(
            lambda: sentence in " ".join(pipeline.venus("status", code=(0, 1)).out.split()), sentence, every_s=0.5
        )
    finally:
        (pipeline.folder / "venus.toml").write_text(kept)
    assert "is not captured any more" in pipeline.venus("check").out
    verified = pipeline.venus("verify")
    assert f"{name} is not compared: it is not captured any more (taken out" in " ".join(verified.err.split())
    assert "is not captured any more" in pipeline.venus("verify", "--table", "busy", code=2).err
    for words in (("pause", "busy"), ("resume", "busy"), ("resync", "busy")):
        assert "`venus install-triggers` takes it up again" in pipeline.venus(*words, code=3).err
    pipeline.targets["late"] = with_password(shop.server.create_database())
    pipeline.configure()
    loaded = pipeline.ask("migrate", "--target", "late")
    assert loaded["not_captured"] == [name]
    assert shop.run_at_target("SELECT count(*) FROM busy", "late") == shop.run_at_target("SELECT count(*) FROM busy")
    url = pipeline.targets.pop("late")
    pipeline.configure()
    pipeline.venus("forget", "--target", "late", "--yes")
    shop.server.drop_database(url)


def stop_between_transactions(shop: Shop, name: str) -> bool:
    """Stop a process; False if it has to continue first, because it would keep a lock on the file of SQLite."""
    process = shop.pipeline.running[name]
    process.send_signal(signal.SIGSTOP)
    file = shop.pipeline.folder / "app.db"
    if not file.exists():
        return True
    try:
        with closing(sqlite3.connect(file, timeout=1, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        process.send_signal(signal.SIGCONT)
        return False
    return True


def test_a_removal_that_was_killed_is_named_and_finished(shop: Shop) -> None:
    pipeline, name = shop.pipeline, f"{shop.namespace}.busy"
    pipeline.stop("sync")
    pipeline.start("capture", "sync", "--capture-only")
    pipeline.start("apply", "sync", "--apply-only", "--target", "main")
    wait_until_healthy(shop)
    # it is there and takes nothing
    pipeline.until(lambda: stop_between_transactions(shop, "capture"), "capture to stop without a lock", every_s=0.2)
    try:
        shop.run("UPDATE busy SET v = 'late' WHERE id = 1")
        pipeline.start("removal", "uninstall-triggers", "busy", "--wait", "60")
        pipeline.until(lambda: states(shop).get("busy") == "RELEASING", "the triggers to be gone", every_s=0.2)
        pipeline.kill("removal")
    finally:
        pipeline.running["capture"].send_signal(signal.SIGCONT)
    pipeline.wait_until_caught_up("main")
    assert shop.run_at_target("SELECT v FROM busy WHERE id = 1") == [("late",)]
    found = pipeline.status()["problems"]
    assert any(f"{name} is RELEASING" in p and f"`venus uninstall-triggers {name}` finishes" in p for p in found), found
    assert "is being taken out of capture" in pipeline.venus("pause", "busy", code=3).err
    assert pipeline.ask("uninstall-triggers", "busy")["released"] == [{"table": name, "left_out": 0}]
    wait_until_healthy(shop)
    assert states(shop) == {"busy": "RELEASED", "line": "ACTIVE"}


def test_an_uncaptured_table_is_left_out_and_named(shop: Shop) -> None:
    pipeline, name = shop.pipeline, f"{shop.namespace}.busy"
    wait_until_healthy(shop)
    pipeline.stop("sync")
    shop.run("UPDATE busy SET v = 'late' WHERE id = 1", "UPDATE line SET v = 'late' WHERE id = 1")
    said = " ".join(pipeline.venus("uninstall-triggers", name).out.split())
    assert f"{name} is not captured any more; 1 change in its log was left out" in said
    assert states(shop) == {"busy": "RELEASED", "line": "ACTIVE"}
    pipeline.start("sync", "sync")
    pipeline.until(lambda: shop.is_equal("line"), "line to be equal", every_s=0.2)
    wait_until_healthy(shop)
    pipeline.venus("install-triggers")
    pipeline.until(lambda: shop.is_equal("busy"), "busy to be equal", every_s=0.2)
    pipeline.ask("uninstall-triggers")
