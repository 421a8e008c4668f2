"""`venus run` killed again and again at any moment, while an application writes: every row arrives, none twice.

Capture, broker and apply die together here: between a half message and its local transaction, between that and the
decision, between the delivery and the target's commit.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases.postgres import Server
from tests.support.databases.shops import PostgresShop, Shop, SqliteShop
from tests.support.pipelines.pipeline import Pipeline, with_password

pytestmark = [pytest.mark.fault, pytest.mark.integration, pytest.mark.timeout(600)]

KILLS = 6
#: A start takes about a second: some kills come before everything is connected, most in the middle of the work.
ALIVE_MAX_S = 3.0


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, postgres_server: Server) -> Iterator[Shop]:
    if request.param == "sqlite":
        yield SqliteShop(tmp_path)
        return
    url = postgres_server.create_database()
    yield PostgresShop(postgres_server, url, with_password(url))
    postgres_server.drop_database(url)


@pytest.fixture
def pipeline(shop: Shop, tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    url = postgres_server.create_database()
    patterns = "" if isinstance(shop, SqliteShop) else 'tables = ["shop.*"]'
    made = Pipeline(folder=tmp_path, source=shop.url, source_options=patterns, targets={"main": with_password(url)})
    made.configure()
    try:
        yield made
    finally:
        made.close()
        postgres_server.drop_database(url)


@pytest.mark.parametrize("seed", [1])
def test_kills_at_any_moment_lose_nothing_and_double_nothing(shop: Shop, pipeline: Pipeline, seed: int) -> None:
    draw = random.Random(seed)
    pipeline.venus("install-triggers")
    shop.open_doors()
    for _ in range(KILLS):
        pipeline.start("run", "run")
        threading.Event().wait(draw.uniform(0.2, ALIVE_MAX_S))
        assert pipeline.running["run"].poll() is None, pipeline.tail()
        pipeline.kill("run")
    pipeline.start("run", "run")
    pipeline.until(lambda: "main: following" in pipeline.log.read_text().rpartition("$ venus run")[2], "the last start")
    shop.close_doors()
    pipeline.caught_up("main")

    assert shop.differences(pipeline.targets["main"]) == []
    assert pipeline.ask("verify", "--target", "main")["verdict"] == "same"
    assert pipeline.stop("run") == 0
