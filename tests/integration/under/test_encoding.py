"""A target in LATIN1: texts that it cannot hold are reported before the load, then quarantined; others are exact."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed, items, put, query, settings_for
from tests.support.databases.postgres import Server
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.relational.full_sync import full_sync

pytestmark = pytest.mark.integration

NAME = "in_latin1"


@pytest.fixture
def latin(postgres_server: Server) -> Iterator[str]:
    postgres_server.execute(f"CREATE DATABASE {NAME} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    url = postgres_server.url(NAME)
    yield url
    postgres_server.drop_database(url)


def test_a_target_without_some_characters_reports_them_and_gets_the_other_rows(
    latin: str, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = settings_for(broker.address, {"a": latin, "b": database})
    feed.describe(items())
    feed.cut(put(1, "Größe", 1), put(2, "10 €", 2))

    (said,) = [f for f in open_target(settings, "a").check([items()]) if "encoding" in f.message]
    assert said.message == "encoding is LATIN1: rows with characters that it lacks are refused"
    assert not said.blocks
    assert not [f for f in open_target(settings, "b").check([items()]) if "encoding" in f.message]

    report = full_sync(settings, "a")
    assert (report.rows, query(latin, "SELECT id, label FROM shop.items")) == ({"shop.items": 1}, [(1, "Größe")])
    ((key, state, message),) = query(latin, "SELECT key::text, state, message FROM venus.quarantine")
    assert ('"2"' in key, state) == (True, "PARKED")
    assert 'no equivalent in encoding "LATIN1"' in message
