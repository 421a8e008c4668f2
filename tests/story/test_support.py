"""`venus support` of a failing pipeline: planted secrets and row values appear nowhere in the bundle."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import PASSWORD, QUOTED, Pipeline
from tests.support.pipelines.story_places import sqlite_pipeline
from venus.cli.demo.servers import is_listening

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

HOOK, ARGUMENT = "planted-hook", "planted-argument"
ROWS = ("Rosalind-4711", "Bad-Value-0815", "Fine-Value-1234")


@pytest.fixture
def pipeline(tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    with sqlite_pipeline(tmp_path, postgres_server) as made:
        with (tmp_path / "venus.toml").open("a") as file:
            file.write(
                f'[alarms.to.chat]\nwebhook = "http://127.0.0.1:9/{HOOK}"\n'
                f'[alarms.to.pager]\ncommand = "true --token {ARGUMENT}"\n'
                f'[spark.conf]\n"spark.hadoop.fs.key" = "{ARGUMENT}"\n'
            )
        yield made


def bundle(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        files = [member for member in archive.getmembers() if member.isfile()]
        assert len({member.name.split("/")[0] for member in files}) == 1
        return {m.name.partition("/")[2]: archive.extractfile(m).read().decode() for m in files}  # type: ignore[union-attr]


def test_a_bundle_has_everything_but_rows_and_secrets(pipeline: Pipeline) -> None:
    with closing(sqlite3.connect(pipeline.folder / "app.db", timeout=60)) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE people (name TEXT PRIMARY KEY, v TEXT)")
        db.execute("INSERT INTO people VALUES (?, ?)", (ROWS[0], ROWS[2]))
        db.execute("CREATE TABLE unfit (name TEXT PRIMARY KEY, v TEXT)")
    pipeline.venus("install-triggers")
    pipeline.start("broker", "-v", "--log-format", "json", "broker")
    pipeline.until(lambda: is_listening(pipeline.ports[0]), "the broker")
    pipeline.venus("migrate", "--target", "main")
    pipeline.start("sync", "-v", "sync")
    with closing(psycopg2.connect(libpq(pipeline.targets["main"]))) as target, target, target.cursor() as cursor:
        cursor.execute("ALTER TABLE people ADD CHECK (v <> %s)", (ROWS[1],))
    with closing(sqlite3.connect(pipeline.folder / "app.db", timeout=60)) as db, db:
        db.execute("INSERT INTO people VALUES (?, ?)", (f"{ROWS[0]}-2", ROWS[1]))
        db.execute("INSERT INTO unfit VALUES (?, CAST(x'ff' AS TEXT))", (ROWS[0],))

    def have_halted() -> bool:
        problems = pipeline.ask("status", code=(0, 1))["problems"]
        return sum(f"{table} is HALTED" in problem for table in ("people", "unfit") for problem in problems) == 2

    pipeline.until(have_halted, "two tables to halt", every_s=1.0)
    assert ROWS[0] in pipeline.log.read_text() + str(pipeline.ask("status", code=1)), "nothing is there to be found"

    done = pipeline.ask("support", "--log", "said.log", "-o", "bundle.tar.gz")

    path = pipeline.folder / "bundle.tar.gz"
    assert path.stat().st_mode & 0o077 == 0
    found = bundle(path)
    assert done["missing"] == {}
    assert found.keys() >= {
        "versions.json",
        "configuration.json",
        "status.json",
        "broker.json",
        "metrics.txt",
        "logs/0-said.log",
        "missing.txt",
    }
    everything = "".join(found.values())
    for planted in (PASSWORD, QUOTED, HOOK, ARGUMENT, *ROWS):
        assert planted not in everything, planted
        assert planted.encode() not in path.read_bytes()
    assert "table_halted" in json.loads(found["broker.json"])["rules"]
    assert any("people is HALTED" in problem for problem in json.loads(found["status.json"])["problems"])
    assert "venus_next_offset" in found["metrics.txt"]
    assert json.loads(found["configuration.json"])["alarms"]["to"]["pager"]["command"] == "true ***"
    assert '"stage": "committed"' in found["logs/0-said.log"]


def test_parts_that_are_down_are_named_and_the_rest_is_included(pipeline: Pipeline) -> None:
    done = pipeline.ask("support", "-o", "dead.tar.gz")

    assert set(done["missing"]) == {"broker.json", "metrics.txt"}
    found = bundle(pipeline.folder / "dead.tar.gz")
    assert "broker.json: " in found["missing.txt"]
    assert "status.json" in found
    again = pipeline.venus("support", "-o", "dead.tar.gz", code=2)
    assert "dead.tar.gz: File exists" in again.err
    assert "no such file" in pipeline.venus("support", "--log", "nowhere.log", code=2).err
