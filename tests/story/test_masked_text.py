"""Text of masked and dropped columns appears nowhere but where it is allowed, from the first load to a support bundle.

The source and the home have it. The target, a set below the border, and all output of processes and commands must not.
"""

from __future__ import annotations

import json
import re
import sqlite3
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.brokers import networks
from tests.support.brokers.feed import query
from tests.support.brokers.servers import business_status
from tests.support.databases.postgres import Server
from tests.support.masked_values import SECRET, mask_by_hand
from tests.support.pipelines.pipeline import Pipeline, with_password
from tests.support.ports import free_ports
from venus.cli.demo.servers import is_listening
from venus.masking.syntax import ColumnRule

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

PLANTED = "qzPlantedTextXq"
#: Text in the key, which the border leaves unmasked.
CODE = "qzPlantedCodeXq"
RULES = """\
"people.code" = "hmac"
"parcels.person" = "hmac"
"people.mail" = "hmac"
"people.note" = "drop"
"parcels.place" = "null"
"""
BELOW = '"people.mail" = "hmac"\n"people.note" = "null"\n"parcels.place" = "drop"\n'
LOWER = """\
[broker]
listen = "127.0.0.1:{grpc}"
http = "127.0.0.1:{http}"
data_dir = "lower/data"
free_bytes_min = 0
[cluster]
set = "lower"
tier = "access"
level = 1
upstream = ["127.0.0.1:{home}"]
"""


