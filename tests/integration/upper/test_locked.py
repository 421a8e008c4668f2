"""An exclusive lock on a captured table of PostgreSQL: its holder is reported to the broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from tests.integration.upper.shop import Shop
from tests.integration.upper.test_privileges import have_other_tables_arrived, problems
from tests.integration.upper.test_real_sources import _until_equal as until_equal
from tests.integration.upper.test_real_sources import running
from tests.support.brokers.servers import business_status, settings
from tests.support.waiting import eventually
from venus.adapters.dialects.postgresql.capture import cut_opening
from venus.adapters.dialects.registry import open_source
from venus.adapters.upper import periodic
from venus.broker.service.process import RunningBroker
from venus.cli.probes import read_overview, read_source
from venus.cli.status import format_log
from venus.config import CaptureSettings, Settings, SourceSettings
from venus.text.alarm_rules import classify_sentence

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic, "REFRESH_S", 0.2)
    monkeypatch.setattr(periodic, "REFRESH_SHARE", 1)  # a slow comparison delays the next by 100 times its duration
    monkeypatch.setattr(cut_opening, "LOG_AFTER_S", 0.5)
    monkeypatch.setattr(cut_opening, "LOOK_EVERY_S", 0.1)


@pytest.fixture
def shop(database: str) -> Shop:
    return Shop(database)


@pytest.fixture
def shop_settings(shop: Shop, broker: RunningBroker) -> Settings:
    made = settings(Path("unused"), address=broker.address)
    source = SourceSettings.model_validate({"url": shop.url})
    return made.model_copy(update={"source": source, "capture": CaptureSettings(fill_chunk_rows=10)})


@pytest.fixture
def lock(shop: Shop) -> Iterator[Callable[[], Callable[[], None]]]:
    """Return a context manager that locks `customer` and yields a function that releases the lock."""
    with closing(psycopg2.connect(shop.url.replace("+psycopg2", ""), application_name="nightly job")) as session:

        def lock_table() -> Callable[[], None]:
            session.cursor().execute("LOCK TABLE customer IN ACCESS EXCLUSIVE MODE")
            return session.rollback

        yield lock_table


def test_a_session_that_locks_a_table_with_changes_is_reported_to_the_broker(
    shop: Shop, broker: RunningBroker, shop_settings: Settings, lock: Callable[[], Callable[[], None]]
) -> None:
    shop.fill(20)
    shop.install(shop_settings)
    with running(shop_settings):
        until_equal(shop, broker)
    shop.write_alike()
    release = lock()
    with running(shop_settings) as adapter:
        (said,) = eventually(lambda: problems(broker))
        assert said.startswith("source: public.customer is WAITING (for a lock of session ")
        assert "(user postgres, nightly job, transaction open since " in said
        assert classify_sentence(said) == (classify_sentence(said)[0], "source: public.customer")
        assert classify_sentence(said)[0].name == "table_waits"
        assert said in business_status(broker.address).alarms
        assert [p for p in read_overview(shop_settings).problems if p == said]
        release()
        until_equal(shop, broker)
        eventually(lambda: not problems(broker))
    assert adapter.reports[-1].connections == 1


def test_status_does_not_wait_for_locks_and_names_what_they_hide(
    shop: Shop, shop_settings: Settings, lock: Callable[[], Callable[[], None]]
) -> None:
    shop.fill(5)
    shop.install(shop_settings)
    source = SourceSettings.model_validate({"url": f"{shop.url}&venus_lock_timeout_s=120"})
    shop_settings = shop_settings.model_copy(update={"source": source})
    release = lock()
    began = time.monotonic()
    found = read_source(shop_settings)
    assert (found.error, found.busy) == ("", ""), "nothing that a lock on a captured table hides is read"
    assert sum(table.log_rows for table in found.tables) == 0
    release()
    shop.write_alike()
    logs = [f"venus.l_{table.table_id:05}" for table in found.tables]
    with closing(psycopg2.connect(shop.url.replace("+psycopg2", ""))) as capture:
        capture.cursor().execute(f"LOCK TABLE {', '.join(logs)} IN ACCESS EXCLUSIVE MODE")
        found = read_source(shop_settings)
        assert found.error == ""
        assert "lock timeout" in found.busy
        assert {table.name for table in found.tables} >= {"public.customer", "public.line"}
        assert format_log(found) == f"busy: {found.busy}"
    assert time.monotonic() - began < 100, "it would wait for 120 s"
    found = read_source(shop_settings)
    assert found.busy == ""
    assert sum(table.log_rows for table in found.tables) > 0


def test_a_transaction_of_two_tables_waits_as_a_whole_until_one_is_paused(
    shop: Shop, broker: RunningBroker, shop_settings: Settings, lock: Callable[[], Callable[[], None]]
) -> None:
    shop.fill(20)
    shop.install(shop_settings)
    with running(shop_settings):
        until_equal(shop, broker)
    shop.write_alike()
    release = lock()
    with running(shop_settings):
        eventually(lambda: problems(broker))
        assert not have_other_tables_arrived(shop, broker)
        with closing(open_source(shop_settings)) as operator:
            number = next(
                t.schema.table_id for t in operator.registry.read_registered_tables() if t.schema.name == "customer"
            )
            operator.registry.set_table_state(number, "PAUSED", "by hand")
            eventually(lambda: have_other_tables_arrived(shop, broker))
            release()
            operator.registry.set_table_state(number, "ACTIVE", "")
        until_equal(shop, broker)


@pytest.mark.slow
@pytest.mark.parametrize("swept", [False, True])
def test_a_locked_table_during_its_fill_delays_no_other_table(
    shop: Shop, broker: RunningBroker, shop_settings: Settings, lock: Callable[[], Callable[[], None]], swept: bool
) -> None:
    shop.fill(50)
    shop.install(shop_settings)
    if swept:
        with running(shop_settings):
            until_equal(shop, broker)
        with closing(open_source(shop_settings)) as operator:
            operator.capture.restart_fill(
                next(
                    t.schema.table_id for t in operator.registry.read_registered_tables() if t.schema.name == "customer"
                )
            )
    release = lock()
    with running(shop_settings) as adapter:
        for n in range(3):
            shop.run(f"UPDATE line SET amount = {n} WHERE order_no = 1")
            eventually(lambda: have_other_tables_arrived(shop, broker))
        eventually(lambda: any("customer is WAITING" in said for said in problems(broker)))
        shop.run("UPDATE line SET amount = 7 WHERE order_no = 2")
        eventually(lambda: have_other_tables_arrived(shop, broker))
        release()
        until_equal(shop, broker)
        eventually(lambda: not problems(broker))
    assert adapter.reports[-1].connections == 1
