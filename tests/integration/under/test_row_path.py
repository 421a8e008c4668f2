"""Rows alone execute no DDL at the target; a new table version executes its DDL in the transaction of its rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import (
    Feed,
    column,
    deletion,
    following,
    items,
    put,
    query,
    rows_at,
    settings_for,
    unique_label,
    wait_until_caught_up,
)
from venus.adapters.targets.relational.full_sync import full_sync
from venus.config import Settings

pytestmark = pytest.mark.integration

#: Each path of rows into a table (rows/merging.py), by the settings that select it.
WAYS: dict[str, dict[str, Any]] = {
    "at once": {},
    "staged": {"keyed_rows_max": 0},
    "streamed": {"keyed_rows_max": 0, "cut_group_rows_max": 5},
}
#: Logs every DDL command; ENABLE ALWAYS, because VENUS applies as a replica if it may.
_WATCH = """
CREATE TABLE public.commands (tag text, object text, transaction bigint);
CREATE FUNCTION public.watch() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE c record;
BEGIN
  FOR c IN SELECT * FROM pg_event_trigger_ddl_commands() LOOP
    INSERT INTO public.commands VALUES (c.command_tag, c.object_identity, txid_current());
  END LOOP;
END $$;
CREATE EVENT TRIGGER watch ON ddl_command_end EXECUTE FUNCTION public.watch();
ALTER EVENT TRIGGER watch ENABLE ALWAYS;
"""
#: Logs the transaction in which rows and the offset were written; savepoints have numbers of their own.
_WATCH_ROWS = """
CREATE TABLE public.written (what text, transaction bigint);
CREATE FUNCTION public.wrote() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO public.written VALUES (TG_TABLE_NAME, txid_current());
  RETURN NULL;
END $$;
CREATE TRIGGER wrote AFTER INSERT OR UPDATE ON shop.items FOR EACH ROW EXECUTE FUNCTION public.wrote();
CREATE TRIGGER wrote AFTER UPDATE ON venus.applied FOR EACH ROW EXECUTE FUNCTION public.wrote();
ALTER TABLE shop.items ENABLE ALWAYS TRIGGER wrote;
ALTER TABLE venus.applied ENABLE ALWAYS TRIGGER wrote;
"""
_OWN_STAGES = "pg_temp."


def load(database: str, feed: Feed, **apply: Any) -> Settings:
    feed.describe(items(), unique_label(items(2, "others")))
    feed.cut(*(put(i, f"label {i}", i) for i in range(30)), put(1, "other", 1, table=2))
    settings = settings_for(feed.broker.address, {"a": database}, apply=apply)
    full_sync(settings, "a")
    query(database, _WATCH)
    return settings


def logged_ddl(database: str) -> list[tuple[str, str]]:
    """Return the objects that were created or altered, except the session's own staging tables."""
    found = query(database, "SELECT tag, object FROM public.commands")
    return [(tag, name) for tag, name in found if not name.startswith(_OWN_STAGES)]


@pytest.mark.parametrize("way", WAYS)
def test_rows_execute_no_ddl_on_any_path(way: str, database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = load(database, feed, **WAYS[way])
    with following(settings, "a"):
        feed.cut(*(put(i, "again", i) for i in range(12)), deletion(20), put(1, "swapped", 2, table=2), batch_rows=4)
        feed.cut(*(put(100 + i, "new", i) for i in range(12)), inserts_only=True, batch_rows=4)
        wait_until_caught_up(database, broker)

    assert logged_ddl(database) == []
    assert rows_at(database, items()) == feed.model[1]


@pytest.mark.parametrize("way", WAYS)
def test_a_new_version_its_rows_and_the_offset_are_one_transaction(
    way: str, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load(database, feed, **WAYS[way])
    old = items()
    with following(settings, "a"):
        feed.cut(put(1, "before", 1))
        wait_until_caught_up(database, broker)
        query(database, _WATCH_ROWS)
        query(database, "DELETE FROM public.commands")
        feed.describe(replace(old, version=2, columns=(*old.columns, column(4, "extra"))))
        feed.cut(*(put(i, "behind", i, "more") for i in range(8)), batch_rows=4)
        wait_until_caught_up(database, broker)

    assert ("ALTER TABLE", "shop.items") in logged_ddl(database)
    altered = query(database, "SELECT DISTINCT transaction FROM public.commands WHERE object = 'shop.items'")
    assert query(database, "SELECT DISTINCT transaction FROM public.written WHERE what = 'items'") == altered
    assert query(database, "SELECT DISTINCT transaction FROM public.written WHERE what = 'applied'") == altered
