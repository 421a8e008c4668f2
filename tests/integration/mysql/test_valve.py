"""The event that limits the logs while VENUS is away: what it ignores, what it cannot limit, when it is recreated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.integration.mysql.conftest import Shop
from venus.adapters.dialects.registry import open_source
from venus.config import Settings

pytestmark = pytest.mark.integration

ROWS_MAX = 5
#: Far longer than the event may delay the application.
PATIENCE_S = 60


@pytest.fixture
def limited_shop(shop: Shop) -> Iterator[Shop]:
    """Capture two tables with limited logs, at a server that runs events."""
    shop.server.execute("SET GLOBAL event_scheduler = ON")
    shop.run("CREATE TABLE item (id int PRIMARY KEY)", "CREATE TABLE shelf (id int PRIMARY KEY)")
    install(shop)
    yield shop
    shop.server.execute("SET GLOBAL event_scheduler = OFF")


def install(shop: Shop, rows_max: int = ROWS_MAX) -> None:
    settings = Settings.model_validate({"source": {"url": shop.url, "log_rows_max": rows_max}})
    with closing(open_source(settings)) as source:
        source.installer.install(["*"], [])


def table_id(shop: Shop, table: str) -> int:
    found = {t.schema.name: t.schema.table_id for t in shop.source.registry.read_registered_tables()}
    return found[table]


def event(shop: Shop, column: str) -> str:
    where = f"event_schema = '{shop.database}' AND event_name = 'venus_valve'"
    ((found,),) = shop.server.execute(f"SELECT {column} FROM information_schema.events WHERE {where}")
    return str(found)


def schedule_event(shop: Shop, interval: str) -> None:
    shop.server.execute(f"ALTER EVENT {shop.database}.venus_valve ON SCHEDULE EVERY {interval}")


def fill(shop: Shop, table: str) -> None:
    shop.run(*(f"INSERT INTO {table} VALUES ({number})" for number in range(ROWS_MAX)))


def wait_until_cut_off(shop: Shop, table: str) -> None:
    """Wait until the event has dropped the triggers of a table."""
    triggers = f"FROM information_schema.triggers WHERE event_object_schema = '{shop.database}'"
    shop.wait_for(f"SELECT 1 FROM dual WHERE NOT EXISTS (SELECT 1 {triggers} AND event_object_table = '{table}')")


def test_a_paused_table_stays_paused(limited_shop: Shop) -> None:
    limited_shop.source.registry.set_table_state(table_id(limited_shop, "item"), "PAUSED", "by hand")
    fill(limited_shop, "item")
    schedule_event(limited_shop, "1 SECOND")
    wait_until_cut_off(limited_shop, "item")

    assert limited_shop.state("item") == ("PAUSED", "by hand")


def test_numbers_that_were_rolled_back_are_no_rows(limited_shop: Shop) -> None:
    assert table_id(limited_shop, "item") < table_id(limited_shop, "shelf"), "the event looks at it first"
    limited_shop.run("INSERT INTO item VALUES (1)", "BEGIN", *(f"INSERT INTO item VALUES ({n})" for n in range(10, 30)))
    limited_shop.run("ROLLBACK", "INSERT INTO item VALUES (2)")
    fill(limited_shop, "shelf")
    schedule_event(limited_shop, "1 SECOND")
    wait_until_cut_off(limited_shop, "shelf")

    assert limited_shop.state("item") == ("ACTIVE", "")


def test_a_log_that_cannot_be_read_does_not_exempt_the_others(limited_shop: Shop) -> None:
    assert table_id(limited_shop, "item") < table_id(limited_shop, "shelf"), "the event looks at it first"
    limited_shop.server.execute(f"DROP TABLE {limited_shop.database}.venus_l_{table_id(limited_shop, 'item'):05}")
    fill(limited_shop, "shelf")
    schedule_event(limited_shop, "1 SECOND")
    wait_until_cut_off(limited_shop, "shelf")

    assert limited_shop.state("shelf")[0] == "RESYNC"


def test_the_application_waits_only_briefly_for_the_event(limited_shop: Shop) -> None:
    """A reader's open transaction blocks the removal of triggers, and the event would make every writer wait too."""
    with closing(limited_shop.server.connect(limited_shop.database)) as reader, reader.cursor() as cursor:
        cursor.execute("SELECT * FROM item")
        fill(limited_shop, "item")
        schedule_event(limited_shop, "1 SECOND")
        waiting = f"db = '{limited_shop.database}' AND state LIKE 'Waiting for table metadata lock%'"
        limited_shop.wait_for(f"SELECT 1 FROM information_schema.processlist WHERE {waiting}")
        # the server begins an event again while it runs; the locks for which all wait could exclude writers for long
        schedule_event(limited_shop, "1 MINUTE")
        limited_shop.run(f"SET lock_wait_timeout = {PATIENCE_S}", "INSERT INTO item VALUES (100)")
    schedule_event(limited_shop, "1 SECOND")
    wait_until_cut_off(limited_shop, "item")


def test_an_event_of_the_application_with_the_same_name_stays(shop: Shop) -> None:
    shop.server.execute("SET GLOBAL event_scheduler = ON")
    try:
        shop.run("CREATE TABLE item (id int PRIMARY KEY)")
        shop.run("CREATE EVENT venus_valve ON SCHEDULE EVERY 1 DAY COMMENT 'ours' DO SELECT 1")
        install(shop)
        assert event(shop, "event_comment") == "ours"
        shop.source.installer.uninstall()
        assert event(shop, "event_comment") == "ours"
    finally:
        shop.server.execute("SET GLOBAL event_scheduler = OFF")


def test_another_limit_or_a_disabled_event_recreates_it(limited_shop: Shop) -> None:
    limited_shop.server.execute(f"ALTER EVENT {limited_shop.database}.venus_valve DISABLE")
    install(limited_shop)
    assert event(limited_shop, "status") == "ENABLED"
    assert f"LIMIT {ROWS_MAX - 1}, 1" in event(limited_shop, "event_definition")

    install(limited_shop, rows_max=70)
    assert "LIMIT 69, 1" in event(limited_shop, "event_definition")
