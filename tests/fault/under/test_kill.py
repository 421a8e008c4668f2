"""kill -9 of the under adapter around each of its commits: no change is lost or doubled (scenarios 21, 28)."""

from __future__ import annotations

import random

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import (
    Feed,
    applied_offset,
    deletion,
    items,
    put,
    query,
    rows_at,
    settings_for,
    unique_label,
)
from tests.support.processes.forks import ForkedModule
from venus.adapters.targets.relational.control import read_progress, read_table_states
from venus.adapters.targets.relational.full_sync import full_sync

pytestmark = [pytest.mark.fault, pytest.mark.integration]


def victim(broker: FakeDelivery, url: str, keyed_rows_max: int) -> ForkedModule:
    return ForkedModule("tests.support.faults.killed_under", broker.address, url, str(keyed_rows_max))


@pytest.mark.parametrize("keyed_rows_max", [0, 1000])
def test_kill_around_each_commit_of_the_increments(
    keyed_rows_max: int, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    feed.describe(unique_label(items()))
    feed.cut(*(put(i, f"label {i}", i) for i in range(1, 51)))
    settings = settings_for(broker.address, {"a": database})
    full_sync(settings, "a")
    since = feed.committed[1]
    kills = 0
    rng = random.Random(5)
    with victim(broker, database, keyed_rows_max) as under:
        for step in range(1, 20):
            for moment in ("before", "after"):
                for _ in range(6):  # more rows than one transaction applies
                    keys = rng.sample(range(1, 80), 15)
                    feed.cut(*(deletion(k) if rng.random() < 0.3 else put(k, f"{rng.random()}", step) for k in keys))
                kills += under.run("apply", step, moment, broker.next_offset)
            if not under.run("apply", 1000, "after", broker.next_offset) and step >= 2:
                break
    assert kills >= 4
    assert rows_at(database, items()) == feed.model[1]
    assert applied_offset(database) == broker.next_offset
    assert read_table_states(settings, "a")[0].rows_applied == feed.committed[1] - since
    assert read_progress(settings, "a").unaccounted == 0


def test_kill_around_each_commit_of_the_load(database: str, broker: FakeDelivery, feed: Feed) -> None:
    feed.describe(unique_label(items()))
    feed.cut(*(put(i, f"label {i}", i) for i in range(1, 1501)))
    steps = [(1, "before"), (1, "after"), (2, "before"), (2, "after"), (2, "after"), (4, "before"), (4, "after")]
    with victim(broker, database, 20) as under:
        kills = sum(under.run("load", step, moment, broker.next_offset) for step, moment in steps)
    feed.cut(put(3, "behind", 1))
    report = full_sync(settings_for(broker.address, {"a": database}), "a")
    assert kills >= 5
    assert broker.snapshots_opened <= 3
    assert rows_at(database, items()).keys() == feed.model[1].keys()
    assert report.resumed_splits > 0 or report.already
    assert query(database, "SELECT count(*), sum(rows) FROM venus.load_manifest")[0][1] == 1500
