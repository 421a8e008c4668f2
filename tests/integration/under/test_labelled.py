"""Targets below a set that mirrors some tables only: they get those whole, and account for every offset."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.brokers import networks
from tests.support.brokers.feed import (
    Feed,
    applied_offset,
    deletion,
    following,
    items,
    put,
    query,
    rows_at,
    settings_for,
    wait_until_caught_up,
)
from tests.support.brokers.real_broker import RealBroker
from venus.adapters.targets.relational.control import read_progress, read_table_states
from venus.adapters.targets.relational.full_sync import full_sync

pytestmark = pytest.mark.integration
LABELS = {"eu": ("shop.items",)}


@pytest.mark.parametrize("keyed_rows_max", [0, 1000])
def test_a_target_below_a_labelled_set_gets_its_tables(
    database: str, tmp_path: Path, real: RealBroker, keyed_rows_max: int
) -> None:
    rng = random.Random(3)
    feed = Feed(real)
    feed.describe(items(), items(2, "others"))
    feed.cut(*(put(i, f"a{i}", i) for i in range(1, 40)), *(put(i, f"b{i}", i, table=2) for i in range(1, 40)))
    access = networks.start(tmp_path / "eu", real.address, labels=["eu"], known_labels=LABELS)
    try:
        networks.has(access.address, real.next_offset)
        settings = settings_for(access.address, {"a": database}, apply={"keyed_rows_max": keyed_rows_max})
        full_sync(settings, "a")
        since = feed.committed[1]
        with following(settings, "a"):
            for n in range(30):
                tables = [(1,), (2,), (1, 2), (2, 1, 2)][n % 4]
                changes = [
                    deletion(k, table=t) if rng.random() < 0.2 else put(k, f"{rng.random()}", n, table=t)
                    for t in tables
                    for k in rng.sample(range(1, 60), 4)
                ]
                feed.cut(*changes, batch_rows=[1_000, 4, 3][n % 3])
                if n == 15:
                    feed.truncate(1, put(1, "first", 1))
                    feed.truncate(2)
            wait_until_caught_up(database, real)
    finally:
        access.stop()

    assert rows_at(database, items()) == feed.model[1]
    assert query(database, "SELECT count(*) FROM information_schema.tables WHERE table_name = 'others'") == [(0,)]
    assert read_table_states(settings, "a")[0].rows_applied == feed.committed[1] - since
    assert read_progress(settings, "a").unaccounted == 0
    assert applied_offset(database) == real.next_offset
