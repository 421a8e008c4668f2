"""PostgreSQL to a SQLite file as an ordinary target: predicates, verify, repair, resync, quarantine (scenario 95)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases.postgres import Server
from tests.support.pipelines.pipeline import Pipeline
from tests.support.pipelines.target_story import open_story
from venus.adapters.dialects.sqlite.torture import COLUMNS as SQLITE_COLUMNS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def run_at_file(file: Path, statement: str) -> list[tuple[Any, ...]]:
    """Execute a statement as another program does."""
    with closing(sqlite3.connect(file, isolation_level=None, timeout=30)) as connection:
        return connection.execute(statement).fetchall()


def test_postgresql_to_sqlite_works(tmp_path: Path, postgres_server: Server) -> None:
    file = tmp_path / "copy.db"
    with open_story(tmp_path, postgres_server, f"sqlite:///{file}", partial(run_at_file, file)) as story:
        assert ") STRICT;" in story.load()
        assert story.refused == 2
        assert sum("SQLite stores another value for" in message for message in story.waiting) == 2
        story.change()
        story.damage()
        story.end()


def test_sqlite_to_sqlite_works(tmp_path: Path) -> None:
    source = tmp_path / "source.db"
    values = [(name, sql) for name, c in SQLITE_COLUMNS.items() for sql, _ in c.values]
    made = Pipeline(folder=tmp_path, source=f"sqlite:///{source}", targets={"edge": f"sqlite:///{tmp_path}/copy.db"})
    made.configure()
    with closing(sqlite3.connect(source, isolation_level=None, timeout=30)) as application, closing(made):
        spelled = ", ".join(f"{name} {c.type}" for name, c in SQLITE_COLUMNS.items())
        application.execute(f"CREATE TABLE torture (id INTEGER PRIMARY KEY, {spelled})")
        for number, (name, sql) in enumerate(values, 1):
            application.execute(f"INSERT INTO torture (id, {name}) VALUES ({number}, {sql})")
        made.ask("install-triggers")
        made.start_broker()
        assert made.ask("migrate", "--target", "edge")["rows"] == len(values)
        made.start("sync", "sync", "--target", "edge")
        application.execute("UPDATE torture SET c_text = 'changed' WHERE id = 1")
        application.execute("DELETE FROM torture WHERE id = 2")
        made.wait_until_caught_up("edge")

        made.venus("verify", "--target", "edge", "--leg", "all")
        assert run_at_file(tmp_path / "copy.db", "SELECT count(*), min(c_text) FROM torture WHERE id < 3") == [
            (1, "changed")
        ]
        assert made.stop("sync") == 0
