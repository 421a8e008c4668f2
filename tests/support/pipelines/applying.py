"""Loads a target from a feed, and compares its rows with the feed's."""

from __future__ import annotations

from tests.support.brokers.feed import (
    Feed,
    put,
    rows_at,
    settings_for,
)
from venus.adapters.targets.relational.control import read_progress, read_table_states
from venus.adapters.targets.relational.full_sync import full_sync
from venus.config import Settings
from venus.model import TableSchema


def load_target(database: str, feed: Feed, *schemas: TableSchema, rows: int = 0, **options: object) -> Settings:
    """Load a target with `rows` rows in the first table."""
    feed.describe(*schemas)
    feed.cut(*(put(i, f"label {i}", i, table=schemas[0].table_id) for i in range(1, rows + 1)))
    settings = settings_for(feed.broker.address, {"a": database}, **options)  # type: ignore[arg-type]
    full_sync(settings, "a")
    return settings


def check_equal(database: str, feed: Feed, *, namespace: str = "shop") -> None:
    """Assert that every table at the target has the feed's rows."""
    for table_id, schema in feed.schemas.items():
        assert rows_at(database, schema, namespace) == feed.model[table_id], schema.name


def check_counters(settings: Settings, feed: Feed, since: dict[int, int]) -> None:
    """Compare applied + quarantined + skipped with the committed changes, table by table."""
    for state in read_table_states(settings, "a"):
        known = state.rows_applied + state.rows_quarantined + state.rows_skipped
        assert known == feed.committed[state.table_id] - since.get(state.table_id, 0), state
    assert read_progress(settings, "a").unaccounted == 0
