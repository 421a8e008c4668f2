"""A target whose connection is lost, that becomes slow, or that does not exist."""

from __future__ import annotations

import time

import pytest
import sqlalchemy

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import (
    Feed,
    applied_offset,
    following,
    items,
    put,
    query,
    settings_for,
    wait_until_caught_up,
)
from tests.support.databases.postgres import Server
from tests.support.pipelines.applying import check_equal, load_target
from tests.support.waiting import eventually
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.under import circuit
from venus.errors import LoginRefused

pytestmark = pytest.mark.integration


def test_a_lost_connection_is_reopened_and_the_circuit_reports_it(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load_target(database, feed, items(), rows=1)
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'venus apply%'"
    with following(settings, "a") as reports:
        for n in range(5):
            feed.cut(put(1, f"row {n}", n))
            wait_until_caught_up(database, broker)
            query(database, kill)
        feed.cut(put(1, "last", 9))
        wait_until_caught_up(database, broker)
        assert any("terminat" in r.error or "closed" in r.error for r in reports)
    check_equal(database, feed)


class StoppableClock:
    """The monotonic clock of the circuit breakers, which the test can stop."""

    def __init__(self) -> None:
        self._stands_at: float | None = None

    def monotonic(self) -> float:
        return time.monotonic() if self._stands_at is None else self._stands_at

    def stop(self) -> None:
        self._stands_at = time.monotonic()

    def start(self) -> None:
        self._stands_at = None


def test_a_slow_target_is_isolated_probed_and_followed_again(
    postgres_server: Server, database: str, broker: FakeDelivery, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StoppableClock()
    monkeypatch.setattr(circuit, "time", clock)
    monkeypatch.setattr(circuit, "SLOW_CLASSES", ((3.0, 2.0),))
    load_target(database, feed, items(), rows=1)
    other = postgres_server.create_database()
    settings = settings_for(broker.address, {"a": database, "b": other})
    full_sync(settings, "b")
    query(
        database,
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(3.2); RETURN NEW; END $$;"
        "CREATE TRIGGER slow BEFORE UPDATE ON shop.items FOR EACH ROW EXECUTE FUNCTION slow();"
        "ALTER TABLE shop.items ENABLE ALWAYS TRIGGER slow",
    )
    with following(settings, "a") as reports, following(settings, "b") as others:
        clock.stop()  # so that a busy machine does not end the isolation before the test sees it
        feed.cut(put(1, "slowly", 1))
        wait_until_caught_up(database, broker)
        eventually(lambda: any("isolated for 2 s" in r.error for r in reports))
        slow = next(r for r in reports if r.error)
        assert slow.circuit == "open"
        assert slow.error.startswith("answered after ")
        query(database, "DROP TRIGGER slow ON shop.items")
        feed.cut(put(1, "again", 2))
        wait_until_caught_up(other, broker, "main/b")
        assert applied_offset(database) < broker.next_offset, "the other target does not wait for the slow one"
        clock.start()
        wait_until_caught_up(database, broker)
        feed.cut(put(1, "quickly", 3))
        wait_until_caught_up(database, broker)
        eventually(lambda: reports[-1].circuit == "closed")
        wait_until_caught_up(other, broker, "main/b")
        assert not [r for r in others if r.circuit != "closed" and not r.error.startswith("answered after ")]
    check_equal(database, feed)
    check_equal(other, feed)
    postgres_server.drop_database(other)


def test_an_invalid_address_fails_without_a_retry(database: str) -> None:
    settings = settings_for("127.0.0.1:1", {"a": database.replace("/t", "/nothing_like_t")})
    with pytest.raises(LoginRefused, match="does not exist"):
        full_sync(settings, "a")


def test_a_login_that_is_refused_for_a_while_is_retried(
    postgres_server: Server, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    """A password, pg_hba.conf or a name server may be changing: capture retries these errors at the source as well."""
    query(database, "CREATE ROLE renamed LOGIN SUPERUSER")
    try:
        url = postgres_server.url(str(sqlalchemy.make_url(database).database), user="renamed")
        settings = load_target(url, feed, items(), rows=3)
        with following(settings, "a") as reports:
            feed.cut(put(1, "before", 1))
            wait_until_caught_up(database, broker)
            query(database, "ALTER ROLE renamed RENAME TO away")
            query(database, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'away'")
            eventually(lambda: any("does not exist" in r.error for r in reports), "the refusal")
            eventually(lambda: any(r.circuit == "open" for r in reports), "the circuit that five failures open")
            query(database, "ALTER ROLE away RENAME TO renamed")
            feed.cut(put(2, "behind", 2))
            wait_until_caught_up(database, broker)
            eventually(lambda: reports[-1].circuit == "closed", "a circuit that is closed again")
        check_equal(database, feed)
    finally:
        query(database, "DROP OWNED BY renamed CASCADE; DROP ROLE renamed")
