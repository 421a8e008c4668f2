"""A target that waits for another session's lock names that session while it waits, and not afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg2
import psycopg2.extensions
import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed, following, items, put, query, settings_for, wait_until_caught_up
from tests.support.databases.postgres import libpq
from tests.support.pipelines.applying import check_equal, load_target
from tests.support.waiting import eventually
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.relational import lock_waits
from venus.adapters.targets.relational.apply_loop import ApplyStream
from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.full_sync import full_sync
from venus.config import Settings
from venus.rpc.conditions import TableCondition, problems
from venus.text.alarm_rules import classify_sentence

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_waits, "LOOK_S", 0.2)


@pytest.fixture
def locker(database: str) -> Iterator[psycopg2.extensions.connection]:
    with closing(psycopg2.connect(libpq(database), application_name="nightly job")) as connection:
        yield connection


def read_problems(settings: Settings) -> list[str]:
    return problems(open_target(settings, "a").read_view().condition, "a")


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("LOCK TABLE shop.items IN ACCESS EXCLUSIVE MODE", "shop.items"),
        ("UPDATE shop.items SET label = 'Mrs. Smith, 4711' WHERE id = 1", "a row"),
    ],
    ids=["table", "row"],
)
def test_a_session_with_a_lock_is_named(
    statement: str,
    what: str,
    database: str,
    broker: FakeDelivery,
    feed: Feed,
    locker: psycopg2.extensions.connection,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = load_target(database, feed, items(), rows=3)
    counts: list[int] = []
    report = ApplyStream.report

    def listen(self: ApplyStream, catalogue: TargetCatalogue, *, waits: Sequence[TableCondition] = ()) -> None:
        counts.append(len(waits))
        report(self, catalogue, waits=waits)

    monkeypatch.setattr(ApplyStream, "report", listen)
    with following(settings, "a") as reports:
        locker.cursor().execute(statement)
        feed.cut(put(1, "new", 1))
        (said,) = eventually(lambda: read_problems(settings), "status")
        pid = locker.info.backend_pid
        assert said.startswith(
            f"target a: {what} is WAITING (for a lock of session {pid} (user postgres, nightly job, "
        )
        assert re.search(r"transaction open since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC, idle in transaction: ", said)
        assert said.endswith("; let that transaction end, or have a DBA end its session")
        assert "Smith" not in said
        assert "4711" not in said.replace(f"session {pid} ", ""), "the process may have such a number"
        assert classify_sentence(said)[0].name == "table_waits"
        eventually(lambda: f"session {pid}" in caplog.text, "the log")
        eventually(lambda: any(f"session {pid}" in report.error for report in reports), "the report")
        locker.rollback()
        wait_until_caught_up(database, broker)
        eventually(lambda: not read_problems(settings), "the end of it")
        eventually(lambda: 1 in counts and counts[-1] == 0, "the end of it at the broker")
    check_equal(database, feed)


def test_a_prepared_transaction_is_named(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = load_target(database, feed, items(), rows=3)
    query(database, "BEGIN; LOCK TABLE shop.items; PREPARE TRANSACTION 'left behind'")
    try:
        with following(settings, "a"):
            feed.cut(put(1, "new", 1))
            (said,) = eventually(lambda: read_problems(settings), "status")
            assert "prepared transaction 'left behind' (owner postgres, prepared " in said
            query(database, "ROLLBACK PREPARED 'left behind'")
            wait_until_caught_up(database, broker)
    finally:
        for (gid,) in query(database, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
            query(database, f"ROLLBACK PREPARED '{gid}'")


def test_the_wait_of_a_full_load_is_logged(
    database: str,
    broker: FakeDelivery,
    feed: Feed,
    locker: psycopg2.extensions.connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    feed.describe(items())
    feed.cut(*(put(i, f"label {i}", i) for i in range(50)))
    settings = settings_for(broker.address, {"a": database}, on_existing="truncate")
    query(database, "CREATE SCHEMA shop; CREATE TABLE shop.items (id bigint PRIMARY KEY, label text, amount bigint)")
    locker.cursor().execute("LOCK TABLE shop.items IN SHARE MODE")
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(full_sync, settings, "a")
        try:
            said = f"target a: shop.items waits for a lock of session {locker.info.backend_pid} (user postgres, nigh"
            eventually(lambda: said in caplog.text or load.done(), "the log")
            assert said in caplog.text
            assert not load.done()
        finally:
            locker.rollback()
        assert load.result(60).rows == {"shop.items": 50}
    check_equal(database, feed)
