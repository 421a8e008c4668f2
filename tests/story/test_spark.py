"""Loading by Spark as a user runs it: without preparation, with an unreachable source, without output of the JVM."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.brokers.feed import query
from tests.support.databases.postgres import Server
from tests.support.pipelines.pipeline import PASSWORD, QUOTED, Pipeline, with_password

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

ROWS = 3000
SPARK = """
[spark.conf]
"spark.driver.memory" = "512m"
"spark.eventLog.enabled" = true
"spark.eventLog.compress" = false
"spark.eventLog.dir" = "{events}"
"""
#: A URL of a machine that does not exist.
AWAY = {"VENUS_SOURCE__URL": "postgresql://venus@127.0.0.1:1/gone"}
EVERYTHING = "SELECT array_agg(i::text ORDER BY id) FROM items i"


@pytest.fixture
def pipeline(tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop, shop:
        shop.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, label TEXT, amount INTEGER)")
        shop.executemany("INSERT INTO items VALUES (?, ?, ?)", [(n, f"label {n}", n % 7) for n in range(ROWS)])
    urls = {name: postgres_server.create_database() for name in ("main", "second")}
    made = Pipeline(
        folder=tmp_path,
        source=f"sqlite:///{tmp_path}/shop.db",
        targets={name: with_password(url) for name, url in urls.items()},
    )
    made.configure()
    (tmp_path / "events").mkdir()
    with (tmp_path / "venus.toml").open("a") as file:
        file.write(SPARK.format(events=tmp_path / "events"))
    made.venus("install-triggers")
    made.start_broker()
    made.venus("migrate", "--target", "main", "--engine", "local")
    try:
        yield made
    finally:
        made.close()
        for url in urls.values():
            postgres_server.drop_database(url)


def test_a_target_is_loaded_by_spark_while_the_source_is_away(pipeline: Pipeline) -> None:
    answer = pipeline.venus("migrate", "--target", "second", "--engine", "spark", environ=AWAY)

    lines = answer.err.splitlines()
    assert "the source is unreachable" in lines[0]
    assert lines[1] == "Spark moves the rows (--engine spark)"
    assert all(line.startswith("loading target second: ") for line in lines[2:]), lines
    assert answer.out.splitlines()[-1].startswith(f"target second: {ROWS:,} rows in ")
    assert query(pipeline.targets["second"], EVERYTHING) == query(pipeline.targets["main"], EVERYTHING)
    events = "".join(path.read_text() for path in (pipeline.folder / "events").rglob("*") if path.is_file())
    assert "SparkListenerTaskEnd" in events
    for secret in (PASSWORD, QUOTED):
        assert secret not in events
    assert not list((pipeline.folder / "state").rglob("*.log"))  # a session without errors leaves no log

    again = pipeline.ask("migrate", "--target", "second", "--engine", "spark")
    assert again["already_loaded"]  # reported at once, without starting Spark


@pytest.mark.slow
def test_a_load_is_submitted_to_a_cluster(pipeline: Pipeline) -> None:
    submit = ("spark", "submit", "--master", "local[2]", "--")
    answer = pipeline.venus(*submit, "migrate", "--target", "second", "--json", environ=AWAY)

    report = json.loads(answer.out[answer.out.index("{") :])
    assert (report["engine"], report["rows"]) == ("spark", ROWS)
    assert query(pipeline.targets["second"], EVERYTHING) == query(pipeline.targets["main"], EVERYTHING)
    refused = pipeline.venus(*submit, "migrate", "--target", "third", code=2)
    assert "no target named 'third'" in refused.out
    for log in (pipeline.folder / "state").rglob("*.log"):
        assert str(log) in refused.err
        log.unlink()


@pytest.mark.slow
def test_the_check_reports_the_parts_of_spark(pipeline: Pipeline) -> None:
    found = pipeline.ask("spark", "check")

    assert found["master"] == "local[2,4]"
    assert found["wrong"] == []
    assert {worker["missing"] == [] for worker in found["workers"]} == {True}
