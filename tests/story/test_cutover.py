"""The last day of a migration as an operator experiences it: refused, rehearsed, done, undone (scenario 41).

tests/integration/cutover/test_sources.py tests the differences between sources.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg2
import pytest

from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import Pipeline, with_password
from venus.adapters.targets.relational.control import pause, request_resync, resume
from venus.adapters.targets.relational.full_sync import full_sync
from venus.config import load
from venus.errors import Refused

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

QUIET = ("--quiet", "0.5", "--wait", "120")

_SQLITE = """
CREATE TABLE customer (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL COLLATE NOCASE UNIQUE,
    credit DECIMAL(10,2) DEFAULT 0 CHECK (credit >= 0), since TIMESTAMP DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE orders (no INTEGER PRIMARY KEY, customer INT REFERENCES customer (id) ON DELETE CASCADE, what TEXT);
CREATE INDEX orders_late ON orders (no DESC) WHERE what IS NOT NULL;
INSERT INTO customer (name, credit) VALUES ('ann', 12.5), ('bob', 3), ('carl', NULL);
INSERT INTO orders VALUES (10, 1, 'a'), (11, 2, NULL);
"""


@pytest.fixture
def target(postgres_server: Server) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


def start(folder: Path, source: str, target: str) -> Pipeline:
    """Bring a source to a target, and keep `venus sync` running."""
    pipeline = Pipeline(folder=folder, source=source, targets={"main": with_password(target)})
    pipeline.configure()
    pipeline.ask("install-triggers")
    pipeline.start_broker()
    pipeline.ask("migrate", "--target", "main")
    pipeline.start("sync", "sync", "--target", "main")
    return pipeline


def query(url: str, text: str) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(libpq(url))) as connection:
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute(text)
        return cursor.fetchall() if cursor.description else []


def test_a_cutover_from_sqlite_with_every_obstacle(tmp_path: Path, target: str) -> None:
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file, isolation_level=None, timeout=60)) as app:
        app.execute("PRAGMA foreign_keys = on")
        app.executescript(_SQLITE)
        pipeline = start(tmp_path, f"sqlite:///{file}", target)
        try:
            app.execute("INSERT INTO customer (name) VALUES ('drawn and gone')")
            app.execute("DELETE FROM customer WHERE id = 4")
            pipeline.wait_until_caught_up("main")
            check_refusal(pipeline, target)
            cut_over(pipeline, target)
            app.execute("INSERT INTO orders VALUES (12, 3, 'late')")
            check_late_writes_back(pipeline, target)
            assert pipeline.stop("sync") == 0
        finally:
            pipeline.close()


def check_refusal(pipeline: Pipeline, target: str) -> None:
    """Check that each obstacle is listed with the command that removes it, and that nothing has changed."""
    settings = load(pipeline.folder / "venus.toml")
    pause(settings, "main", ["orders"])
    said = pipeline.venus("cutover", "--target", "main", *QUIET, code=3).err
    assert "main.orders is PAUSED at the target" in said
    assert "venus resume main.orders --target main" in said
    resume(settings, "main", ["orders"])
    pipeline.until(lambda: not any("PAUSED" in p for p in pipeline.status()["problems"]), "the table to continue")

    query(target, "UPDATE orders SET what = 'b' WHERE no = 10")
    said = ""

    def try_cutover() -> bool:
        nonlocal said
        said = pipeline.venus("cutover", "--target", "main", *QUIET, code=3).err
        # the broker learns of it a moment later, and apply reopens its stream meanwhile
        return "PAUSED" not in said and "no process applies them" not in said

    pipeline.until(try_cutover, "the broker to hear that the table continues")
    assert "main.orders is not the same everywhere" in said
    assert "venus verify" in said
    assert query(target, "SELECT count(*) FROM venus.cutover") == [(0,)]
    query(target, "UPDATE orders SET what = 'a' WHERE no = 10")


def cut_over(pipeline: Pipeline, target: str) -> None:
    """Rehearse the cut-over, execute it, write as the application, and repeat it: the repetition changes nothing."""
    rehearsal = pipeline.ask("cutover", "--target", "main", "--rehearse", *QUIET)
    assert (rehearsal["blocks"], rehearsal["certificate"]["equal"]) == ([], True)
    found = pipeline.ask("cutover", "--target", "main", *QUIET)["certificate"]
    assert [t["hash"] for t in found["tables"]] == [t["hash"] for t in rehearsal["certificate"]["tables"]]
    assert {t["form"] for t in found["tables"]} == {"as it travels"}
    assert json.loads((pipeline.folder / "cutover-main.json").read_text()) == found
    assert "main.orders" in (pipeline.folder / "cutover-main.txt").read_text()

    # numbers continue after those that the source has assigned, checks and unique keys are enforced
    assert query(target, "INSERT INTO customer (name) VALUES ('new') RETURNING id") == [(5,)]
    with pytest.raises(psycopg2.errors.CheckViolation):
        query(target, "INSERT INTO customer (name, credit) VALUES ('x', -1)")
    with pytest.raises(psycopg2.errors.UniqueViolation):
        query(target, "INSERT INTO customer (name) VALUES ('ANN')")

    again = pipeline.ask("cutover", "--target", "main", *QUIET)
    assert (again["already"], again["certificate"]) == (True, found)
    settings = load(pipeline.folder / "venus.toml")
    for command in (resume, full_sync, lambda s, name: request_resync(s, name, "*")):
        with pytest.raises(Refused, match="the application's own"):
            command(settings, "main")


def read_cutover_status(pipeline: Pipeline) -> Any:
    """Return the broker's state of the cut-over, and its alarms."""
    with urlopen(f"http://127.0.0.1:{pipeline.ports[1]}/status.json", timeout=30) as answer:
        status = json.load(answer)
    (consumer,) = status["businesses"][0]["consumers"]
    return consumer.get("reported", {}).get("report", {}).get("cut_over"), [alarm["text"] for alarm in status["raised"]]


def check_late_writes_back(pipeline: Pipeline, target: str) -> None:
    """Check that the target counts as cut over and late writes are reported; then undo the cut-over."""
    pipeline.until(lambda: read_cutover_status(pipeline)[0], "the broker to hear of the cut-over")
    assert read_cutover_status(pipeline)[1] == []
    pipeline.until(lambda: any("1 change of" in p for p in pipeline.status()["problems"]), "the late write to be seen")
    assert query(target, "SELECT count(*) FROM orders") == [(2,)]
    (undecided,) = pipeline.ask("verify", "--wait-s", "0.2", code=1)["undecided"]
    assert undecided["reason"].startswith("the target was cut over at ")

    said = pipeline.venus("cutover", "--target", "main", "--undo", code=3).err
    assert "public.customer has been written to since the cut-over" in said
    query(target, "DELETE FROM customer WHERE id = 5")
    pipeline.ask("cutover", "--target", "main", "--undo")
    pipeline.wait_until_caught_up("main")
    assert query(target, "SELECT count(*) FROM orders") == [(3,)]
    pipeline.ask("verify")  # the last comparison ran before the undo, and found a difference
    pipeline.until(lambda: read_cutover_status(pipeline) == ("", []), "nothing to be left to do")
