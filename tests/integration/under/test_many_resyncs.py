"""`venus resync --all` on a target with many tables: only some of them are loaded at once."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed, following, items, put, query, rows_at, settings_for, wait_until_caught_up
from tests.support.waiting import eventually
from venus.adapters.targets.relational import resync as module
from venus.adapters.targets.relational.control import read_progress, request_resync
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.targets.relational.resync import SideLoad
from venus.errors import SnapshotExpired
from venus.rpc.snapshots import SnapshotClient

pytestmark = pytest.mark.integration

TABLES = 8


def test_only_some_side_tables_are_loaded_at_once(
    database: str, broker: FakeDelivery, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SIDE_LOADS_MAX", 2, raising=False)
    lock, now, most = threading.Lock(), set[SideLoad](), list[int]()
    run = SideLoad.run

    def record_call(load: SideLoad) -> None:
        with lock:
            now.add(load)
            most.append(len(now))
        time.sleep(0.1)
        run(load)
        with lock:
            now.discard(load)

    monkeypatch.setattr(SideLoad, "run", record_call)
    feed.describe(*(items(n, f"t{n}") for n in range(1, TABLES + 1)))
    feed.cut(*(put(key, "old", key, table=n) for n in range(1, TABLES + 1) for key in range(5)))
    settings = settings_for(broker.address, {"a": database})
    full_sync(settings, "a")
    for n in range(1, TABLES + 1):
        query(database, f"UPDATE shop.t{n} SET label = 'edited'")
    with following(settings, "a"):
        for n in range(1, TABLES + 1):
            request_resync(settings, "a", f"t{n}")
        feed.cut(*(put(1, "meanwhile", 1, table=n) for n in range(1, TABLES + 1)))
        wait_until_caught_up(database, broker)
        eventually(lambda: all(rows_at(database, feed.schemas[n]) == feed.model[n] for n in range(1, TABLES + 1)))

    assert len(most) >= TABLES
    assert max(most) <= 2
    assert read_progress(settings, "a").unaccounted == 0


def test_a_side_table_is_loaded_again_from_another_snapshot(
    database: str, broker: FakeDelivery, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.describe(items(1, "t1"))
    feed.cut(*(put(key, "old", key) for key in range(5)))
    settings = settings_for(broker.address, {"a": database})
    full_sync(settings, "a")
    query(database, "UPDATE shop.t1 SET label = 'edited'")
    read, lost = SnapshotClient.read_split, list[str]()

    def read_split(snapshots: SnapshotClient, snapshot_id: str, split: Any) -> Any:
        if len(lost) < 2:
            lost.append(snapshot_id)
            raise SnapshotExpired("the snapshot was closed meanwhile")
        return read(snapshots, snapshot_id, split)

    monkeypatch.setattr(SnapshotClient, "read_split", read_split)
    with following(settings, "a"):
        request_resync(settings, "a", "t1")
        feed.cut(put(1, "meanwhile", 1))
        wait_until_caught_up(database, broker)
        eventually(lambda: rows_at(database, feed.schemas[1]) == feed.model[1])

    assert len(set(lost)) == 2
