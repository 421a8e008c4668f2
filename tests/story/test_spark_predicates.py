"""A target with predicates that Spark loads, follows and compares, as an operator runs it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.feed import query
from tests.support.databases.postgres import Server
from tests.support.pipelines.pipeline import Pipeline, with_password
from venus.adapters.targets.registry import open_target
from venus.config import load

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("executors_leave_nothing"),
]

ROWS = 2000
WHERE = "region = 'EU' and amount >= 100 and day < '2026-02-01'"
NEXT = "region in ('US', 'eu') and amount between 50 and 150"
COLUMNS = "id, region, amount, day"


@pytest.fixture
def pipeline(tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    url = postgres_server.create_database()
    made = Pipeline(folder=tmp_path, source=f"sqlite:///{tmp_path}/app.db", targets={"main": with_password(url)})
    made.environ = {"VENUS_SPARK__STAGE_ROWS_MIN": "50", "VENUS_SPARK__BATCH_ROWS_MAX": "1000"}
    configure(made, WHERE)
    write(
        made,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, region TEXT, amount DECIMAL(9,2), day DATE)",
        "CREATE TABLE whole (id INTEGER PRIMARY KEY, v TEXT)",
        "INSERT INTO whole VALUES (1, 'a'), (2, NULL)",
        f"{numbers(ROWS)} INSERT INTO orders SELECT i, {REGION}, {AMOUNT}, {DAY} FROM n",
    )
    try:
        yield made
    finally:
        for log in (tmp_path / "state").rglob("spark-*.log"):
            log.unlink()  # a session that is stopped leaves its log
        made.close()
        postgres_server.drop_database(url)


REGION = "CASE i % 5 WHEN 0 THEN 'EU' WHEN 1 THEN 'US' WHEN 2 THEN 'eu' WHEN 3 THEN NULL ELSE 'EU' END"
AMOUNT = "CASE i % 7 WHEN 0 THEN NULL ELSE (i % 200) + 0.25 END"
DAY = "CASE i % 11 WHEN 0 THEN NULL ELSE date('2026-01-01', (i % 40) || ' days') END"


def numbers(last: int) -> str:
    return f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {last})"


def configure(pipeline: Pipeline, where: str) -> None:
    pipeline.target_options = f'[targets.main.where]\norders = "{where}"\n'
    pipeline.configure()
    with (pipeline.folder / "venus.toml").open("a") as file:
        file.write('[spark.conf]\n"spark.driver.memory" = "512m"\n')


def write(pipeline: Pipeline, *statements: str) -> None:
    with closing(sqlite3.connect(pipeline.folder / "app.db", timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for statement in statements:
            connection.execute(statement)
        connection.execute("COMMIT")


def run_at_source(pipeline: Pipeline, where: str) -> list[Any]:
    with closing(sqlite3.connect(pipeline.folder / "app.db")) as connection:
        found = connection.execute(f"SELECT {COLUMNS} FROM orders WHERE {where} ORDER BY id").fetchall()
    return [(i, region, float(amount), day) for i, region, amount, day in found]


def run_at_target(pipeline: Pipeline) -> list[Any]:
    found = query(pipeline.targets["main"], f"SELECT {COLUMNS}::text FROM orders ORDER BY id")
    return [(int(i), region, float(amount), day) for i, region, amount, day in found]


def check(pipeline: Pipeline, where: str) -> None:
    wanted = run_at_source(pipeline, where)
    assert run_at_target(pipeline) == wanted
    assert wanted
    whole = query(pipeline.targets["main"], "SELECT count(*) FROM whole")
    assert [int(n) for (n,) in whole] == [2]


def is_settled(pipeline: Pipeline) -> bool:
    found = open_target(load(pipeline.folder / "venus.toml"), "main").read_view()
    return all(t.predicate_before is None and t.predicate_configured is None for t in found.tables)


def move_rows(pipeline: Pipeline, seed: int) -> None:
    """Move many rows into and out of the range, change keys, and delete rows."""
    write(
        pipeline,
        f"UPDATE orders SET region = CASE region WHEN 'EU' THEN 'US' ELSE 'EU' END WHERE id % 3 = {seed % 3}",
        f"UPDATE orders SET amount = NULL WHERE id % 17 = {seed}",
        f"DELETE FROM orders WHERE id % 19 = {seed}",
        f"UPDATE orders SET day = NULL WHERE id % 23 = {seed}",
        f"UPDATE orders SET id = -id WHERE id % 13 = {seed}",
    )
    write(pipeline, f"UPDATE orders SET amount = 120 WHERE id % 29 = {seed}")


def test_spark_applies_predicates(pipeline: Pipeline) -> None:
    pipeline.venus("install-triggers")
    pipeline.start_broker()
    loaded = pipeline.ask("migrate", "--target", "main", "--engine", "spark")
    assert loaded["engine"] == "spark"
    check(pipeline, WHERE)

    pipeline.start("sync", "sync", "--engine", "spark", "--json")
    for seed in range(3):
        move_rows(pipeline, seed)
        pipeline.wait_until_caught_up("main")
        check(pipeline, WHERE)
    assert pipeline.stop("sync") == 0

    configure(pipeline, NEXT)
    pipeline.start("sync", "sync", "--engine", "spark", "--json")
    move_rows(pipeline, 3)
    pipeline.until(lambda: is_settled(pipeline), "the new predicate")
    move_rows(pipeline, 4)
    pipeline.wait_until_caught_up("main")
    check(pipeline, NEXT)

    for leg in ("ends", "all"):
        same = pipeline.ask("verify", "--engine", "spark", "--leg", leg)
        assert same["verdict"] == "same", same
    ((away,), *_) = query(pipeline.targets["main"], "SELECT max(id) + 100000 FROM orders")
    outside = run_at_source(pipeline, "region = 'EU' and amount is not null")[0][0]
    for key in (away, outside):
        query(pipeline.targets["main"], f"INSERT INTO orders (id, region, amount) VALUES ({key}, 'US', 100)")
    found = pipeline.ask("verify", "--engine", "spark", "--repair")
    planted = {(str(away), "extra", "apply"), (str(outside), "extra", "apply")}
    assert {(d["key"]["id"], d["kind"], d["fault"]) for d in found["findings"]} == planted
    assert (found["verdict"], found["repair"]["left"]) == ("repaired", [])
    check(pipeline, NEXT)
    assert pipeline.ask("verify", "--engine", "spark")["verdict"] == "same"
