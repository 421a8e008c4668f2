"""The address of a source or a target leads to a standby for a while, as in a failover: VENUS waits and continues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.upper.shop import Shop
from tests.integration.upper.test_real_sources import RunningAdapter, running
from tests.integration.upper.test_real_sources import _until_equal as until_equal
from tests.support.brokers.deliveries import broker, feed
from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed, following, items, put, wait_until_caught_up
from tests.support.brokers.servers import settings as broker_settings
from tests.support.databases.postgres import Server, running_server
from tests.support.pipelines.applying import check_counters, check_equal, load_target
from tests.support.waiting import eventually
from venus.broker.service.process import start_in_thread
from venus.config import Settings, SourceSettings

__all__ = ["broker", "feed"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("pg-standby") / "data") as started:
        yield started


def make_standby(server: Server) -> None:
    server.pg.stop()
    (server.pg.pgdata / "standby.signal").touch()
    server.pg.ensure_postgres_running()


def promote_standby(server: Server) -> None:
    server.execute("SELECT pg_promote()")


def errors(adapter: RunningAdapter) -> str:
    return " ".join(report.last_error for report in adapter.reports)


def test_capture_waits_for_a_standby_to_be_promoted(server: Server, tmp_path: Path) -> None:
    at_broker = start_in_thread(broker_settings(tmp_path / "broker", review_after_s=0.2))
    try:
        shop = Shop(server.create_database())
        chosen: Settings = broker_settings(Path("unused"), address=at_broker.address).model_copy(
            update={"source": SourceSettings.model_validate({"url": shop.url})}
        )
        shop.fill(10)
        shop.install(chosen)
        with running(chosen) as adapter:
            until_equal(shop, at_broker)
            make_standby(server)
            eventually(lambda: "it is a standby" in errors(adapter) or bool(adapter.errors))
            assert not adapter.errors
            promote_standby(server)
            shop.write()
            until_equal(shop, at_broker)
    finally:
        at_broker.stop()


def test_a_target_waits_for_a_standby_to_be_promoted(server: Server, broker: FakeDelivery, feed: Feed) -> None:
    database = server.create_database()
    settings = load_target(database, feed, items(), rows=5)
    since = dict(feed.committed)
    with following(settings, "a") as reports:
        make_standby(server)
        feed.cut(put(1, "new", 1))
        eventually(lambda: any("it is a standby" in report.error for report in reports))
        promote_standby(server)
        wait_until_caught_up(database, broker)
    check_equal(database, feed)
    check_counters(settings, feed, since)
