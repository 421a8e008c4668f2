"""Errors that the target raises only at COMMIT halt the table of the trigger or constraint; other tables continue."""

from __future__ import annotations

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed, following, items, put, query, rows_at, wait_until_caught_up
from tests.support.pipelines.applying import check_counters, check_equal, load_target
from tests.support.waiting import eventually
from venus.adapters.targets.relational.control import read_table_states, retry_quarantine
from venus.config import Settings

pytestmark = pytest.mark.integration

RAISES = """
CREATE FUNCTION complain() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF NEW.amount = 666 THEN RAISE EXCEPTION 'no such amount' USING ERRCODE = '{code}'; END IF; RETURN NULL; END $$
"""
TRIGGER = (
    "CREATE CONSTRAINT TRIGGER complains AFTER INSERT OR UPDATE ON shop.{table} DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION complain()"
)
ALWAYS = "ALTER TABLE shop.{table} ENABLE ALWAYS TRIGGER complains"
#: A table of another user, into which the user's own trigger writes a value that is then refused.
COPIES = """
CREATE TABLE shop.copied (amount bigint);
CREATE FUNCTION copy_it() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO shop.copied VALUES (NEW.amount); RETURN NULL; END $$;
CREATE TRIGGER copies AFTER INSERT OR UPDATE ON shop.others FOR EACH ROW EXECUTE FUNCTION copy_it();
ALTER TABLE shop.others ENABLE ALWAYS TRIGGER copies
"""


def states(settings: Settings) -> list[str]:
    return [t.state for t in read_table_states(settings, "a")]


@pytest.mark.parametrize("code", ["P0001", "ZX001"])
@pytest.mark.parametrize(
    "way",
    [{"keyed_rows_max": 0}, {"keyed_rows_max": 1000}, {"cut_group_rows_max": 1}],
    ids=["copied", "keyed", "large"],
)
def test_a_trigger_that_raises_at_commit_halts_its_table_alone(
    way: dict[str, int], code: str, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load_target(database, feed, items(), items(2, "others"), items(3, "third"), rows=3, apply=way)
    since = dict(feed.committed)
    query(database, RAISES.format(code=code))
    for table in ("items", "others"):
        query(database, TRIGGER.format(table=table))
        query(database, ALWAYS.format(table=table))
    with following(settings, "a"):
        feed.cut(put(1, "fine", 1), put(1, "fine", 1, table=2))
        feed.cut(put(2, "fine", 2), put(7, "bad", 666, table=2), put(1, "x", 1, table=3))
        feed.cut(put(3, "fine", 3), put(8, "fine", 8, table=2))
        wait_until_caught_up(database, broker)
        assert states(settings) == ["ACTIVE", "HALTED", "ACTIVE"]
        for table_id in (1, 3):
            assert rows_at(database, feed.schemas[table_id]) == feed.model[table_id]
        reason = read_table_states(settings, "a")[1].reason
        assert reason.startswith("refused at the COMMIT: ")
        assert "no such amount" in reason
        assert "`venus quarantine retry --table shop.others --target a`" in reason
        retry_quarantine(settings, "a")  # the trigger raises again
        eventually(lambda: states(settings)[1] == "HALTED", "another halt")
        feed.cut(put(7, "good", 7, table=2))
        query(database, "DROP TRIGGER complains ON shop.others")
        retry_quarantine(settings, "a")
        eventually(lambda: states(settings) == ["ACTIVE"] * 3, "the table's return")
    check_equal(database, feed)
    check_counters(settings, feed, since)


def test_a_trigger_of_a_foreign_table_halts_only_the_tables_that_were_written(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load_target(database, feed, items(), items(2, "others"), rows=3)
    since = dict(feed.committed)
    query(database, RAISES.format(code="P0001") + ";" + COPIES)
    query(database, TRIGGER.format(table="copied"))
    query(database, ALWAYS.format(table="copied"))
    with following(settings, "a"):
        feed.cut(put(7, "bad", 666, table=2))
        feed.cut(put(2, "fine", 2))
        wait_until_caught_up(database, broker)
        assert states(settings) == ["ACTIVE", "HALTED"]
        assert "has written to " in read_table_states(settings, "a")[1].reason
        query(database, "DROP TRIGGER complains ON shop.copied")
        retry_quarantine(settings, "a")
        eventually(lambda: states(settings) == ["ACTIVE"] * 2, "the table's return")
    check_equal(database, feed)
    check_counters(settings, feed, since)
