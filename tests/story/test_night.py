"""docs/how-to/night.md row by row: the test causes the problem, status shows the page's text, its commands end it.

The commands are read from the page; SQLite to an embedded PostgreSQL.
"""

from __future__ import annotations

import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.brokers.feed import query
from tests.support.databases.postgres import Server
from tests.support.pipelines.pipeline import Pipeline
from venus.adapters.dialects.registry import open_source
from venus.config import load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "night.md").read_text()


def rows() -> list[tuple[str, list[list[str]]]]:
    """Return each row's status text and its `venus` commands, for the rows that have commands."""
    cells = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ")][1:]
    typed = [(says, re.findall(r"`venus ([^`]+)`", what)) for says, what, _ in cells]
    return [(says, [code.split() for code in found]) for says, found in typed if found]


def row(words: str) -> list[list[str]]:
    """Return the commands of the row with this text."""
    (found,) = [commands for says, commands in rows() if words in says]
    return found


class Night:
    """The actions of the person on call."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.shown: set[tuple[str, ...]] = set()

    def write(self, *statements: str) -> None:
        """Execute statements as the application."""
        with closing(sqlite3.connect(self.pipeline.folder / "app.db", timeout=30)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def wait_for_alarm(self, sentence: str) -> None:
        """Wait until `venus status` shows this text."""
        self.pipeline.until(
            lambda: sentence in " ".join(self.pipeline.venus("status", code=(0, 1)).out.split()), sentence, every_s=0.5
        )

    def wait_until_well(self, sentence: str) -> None:
        """Wait until `venus status` no longer shows this text, and all is well."""

        def is_well() -> bool:
            answer = self.pipeline.venus("status", code=(0, 1))
            return answer.code == 0 and sentence not in answer.out

        self.pipeline.until(is_well, f"{sentence} to be over", every_s=0.2)

    def run_command(self, words: list[str], code: int | tuple[int, ...] = 0, **meant: str) -> str:
        """Run a command of the page, with real names in place of its placeholders."""
        spelled = [meant.get(word, word) for word in words]
        self.shown.add(tuple(words))
        return self.pipeline.venus(*spelled, code=code).out

    def start_service(self, words: list[str]) -> None:
        """Start the service that a command runs."""
        self.shown.add(tuple(words))
        self.pipeline.start(words[0], *words)


@pytest.fixture
def night(tmp_path: Path, postgres_server: Server) -> Iterator[Night]:
    urls = {name: postgres_server.create_database() for name in ("main", "gone")}
    pipeline = Pipeline(folder=tmp_path, source=f"sqlite:///{tmp_path}/app.db", targets=urls)
    pipeline.configure()
    made = Night(pipeline)
    made.write(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, v TEXT)",
        "PRAGMA journal_mode = WAL",
        "INSERT INTO orders VALUES (1, 'one')",
    )
    pipeline.venus("install-triggers")
    pipeline.start_broker()
    for name in urls:
        pipeline.venus("migrate", "--target", name)
    pipeline.targets.pop("gone")  # a target that never comes back
    pipeline.configure()
    pipeline.start("sync", "sync")
    try:
        yield made
    finally:
        pipeline.close()
        for url in urls.values():
            postgres_server.drop_database(url)


def test_every_row_of_the_page_works(night: Night) -> None:
    pipeline, target = night.pipeline, night.pipeline.targets["main"]
    night.wait_until_well("UNHEALTHY")
    (forget,) = row("too little free space")
    assert "main/gone" in pipeline.venus("status", "--json", code=(0, 1)).out
    night.run_command(forget, NAME="gone")
    assert "main/gone" not in pipeline.venus("status", "--json", code=(0, 1)).out

    pipeline.kill("sync")
    night.wait_for_alarm("capture is not connected")
    night.wait_for_alarm("apply is not connected")
    (sync,) = row("capture is not connected")
    night.start_service(sync)
    night.wait_until_well("adapter is connected")

    pipeline.kill("broker")
    night.wait_for_alarm("UNREACHABLE")
    assert "broker" in row("the broker cannot be reached")[0]
    night.write("INSERT INTO orders VALUES (2, 'while it was away')")
    night.start_service(row("the broker cannot be reached")[0])
    night.wait_until_well("UNREACHABLE")
    pipeline.wait_until_caught_up("main")

    query(target, "ALTER TABLE orders ADD CONSTRAINT short CHECK (length(v) < 20)")
    night.write("INSERT INTO orders VALUES (3, 'longer than the constraint lets it be')")
    night.wait_for_alarm("orders is HALTED")
    listed, retry = row("`TABLE is HALTED` at a target")
    assert "short" in night.run_command(listed, code=1)
    query(target, "ALTER TABLE orders DROP CONSTRAINT short")
    night.run_command(retry)
    night.wait_until_well("HALTED")

    with closing(sqlite3.connect(pipeline.folder / "app.db", timeout=60)) as connection, connection:
        (trigger,) = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'orders'"
            " AND sql LIKE '%INSERT ON%' LIMIT 1"
        ).fetchone()
        connection.execute(f'DROP TRIGGER "{trigger}"')
        connection.execute("INSERT INTO orders VALUES (4, 'seen by none')")
    install, resync = row("`TABLE is RESYNC`")
    assert "orders" in night.run_command(install)
    night.wait_for_alarm("orders is RESYNC")
    night.run_command(resync, TABLE="main.orders")
    night.wait_until_well("RESYNC")
    pipeline.until(lambda: query(target, "SELECT v FROM orders WHERE id = 4") == [("seen by none",)], "row 4")

    finish_a_removal(night, install)

    (watch,) = row("a target is behind, and nothing is wrong")
    before = pipeline.log.read_text().count("OK: main is healthy")
    night.start_service(watch)
    pipeline.until(lambda: pipeline.log.read_text().count("OK: main is healthy") >= before + 2, "two looks")
    watching = pipeline.running.pop("status")
    watching.send_signal(signal.SIGINT)
    assert watching.wait(60) in (130, -signal.SIGINT)


def finish_a_removal(night: Night, install: list[str]) -> None:
    """Leave a state as after a killed removal, then follow the page."""
    with closing(open_source(load(night.pipeline.folder / "venus.toml"))) as source:
        source.installer.release(
            [t.schema.table_id for t in source.registry.read_registered_tables() if t.schema.name == "orders"]
        )
    night.wait_for_alarm("orders is RELEASING")
    (finish,) = row("`TABLE is RELEASING`")
    night.run_command(finish, TABLE="main.orders")
    night.wait_for_alarm("main.orders is not captured any more")
    night.run_command(install)
    night.wait_until_well("RELEASING")


def test_forbidden_actions_are_noticed_and_repaired_without_affecting_the_application(
    night: Night,
) -> None:
    verify, repair, uninstall = ["verify"], ["verify", "--repair"], ["uninstall-triggers"]
    for words in (verify, repair, uninstall):
        assert f"`venus {' '.join(words)}`" in PAGE
    night.wait_until_well("UNHEALTHY")
    query(night.pipeline.targets["main"], "UPDATE orders SET v = 'by hand'")
    night.run_command(verify, code=1)
    night.run_command(repair, code=(0, 1))
    night.pipeline.until(
        lambda: query(night.pipeline.targets["main"], "SELECT v FROM orders") == [("one",)], "the repair", every_s=0.5
    )
    night.run_command(verify)

    assert night.pipeline.stop("sync") == 0
    night.run_command(uninstall)
    night.write("INSERT INTO orders VALUES (2, 'the application continues')")
    with closing(sqlite3.connect(night.pipeline.folder / "app.db")) as connection:
        assert connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'venus%'").fetchall() == []


def test_every_row_of_the_page_is_tested() -> None:
    asked = re.findall(r'row\("([^"]+)"\)', Path(__file__).read_text())

    assert len(rows()) >= 6
    assert [says for says, _ in rows() if not any(words in says for words in asked)] == []