@pytest.fixture
def pipeline(tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    key = tmp_path / "masking.key"
    key.write_bytes(SECRET)
    key.chmod(0o600)
    for folder in ("events", "lower"):
        (tmp_path / folder).mkdir()
    target = postgres_server.create_database()
    made = Pipeline(
        folder=tmp_path,
        source=f"sqlite:///{tmp_path}/app.db",
        targets={"main": with_password(target)},
        target_options=f'masking_key_file = "{key}"\nnew_columns = "drop"\non_error = "quarantine"\n'
        f"[targets.main.columns]\n{RULES}",
    )
    made.configure()
    with (tmp_path / "venus.toml").open("a") as file:
        file.write(f'[cluster]\nset = "home"\nmasking_key_file = "{key}"\n[cluster.columns.main]\n{BELOW}')
        file.write(
            '[spark.conf]\n"spark.driver.memory" = "512m"\n"spark.eventLog.enabled" = true\n'
            f'"spark.eventLog.compress" = false\n"spark.eventLog.dir" = "{tmp_path}/events"\n'
        )
    try:
        yield made
    finally:
        made.close()
        postgres_server.drop_database(target)


def write(pipeline: Pipeline, *statements: str) -> None:
    with closing(sqlite3.connect(pipeline.folder / "app.db", timeout=60)) as source, source:
        source.execute("PRAGMA foreign_keys = ON")
        for statement in statements:
            source.execute(statement.replace("@", PLANTED).replace("#", CODE))


def start(pipeline: Pipeline) -> str:
    """Load the target, follow, and mirror at a set below; return that set's address."""
    write(
        pipeline,
        "PRAGMA journal_mode = WAL",
        "CREATE TABLE people (code TEXT PRIMARY KEY, mail TEXT, note TEXT, visits INTEGER)",
        "CREATE TABLE parcels (id INTEGER PRIMARY KEY, person TEXT REFERENCES people (code), place TEXT)",
        *(f"INSERT INTO people VALUES ('#{n}', '@{n}@mail', '@ note {n}', {n})" for n in range(40)),
        *(f"INSERT INTO parcels VALUES ({n}, '#{n}', '@ place {n}')" for n in range(40)),
    )
    pipeline.venus("install-triggers")
    pipeline.start("broker", "-v", "broker")
    pipeline.until(lambda: is_listening(pipeline.ports[0]), "the broker")
    pipeline.venus("migrate", "--target", "main")
    pipeline.start("sync", "-v", "sync")
    grpc, http = free_ports(2)
    (pipeline.folder / "lower" / "venus.toml").write_text(LOWER.format(grpc=grpc, http=http, home=pipeline.ports[0]))
    pipeline.start("lower", "-v", "broker", "-c", "lower/venus.toml")
    pipeline.until(lambda: is_listening(grpc), "the set below")
    return f"127.0.0.1:{grpc}"


def change(pipeline: Pipeline) -> None:
    """Insert, update and delete; alter the table; cause a refused row; resync."""
    write(
        pipeline,
        "INSERT INTO people VALUES ('#new', '@new', '@', 1), ('#gone', NULL, '@', 2)",
        "UPDATE people SET mail = '@changed', note = '@changed' WHERE code = '#3'",
        "DELETE FROM people WHERE code = '#gone'",
        "UPDATE parcels SET person = '#new', place = 'elsewhere' WHERE id = 5",
        "ALTER TABLE people ADD COLUMN phone TEXT",
        "UPDATE people SET phone = '@phone' WHERE code = '#4'",
    )
    pipeline.wait_until_caught_up("main")
    query(pipeline.targets["main"], "ALTER TABLE people ADD CONSTRAINT few CHECK (visits < 1000) NOT VALID")
    write(pipeline, "UPDATE people SET visits = 2000, mail = '@refused', note = '@refused' WHERE code = '#7'")
    pipeline.until(
        lambda: pipeline.ask("quarantine", "list", code=(0, 1))["quarantine"]["main"], "a refused row", every_s=0.5
    )
    pipeline.venus("resync", "parcels", "--target", "main")
    pipeline.wait_until_caught_up("main")
    pipeline.until(
        lambda: all(t["state"] == "ACTIVE" for t in pipeline.status()["targets"][0]["tables"]),
        "the resync",
        every_s=0.5,
    )


def compare(pipeline: Pipeline) -> None:
    """Damage rows of the target; find the damage, also by Spark, and repair it."""
    code = mask_by_hand(ColumnRule(mask="hmac"), "text", f"{CODE}9")
    query(
        pipeline.targets["main"],
        f"SET session_replication_role = replica; UPDATE people SET mail = 'other' WHERE code = '{code}';"
        " DELETE FROM people WHERE visits = 11",
    )
    for engine in ("local", "spark"):
        found = pipeline.ask("verify", "--target", "main", "--engine", engine, "--html", f"{engine}.html", code=1)
        assert sum(t["different"] for t in found["tables"]) >= 2, found
    pipeline.venus("verify", "--target", "main", "--repair", code=(0, 1))


def page_texts(pipeline: Pipeline, http: int) -> list[str]:
    found = []
    for path in ("/", "/status.json", "/history.json", "/metrics", "/health", "/alarms"):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{http}{path}", timeout=30) as answer:
                found.append(answer.read().decode())
        except urllib.error.HTTPError as unhealthy:  # a row is in quarantine
            found.append(unhealthy.read().decode())
    return found


def text_at(database: str) -> str:
    names = query(
        database,
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
        " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')",
    )
    rows = [str(query(database, f"SELECT t::text FROM {name} t")) for (name,) in names]
    # binary columns are shown in hexadecimal
    return "\n".join(rows) + "".join(
        bytes.fromhex(found).decode("latin-1") for row in rows for found in re.findall(r"x((?:[0-9a-f]{2})+)", row)
    )


def bundle_text(path: Path) -> str:
    with tarfile.open(path) as archive:
        return "".join(
            archive.extractfile(one).read().decode()  # type: ignore[union-attr]
            for one in archive.getmembers()
            if one.isfile()
        )


def files_with(folder: Path, text: str = PLANTED) -> list[str]:
    return [str(path) for path in sorted(folder.rglob("*")) if path.is_file() and text.encode() in path.read_bytes()]


def test_a_planted_text_appears_nowhere_after_masking(pipeline: Pipeline) -> None:
    below = start(pipeline)
    change(pipeline)
    compare(pipeline)
    networks.has(below, business_status(pipeline.broker).next_offset)
    said = {
        "status": json.dumps(pipeline.ask("status", code=(0, 1))) + pipeline.venus("status", code=(0, 1)).out,
        "quarantine": json.dumps(pipeline.ask("quarantine", "list", code=(0, 1))),
        "page": "".join(page_texts(pipeline, pipeline.ports[1])),
        "target": text_at(pipeline.targets["main"]),
    }
    pipeline.venus("support", "--log", "said.log", "-o", "bundle.tar.gz")
    said["bundle"] = bundle_text(pipeline.folder / "bundle.tar.gz")
    said["reports"] = "".join((pipeline.folder / f"{engine}.html").read_text() for engine in ("local", "spark"))
    for name in ("sync", "lower", "broker"):
        pipeline.stop(name)
    said["logs"] = pipeline.log.read_text()
    assert "mail (hmac)" in said["status"]
    assert {name for name, text in said.items() for planted in (PLANTED, CODE) if planted in text} == set()
    assert files_with(pipeline.folder / "events", "SparkListenerApplicationStart")
    assert files_with(pipeline.folder / "events") + files_with(pipeline.folder / "events", CODE) == []
    assert files_with(pipeline.folder / "lower", CODE)  # the key is there, so that the search can succeed
    assert files_with(pipeline.folder / "lower") == []
    # the text is there to be found; most broker files are compressed, and test_border.py reads their rows
    with closing(sqlite3.connect(pipeline.folder / "app.db")) as source:
        assert PLANTED in str(source.execute("SELECT mail, note, phone FROM people").fetchall())
