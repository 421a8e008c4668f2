"""`venus listen` and venus.client beside a pipeline: used from a shell, and in a program of ten lines."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases.postgres import Server
from tests.support.pipelines.pipeline import Pipeline
from venus.client import connect

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture
def pipeline(tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    url = postgres_server.create_database()
    made = Pipeline(folder=tmp_path, source="sqlite:///shop.db", targets={"main": url})
    execute(
        made,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, region TEXT, amount INTEGER)",
        "INSERT INTO orders VALUES (1, 'EU', 100), (2, 'US', 200), (3, 'EU', 50)",
    )
    made.configure()
    made.venus("install-triggers")
    made.start_broker()
    made.venus("migrate")
    made.start("sync", "sync")
    yield made
    made.close()
    postgres_server.drop_database(url)


def execute(pipeline: Pipeline, *statements: str) -> None:
    with closing(sqlite3.connect(pipeline.folder / "shop.db", timeout=30)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def lines(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Return the changes that were printed to the log."""
    return [json.loads(line) for line in pipeline.log.read_text().splitlines() if line.startswith('{"operation"')]


EU = "region = 'EU' and amount >= 100"


def test_venus_listen_prints_changes_and_continues_later(pipeline: Pipeline) -> None:
    pipeline.start("listen", "listen", "orders", EU)
    pipeline.until(lambda: lines(pipeline), "the first row")
    execute(pipeline, "UPDATE orders SET amount = 300 WHERE id = 2", "UPDATE orders SET region = 'US' WHERE id = 1")
    pipeline.until(lambda: len(lines(pipeline)) == 2, "the row that moves out")
    first, gone = lines(pipeline)
    assert (first["operation"], first["row"]) == ("insert", {"id": 1, "region": "EU", "amount": 100})
    assert (gone["operation"], gone["row"], gone["table"]) == ("delete", {"id": 1}, "main.orders")
    process = pipeline.running.pop("listen")
    process.send_signal(signal.SIGINT)
    process.wait(60)
    assert f"--from {gone['position']} continues here" in pipeline.log.read_text()

    execute(pipeline, "INSERT INTO orders VALUES (4, 'EU', 400)")
    pipeline.start("again", "listen", "orders", EU, "--from", gone["position"], "--column", "amount")
    pipeline.until(lambda: len(lines(pipeline)) == 3, "what was missed")
    assert lines(pipeline)[2]["row"] == {"id": 4, "amount": 400}
    pipeline.kill("again")


def test_a_predicate_that_cannot_be_evaluated_is_refused_with_its_position(pipeline: Pipeline) -> None:
    answer = pipeline.venus("listen", "orders", "amount * 2 > 5", code=2)
    assert "character" in answer.err
    assert "did you mean main.orders" in pipeline.venus("listen", "main.ordres", code=3).err


def test_ten_lines_of_python_get_snapshot_changes_and_position(pipeline: Pipeline) -> None:
    with connect(pipeline.broker) as broker:
        (rows,) = broker.snapshot("orders", where="region = 'EU'")
        assert rows.column("id").to_pylist() == [1, 3]
        for batch in broker.changes("orders", where="region = 'EU'", start="snapshot", group="mailer"):
            if batch.position is not None:
                batch.acknowledge()
                break
        execute(pipeline, "UPDATE orders SET amount = 51 WHERE id = 3")
    with connect(pipeline.broker) as broker:  # a new process, for which the broker has kept the position
        batch = next(batch for batch in broker.changes("orders", where="region = 'EU'", group="mailer") if len(batch))
        assert batch.to_arrow().select(["id", "amount", "_operation"]).to_pylist() == [
            {"id": 3, "amount": 51, "_operation": "update"}
        ]
