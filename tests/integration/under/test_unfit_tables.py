"""Tables that were altered at the target so that no change can be applied to them halt alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import (
    Feed,
    deletion,
    following,
    items,
    make_referring_schema,
    put,
    query,
    rows_at,
    wait_until_caught_up,
)
from tests.support.databases.postgres import Server
from tests.support.pipelines.applying import check_counters, check_equal, load_target
from tests.support.waiting import eventually
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.relational.control import (
    list_quarantine,
    read_progress,
    read_table_states,
    request_resync,
    retry_quarantine,
)
from venus.adapters.targets.relational.full_sync import full_sync
from venus.config import Settings
from venus.errors import Refused
from venus.rpc.conditions import problems

pytestmark = pytest.mark.integration

CHECK = "ALTER TABLE shop.items ADD CONSTRAINT not_odd CHECK (amount <> 666)"
NO_CHECK = "ALTER TABLE shop.items DROP CONSTRAINT not_odd"


@pytest.fixture
def unprivileged_url(postgres_server: Server, database: str) -> Iterator[str]:
    """Return the URL of a role that owns the database's tables but may not set session_replication_role."""
    name = sqlalchemy.make_url(database).database
    query(database, f"CREATE ROLE applier LOGIN; GRANT ALL ON DATABASE {name} TO applier")
    yield postgres_server.url(str(name), user="applier")
    query(database, "DROP OWNED BY applier CASCADE; DROP ROLE applier")


def states(settings: Settings) -> list[str]:
    return [t.state for t in read_table_states(settings, "a")]


@pytest.mark.parametrize(
    "way",
    [{"keyed_rows_max": 0}, {"keyed_rows_max": 1000}, {"cut_group_rows_max": 1}],
    ids=["copied", "keyed", "large"],
)
@pytest.mark.parametrize(
    ("harm", "cure", "code"),
    [
        ("ALTER TABLE shop.items RENAME label TO mine", "ALTER TABLE shop.items RENAME mine TO label", "42703"),
        ("ALTER TABLE shop.items RENAME TO mine", "ALTER TABLE shop.mine RENAME TO items", "42P01"),
        ("ALTER TABLE shop.items OWNER TO postgres", "ALTER TABLE shop.items OWNER TO applier", "42501"),
    ],
    ids=["column", "table", "privilege"],
)
def test_an_altered_table_halts_alone_and_names_the_remedy(
    harm: str,
    cure: str,
    code: str,
    way: dict[str, int],
    database: str,
    unprivileged_url: str,
    broker: FakeDelivery,
    feed: Feed,
) -> None:
    others = items(2, "others")
    settings = load_target(unprivileged_url, feed, items(), others, rows=5, apply=way)
    since = dict(feed.committed)
    with following(settings, "a"):
        feed.cut(put(5, "before", 5))
        wait_until_caught_up(database, broker)
        query(database, harm)
        feed.cut(*(put(i, "new", i) for i in (1, 3, 4)), put(1, "x", 1, table=2))
        wait_until_caught_up(database, broker)
    with following(settings, "a"):  # as after a restart
        feed.cut(put(2, "new", 2), put(2, "y", 2, table=2))
        wait_until_caught_up(database, broker)
        assert states(settings) == ["HALTED", "ACTIVE"]
        assert rows_at(database, others) == feed.model[2]
        reason = read_table_states(settings, "a")[0].reason
        assert code in reason
        retry = "`venus quarantine retry --table shop.items --target a`"
        assert reason.endswith(f"; correct the table at the target, then {retry}")
        assert list_quarantine(settings, "a") == []
        query(database, cure)
        assert retry_quarantine(settings, "a").resumed == ("shop.items",)
        eventually(lambda: states(settings) == ["ACTIVE"] * 2, "the table's return")
    check_equal(database, feed)
    check_counters(settings, feed, since)


def test_a_resync_that_fails_ends_alone_and_is_reported_until_one_succeeds(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load_target(database, feed, items(), items(2, "others"), rows=5)
    with following(settings, "a"):
        query(database, "ALTER TABLE shop.items RENAME TO mine")
        request_resync(settings, "a", "items")
        eventually(lambda: not read_progress(settings, "a").resyncing, "the end of the resync")
        feed.cut(put(1, "x", 1, table=2))
        wait_until_caught_up(database, broker)
        (problem,) = problems(open_target(settings, "a").read_view().condition, "a")
        assert problem.startswith("target a: shop.items: resync failed: ")
        assert problem.endswith("(42P01); `venus resync shop.items --target a` tries again")
        query(database, "ALTER TABLE shop.mine RENAME TO items; DELETE FROM shop.items")
        request_resync(settings, "a", "items")
        eventually(lambda: not read_progress(settings, "a").resyncing, "the resync")
        assert problems(open_target(settings, "a").read_view().condition, "a") == []
    check_equal(database, feed)


def test_a_table_that_a_foreign_table_refers_to_halts_alone(
    database: str, unprivileged_url: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load_target(unprivileged_url, feed, items(), items(2, "others"), rows=5)
    since = dict(feed.committed)
    query(database, "CREATE TABLE mine (item int REFERENCES shop.items DEFERRABLE); INSERT INTO mine VALUES (3)")
    with following(settings, "a"):
        feed.cut(deletion(3), put(1, "x", 1, table=2))
        wait_until_caught_up(database, broker)
        assert states(settings) == ["HALTED", "ACTIVE"]
        assert "mine_item_fkey" in read_table_states(settings, "a")[0].reason
        query(database, "DELETE FROM mine")
        retry_quarantine(settings, "a")
        eventually(lambda: states(settings) == ["ACTIVE"] * 2, "the table's return")
    check_equal(database, feed)
    check_counters(settings, feed, since)


@pytest.mark.parametrize("on_error", ["halt", "quarantine"])
def test_a_retry_needs_no_right_to_disable_triggers(
    on_error: str, database: str, unprivileged_url: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load_target(unprivileged_url, feed, items(), rows=5, on_error=on_error)
    since = dict(feed.committed)
    query(database, CHECK)
    with following(settings, "a"):
        feed.cut(put(1, "bad", 666), put(2, "fine", 2))
        wait_until_caught_up(database, broker)
        query(database, NO_CHECK)
        report = retry_quarantine(settings, "a")
        assert (report.applied, report.resumed) == ((0, ("shop.items",)) if on_error == "halt" else (1, ()))
        eventually(lambda: states(settings) == ["ACTIVE"], "the table's return")
    check_equal(database, feed)
    check_counters(settings, feed, since)


def test_a_reload_that_foreign_keys_forbid_names_the_remedy(
    database: str, unprivileged_url: str, broker: FakeDelivery, feed: Feed
) -> None:
    child = make_referring_schema(items(2, "others"), "amount", items())
    settings = load_target(unprivileged_url, feed, items(), child, rows=5)
    with following(settings, "a"):
        feed.cut(put(1, "child", 1, table=2))
        wait_until_caught_up(database, broker)
    query(database, "DELETE FROM venus.applied")  # as if the broker had lost its data
    query(database, "CREATE TABLE mine (item int REFERENCES shop.items); INSERT INTO mine VALUES (3)")
    with pytest.raises(Refused, match=r"shop\.items cannot be emptied: .*mine_item_fkey") as refused:
        full_sync(settings, "a")
    assert refused.value.hint == "drop that foreign key, which VENUS has not created, at the target"
    query(database, "DROP TABLE mine")
    full_sync(settings, "a")
    check_equal(database, feed)
    assert query(database, "SELECT conname FROM pg_constraint WHERE contype = 'f'") == [("others_fk",)]
