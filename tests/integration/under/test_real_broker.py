"""The under adapter against the real broker: it loads, follows, pauses, resyncs, and survives the broker's restart."""

from __future__ import annotations

import random

import pytest

from tests.support.brokers.feed import (
    Feed,
    deletion,
    following,
    items,
    put,
    query,
    rows_at,
    settings_for,
    wait_until_caught_up,
)
from tests.support.brokers.real_broker import RealBroker as RealBroker  # other modules import it from here
from tests.support.waiting import eventually
from venus.adapters.targets.relational.control import pause, read_progress, read_table_states, request_resync, resume
from venus.adapters.targets.relational.full_sync import full_sync
from venus.rpc.admin import AdminClient

pytestmark = pytest.mark.integration


def _write_random_cuts(feed: Feed, rng: random.Random, cuts: int) -> None:
    for n in range(cuts):
        keys = rng.sample(range(1, 300), 20)
        changes = [deletion(k) if rng.random() < 0.2 else put(k, f"{n} {k}", n) for k in keys]
        feed.cut(*changes, put(n % 40, "o", n, table=2), batch_rows=7)


def test_the_whole_life_of_a_target(database: str, second_database: str, real: RealBroker) -> None:
    feed, rng = Feed(real), random.Random(11)
    feed.describe(items(), items(2, "others"))
    feed.cut(*(put(i, f"label {i}", i) for i in range(2000)), inserts_only=True, batch_rows=500)
    _write_random_cuts(feed, rng, 10)
    settings = settings_for(real.address, {"a": database, "b": second_database})
    assert full_sync(settings, "a").offset == real.next_offset
    _write_random_cuts(feed, rng, 10)
    with following(settings, "a"):
        _write_random_cuts(feed, rng, 20)
        wait_until_caught_up(database, real)
        pause(settings, "a", ["items"])
        _write_random_cuts(feed, rng, 20)
        resume(settings, "a", ["items"])
        _write_random_cuts(feed, rng, 10)
        eventually(lambda: read_table_states(settings, "a")[0].state == "ACTIVE", "the table's return")
        query(database, "DELETE FROM shop.items WHERE id < 50")
        request_resync(settings, "a", "items")
        _write_random_cuts(feed, rng, 10)
        eventually(lambda: not read_progress(settings, "a").resyncing, "the end of the resync")
        real.stop()
        real.start()
        _write_random_cuts(feed, rng, 10)
        full_sync(settings, "b")
        wait_until_caught_up(database, real)
        with AdminClient(real.address) as admin:
            eventually(lambda: _acknowledged_offset(admin) == real.next_offset, "the acknowledgement")
    for table_id, schema in feed.schemas.items():
        assert rows_at(database, schema) == feed.model[table_id]
        assert rows_at(second_database, schema) == feed.model[table_id]


def _acknowledged_offset(admin: AdminClient) -> int:
    (business,) = admin.status("main").businesses
    return next(c.acknowledged for c in business.consumers if c.group == "main/a")
