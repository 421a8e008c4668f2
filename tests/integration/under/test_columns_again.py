"""New columns whose name is taken at the target: by kept values of a dropped column, or by the target's own column."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.brokers.feed import (
    Feed,
    column,
    following,
    items,
    put,
    query,
    rows_at,
    settings_for,
    wait_until_caught_up,
)
from tests.support.brokers.real_broker import RealBroker
from tests.support.waiting import eventually
from venus.adapters.targets.relational.control import read_table_states, request_resync
from venus.adapters.targets.relational.full_sync import full_sync
from venus.config import Settings

pytestmark = pytest.mark.integration
FEW = replace(items(), version=2, columns=items().columns[:2])
AGAIN = replace(items(), version=3, columns=(*items().columns[:2], column(4, "amount")))
MORE = replace(items(), version=2, columns=(*items().columns, column(4, "price")))


@pytest.fixture
def feed(real: RealBroker) -> Feed:
    made = Feed(real)
    made.describe(items())
    made.cut(*(put(i, f"label {i}", i) for i in range(1, 4)))
    return made


@pytest.fixture
def settings(feed: Feed, database: str) -> Settings:
    found = settings_for(feed.broker.address, {"a": database})
    full_sync(found, "a")
    return found


def state(settings: Settings) -> tuple[str, str]:
    (found,) = read_table_states(settings, "a")
    return found.state, found.reason


def refuse(database: str, feed: Feed) -> None:
    """Make the target refuse a row, so that the table halts."""
    query(database, "ALTER TABLE shop.items ADD CHECK (label <> 'refused')")
    feed.cut(put(8, "refused"))
    wait_until_caught_up(database, feed.broker)
    query(database, "ALTER TABLE shop.items DROP CONSTRAINT items_label_check")


@pytest.mark.parametrize("how", ["streamed", "resynced"])
def test_a_dropped_column_that_is_added_again_is_followed(
    database: str, feed: Feed, settings: Settings, how: str
) -> None:
    with following(settings, "a"):
        feed.describe(FEW)
        feed.model[1] = {k: v[:1] for k, v in feed.model[1].items()}
        feed.cut(put(9, "nine"))
        wait_until_caught_up(database, feed.broker)
        if how == "resynced":
            refuse(database, feed)
        feed.describe(AGAIN)
        feed.model[1] = {k: (*v, None) for k, v in feed.model[1].items()}
        feed.cut(put(10, "ten", "a text now"))
        wait_until_caught_up(database, feed.broker)
        if how == "resynced":
            assert state(settings)[0] == "HALTED"
            request_resync(settings, "a", "items")
        eventually(lambda: state(settings)[0] == "ACTIVE", f"the table to follow: {state(settings)[1]}")

    assert rows_at(database, AGAIN) == feed.model[1]
    kept = query(database, "SELECT id, amount_before_v3 FROM shop.items WHERE id IN (1, 9) ORDER BY 1")
    assert kept == [(1, 1), (9, None)]
    if how == "streamed":
        assert "the column that was kept here is now amount_before_v3" in state(settings)[1]


def test_the_targets_own_column_halts_the_table_until_it_is_renamed(
    database: str, feed: Feed, settings: Settings
) -> None:
    query(database, "ALTER TABLE shop.items ADD price text DEFAULT 'ours'")
    way_out = "has its own column price, and the source has added one: rename or drop the one at the target"
    with following(settings, "a"):
        feed.describe(MORE)
        feed.model[1] = {k: (*v, None) for k, v in feed.model[1].items()}
        feed.cut(put(9, "nine", 9, "theirs"))
        wait_until_caught_up(database, feed.broker)
        assert way_out in state(settings)[1]
        request_resync(settings, "a", "items")
        eventually(lambda: "resync failed" in state(settings)[1], "the refusal")
        assert way_out in state(settings)[1]
        query(database, "ALTER TABLE shop.items RENAME price TO our_price")
        request_resync(settings, "a", "items")
        eventually(lambda: state(settings)[0] == "ACTIVE", "the resync")

    assert rows_at(database, MORE) == feed.model[1]
    assert query(database, "SELECT DISTINCT our_price FROM shop.items") == [("ours",)]
