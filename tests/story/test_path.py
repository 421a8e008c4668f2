"""The user's path, with the commands as subprocesses: every step that can be repeated is run twice.

check -> install -> migrate under load -> sync -> status -> kill the broker -> a second target with the source gone ->
all steps again -> uninstall (features 4: scenarios 1, 2, 4, 6, 20, 22, 36, 37). With SQLite it is marked slow, because
the demo takes nearly the same path.
"""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy

from tests.support.databases.postgres import Server
from tests.support.databases.shops import PostgresShop, Shop, SqliteShop
from tests.support.pipelines.pipeline import Pipeline, with_password

pytestmark = [pytest.mark.integration, pytest.mark.quick, pytest.mark.timeout(600)]


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.slow), "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, postgres_server: Server) -> Iterator[Shop]:
    if request.param == "sqlite":
        yield SqliteShop(tmp_path)
        return
    url = postgres_server.create_database()
    made = PostgresShop(postgres_server, url, with_password(url))
    yield made
    postgres_server.drop_database(url)


@pytest.fixture
def pipeline(shop: Shop, tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    urls = {name: postgres_server.create_database() for name in ("main", "second")}
    made = Pipeline(
        folder=tmp_path,
        source=shop.url,
        source_options="" if isinstance(shop, SqliteShop) else 'tables = ["shop.*"]',
        targets={name: with_password(url) for name, url in urls.items()},
    )
    made.configure()
    try:
        yield made
    finally:
        made.close()
        for url in urls.values():
            postgres_server.drop_database(url)


def test_the_users_path(shop: Shop, pipeline: Pipeline) -> None:
    untouched = shop.catalogue()
    installed = check_and_install(shop, pipeline, untouched)
    migrate_under_load(shop, pipeline)
    sync_and_watch(shop, pipeline)
    crash_and_recover(shop, pipeline)
    second_target_without_the_source(shop, pipeline)
    assert shop.catalogue() == installed
    uninstall(shop, pipeline, untouched)


def check_and_install(shop: Shop, pipeline: Pipeline, untouched: str) -> str:
    for _ in range(2):
        assert pipeline.ask("check")["blocks"] == 0
    plan = pipeline.ask("install-triggers", "--dry-run")
    assert plan["install"]
    assert not any(step["exists"] for step in plan["install"])
    assert shop.catalogue() == untouched, "check and --dry-run change nothing"

    assert pipeline.ask("install-triggers")["created"]
    installed = shop.catalogue()
    again = pipeline.ask("install-triggers")
    assert again["created"] == []
    assert again["unchanged"] > 0
    assert shop.catalogue() == installed
    assert installed != untouched
    removal = pipeline.ask("uninstall-triggers", "--dry-run")
    assert removal["uninstall"]
    assert shop.catalogue() == installed
    return installed


def migrate_under_load(shop: Shop, pipeline: Pipeline) -> None:
    pipeline.start_broker()
    assert "CREATE TABLE" in pipeline.venus("migrate", "--target", "main", "--ddl-only").out
    shop.open_doors()
    report = pipeline.ask("migrate", "--target", "main")
    assert report["rows"] > 1000
    assert report["source_asked"]
    again = pipeline.ask("migrate", "--target", "main")
    assert again["already_loaded"]


def sync_and_watch(shop: Shop, pipeline: Pipeline) -> None:
    pipeline.start("sync", "sync", "--target", "main")
    let_users_work()
    shop.close_doors()
    pipeline.wait_until_caught_up("main")
    assert shop.differences(pipeline.targets["main"]) == []
    missing = ["target second: not loaded yet; run `venus migrate --target second`"]
    pipeline.until(lambda: pipeline.ask("status", code=(0, 1))["problems"] == missing, "no other problem", every_s=0.5)
    found = pipeline.ask("status", code=(0, 1))
    assert found["lag"]["end_to_end_s"]["main"] < 60
    metrics = get(pipeline, "/metrics")
    offset = re.search(r'venus_next_offset\{business="main"\} (\S+)', metrics)
    assert offset is not None
    assert float(offset[1]) >= found["broker"]["next_offset"], "heartbeats continue meanwhile"
    closed = 'venus_unaccounted_rows{business="main",group="main/main"} 0.0'
    pipeline.until(lambda: closed in get(pipeline, "/metrics"), "the counters to close")
    pipeline.until(lambda: get(pipeline, "/health") == "ok\n", "a healthy broker")


def crash_and_recover(shop: Shop, pipeline: Pipeline) -> None:
    shop.open_doors()
    let_users_work(0.7)
    pipeline.kill("broker")
    let_users_work(0.7)
    pipeline.start_broker()
    let_users_work(0.7)
    pipeline.kill("sync")
    let_users_work(0.7)
    shop.close_doors()
    pipeline.start("sync", "sync", "--target", "main")
    pipeline.wait_until_caught_up("main")
    assert shop.differences(pipeline.targets["main"]) == []
    assert pipeline.stop("sync") == 0


def second_target_without_the_source(shop: Shop, pipeline: Pipeline) -> None:
    shop.go_away()
    report = pipeline.ask("migrate", "--target", "second")
    assert not report["source_asked"]
    assert report["rows"] > 1000
    assert shop.differences(pipeline.targets["second"]) == []
    shop.come_back()
    pipeline.start("sync", "sync")
    shop.open_doors()
    let_users_work()
    shop.close_doors()
    pipeline.wait_until_caught_up("main", "second")
    assert shop.differences(pipeline.targets["main"]) == []
    assert shop.differences(pipeline.targets["second"]) == []
    pipeline.until_ok()
    assert pipeline.stop("sync") == 0


def uninstall(shop: Shop, pipeline: Pipeline, untouched: str) -> None:
    assert pipeline.ask("uninstall-triggers")["removed"]
    assert pipeline.ask("uninstall-triggers")["removed"] == []
    assert shop.catalogue() == untouched
    assert pipeline.stop("broker") == 0
    engine = sqlalchemy.create_engine(pipeline.targets["main"])
    with engine.connect() as connection:
        assert connection.scalar(sqlalchemy.text("SELECT count(*) FROM venus.quarantine")) == 0
    engine.dispose()


def let_users_work(seconds: float = 1.5) -> None:
    """Let users work for a while; no condition exists to wait for."""
    threading.Event().wait(seconds)


def get(pipeline: Pipeline, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{pipeline.ports[1]}{path}", timeout=30) as answer:
        return str(answer.read().decode())
