"""How many statements a small cut costs, and how many an idle target."""

from __future__ import annotations

import time

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed, following, items, put, query, wait_until_caught_up
from tests.support.pipelines.applying import check_equal, load_target
from tests.support.waiting import eventually
from venus.adapters.targets.postgresql.session import TargetSession
from venus.adapters.targets.relational.control import read_table_states
from venus.adapters.targets.relational.session import Params

pytestmark = pytest.mark.integration

#: Tables and rows that together exceed the limit for keyed changes of a single table.
TABLES = 30


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record every statement of the sessions with targets."""
    statements: list[str] = []
    run = TargetSession.run

    def record_statement(self: TargetSession, text: str, params: Params = None) -> int:
        statements.append(text)
        return run(self, text, params)

    monkeypatch.setattr(TargetSession, "run", record_statement)
    return statements


def test_a_small_cut_is_one_round_trip_of_prepared_statements(
    database: str, broker: FakeDelivery, feed: Feed, statements: list[str]
) -> None:
    settings = load_target(database, feed, items(), rows=1)
    statements.clear()
    with following(settings, "a"):
        for n in range(5):
            feed.cut(put(1, "again", n))
            wait_until_caught_up(database, broker)
        kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'venus apply%'"
        query(database, kill)
        feed.cut(put(1, "last", 9))
        wait_until_caught_up(database, broker)
    cuts = [text for text in statements if "advance" in text and not text.startswith("PREPARE")]
    assert len(cuts) >= 6
    assert all(
        text.startswith("BEGIN") and "EXECUTE venus_advance (" in text and "EXECUTE venus_count (" in text
        for text in cuts
    )
    assert sum(text.startswith("PREPARE") for text in statements) == 6, (
        "three for each session: the counters, the position, the row"
    )
    check_equal(database, feed)


def test_a_cut_of_many_tables_is_one_round_trip(
    database: str, broker: FakeDelivery, feed: Feed, statements: list[str]
) -> None:
    schemas = [items(n, f"items_{n}") for n in range(1, TABLES + 1)]
    settings = load_target(database, feed, *schemas, rows=1, apply={"keyed_rows_max": 3})
    before = sum(state.rows_applied for state in read_table_states(settings, "a"))
    statements.clear()
    with following(settings, "a"):
        for n in range(3):
            feed.cut(*(put(key, "new", n, table=t) for t in range(1, TABLES + 1) for key in (n, n + 1)))
            wait_until_caught_up(database, broker)
    written = [text for text in statements if "INSERT INTO" in text]
    assert len(written) == 3, "one string for a cut"
    assert all(text.count("INSERT INTO") == TABLES and text.count("EXECUTE venus_count_all (") == 1 for text in written)
    assert sum(state.rows_applied for state in read_table_states(settings, "a")) == before + 3 * 2 * TABLES
    check_equal(database, feed)


@pytest.mark.slow
def test_an_idle_target_is_polled_once_a_second(
    database: str, broker: FakeDelivery, feed: Feed, statements: list[str]
) -> None:
    settings = load_target(database, feed, items(), rows=1)
    with following(settings, "a"):
        feed.cut(put(1, "once", 1))
        wait_until_caught_up(database, broker)
        statements.clear()
        began = time.monotonic()
        eventually(lambda: len(statements) >= 5)
        assert time.monotonic() - began > 2.5, statements
        assert sum("rows_repaired" in text for text in statements) <= 1, "what has not moved is not added up again"
        feed.cut(put(1, "twice", 2))
        wait_until_caught_up(database, broker)
        eventually(lambda: sum("rows_repaired" in text for text in statements) >= 2)
