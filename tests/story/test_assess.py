"""The forecast of `venus assess` is compared with what then happens (scenario 78).

Rows must be exact, and the forecast of the broker's disk is an upper limit. Time has a tolerance, because the forecast
is for an idle machine. A piece of work, measured in processor and in elapsed time, shows how busy the machine is; the
tolerance is a factor of TIME_FACTOR beyond that.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.databases.postgres import Server
from tests.support.pipelines.pipeline import Pipeline, slowdown_by_others
from venus.cli.demo.shop import build_shop
from venus.cli.demo.story import largest_folder_bytes

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

#: Factor between forecast and duration, either way, beyond the machine's other load.
TIME_FACTOR = 1.5
#: The forecast of the disk is an upper limit: rows compress, and loaded rows leave the log.
DISK_FACTOR = 8.0


@pytest.fixture
def pipeline(tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    url = postgres_server.create_database()
    made = Pipeline(folder=tmp_path, source="sqlite:///shop.db", targets={"main": url})
    made.configure()
    yield made
    made.close()
    postgres_server.drop_database(url)


@pytest.mark.slow
def test_the_forecast_is_right(pipeline: Pipeline) -> None:
    pipeline.new_interpreters = True  # the forecast includes the import of modules
    rows = build_shop(pipeline.folder / "shop.db", customers=10_000, products=500, orders=40_000)
    stood_at = (pipeline.folder / "shop.db").stat().st_mtime_ns
    found = pipeline.ask("assess", "--html", "assessment.html")
    page = (pipeline.folder / "assessment.html").read_text()
    assert all(table["table"] in page for table in found["tables"])
    assert found["refused"] == 0
    assert found["forecast"]["rows"] == rows
    assert {t["table"]: t["rows_counted"] for t in found["tables"]}["main.orders"] is True
    assert (pipeline.folder / "shop.db").stat().st_mtime_ns == stood_at
    before = slowdown_by_others()
    pipeline.ask("install-triggers")
    pipeline.start_broker()
    started = time.monotonic()
    loaded = pipeline.ask("migrate", "--target", "main", "--engine", "local")
    seconds = time.monotonic() - started
    crowded = max(before, slowdown_by_others())
    forecast = found["forecast"]["fill_seconds"]
    disk = largest_folder_bytes([pipeline.folder / "data"])

    assert loaded["rows"] == rows
    assert forecast / TIME_FACTOR <= seconds <= forecast * crowded * TIME_FACTOR, (forecast, seconds, crowded)
    bound = found["forecast"]["broker_bytes"]
    assert disk <= bound <= disk * DISK_FACTOR, (disk, bound)


def test_each_refusal_has_a_remedy_that_works(pipeline: Pipeline) -> None:
    build_shop(pipeline.folder / "shop.db", customers=50, products=20, orders=80)
    with closing(sqlite3.connect(pipeline.folder / "shop.db")) as connection:
        connection.execute("CREATE TABLE bare (a INTEGER)")
        connection.execute("CREATE VIEW paid AS SELECT id FROM orders")
    found = pipeline.ask("assess")
    assert [t["table"] for t in found["tables"] if not t["carried"]] == ["main.bare"]
    assert found["not_carried"]["objects"] == {"view": ["paid"]}
    assert "can be carried as they are; 1 finding to be settled first." in pipeline.venus("assess").out

    config = pipeline.folder / "venus.toml"
    lines = found["exclude"].removeprefix("[source]\n")
    config.write_text(config.read_text().replace("[source]\n", f"[source]\n{lines}", 1))
    again = pipeline.ask("assess")
    assert (again["refused"], again["carried"], again["script"]) == (0, 4, "")
    pipeline.ask("install-triggers")


def test_wrong_arguments_are_reported_in_one_line(pipeline: Pipeline) -> None:
    assert "no such file" in pipeline.venus("assess", code=2).err.splitlines()[0]
    build_shop(pipeline.folder / "shop.db", customers=5, products=5, orders=5)
    unwritable = pipeline.venus("assess", "--html", "nowhere/a.html", code=2).err
    assert unwritable.splitlines()[0] == f"venus: --html nowhere/a.html: {pipeline.folder / 'nowhere'} is no folder"
