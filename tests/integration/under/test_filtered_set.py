"""Broker sets that mirror the rows of a predicate, and targets below them; all parts are real."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import networks
from tests.support.brokers.broker_clusters import CAREFREE
from tests.support.brokers.feed import (
    INT,
    Change,
    Feed,
    Key,
    Row,
    applied_offset,
    column,
    deletion,
    following,
    items,
    put,
    rows_at,
    settings_for,
    wait_until_caught_up,
)
from tests.support.brokers.real_broker import RealBroker
from tests.support.brokers.servers import BrokerProcess, business_status
from tests.support.ports import free_port
from tests.support.waiting import eventually
from venus.adapters.targets.relational.apply_session import run_apply
from venus.adapters.targets.relational.control import request_resync
from venus.adapters.targets.relational.full_sync import full_sync
from venus.broker.service.process import RunningBroker
from venus.codec.packed import pack_items
from venus.codec.stored_rows import RowTotals, StoredRows
from venus.errors import OffsetTrimmed
from venus.rpc.admin import AdminClient
from venus.rpc.snapshots import SnapshotClient
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2, change_pb2

pytestmark = pytest.mark.integration
EU, NARROW = "label = 'EU' and amount >= 10", "label = 'EU' and amount between 20 and 60"
Start = Callable[..., RunningBroker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start sets whose alarms concern only what they mirror."""
    with networks.starting(tmp_path) as start:
        yield partial(start, **CAREFREE)


def is_in_eu(row: Row) -> bool:
    return row[0] == "EU" and int(row[1] or 0) >= 10


def is_in_narrow(row: Row) -> bool:
    return row[0] == "EU" and 20 <= int(row[1] or 0) <= 60


def random_change(rng: random.Random, table: int = 1) -> Change:
    key = rng.randint(1, 120)
    if rng.random() < 0.2:
        return deletion(key, table=table)
    return put(key, rng.choice(("EU", "US", "ASIA")), rng.randint(0, 80), table=table)


def full_data(address: str) -> dict[int, dict[Key, bytes]]:
    """Return the rows of a set's full data, by their keys as text."""
    found: dict[int, dict[Key, bytes]] = {}
    with SnapshotClient(address) as snapshots:
        snapshot = snapshots.open("main", splits=3)
        for split in snapshot.splits:
            for chunk in snapshots.read_split(snapshot.snapshot_id, split):
                for value in chunk.rows.packed.split():
                    stored = StoredRows(pack_items([value]))
                    key = (stored.record_id(0)[2:].decode(),)
                    found.setdefault(chunk.table_id, {})[key] = stored.rows.data
        snapshots.close(snapshot.snapshot_id)
    return found


def rows_inside(feed: Feed, is_inside: Callable[[Row], bool], table: int = 1) -> dict[Key, Row]:
    return {key: row for key, row in feed.model[table].items() if is_inside(row)}


def test_sets_and_targets_have_the_rows_of_the_predicate(
    database: str, second_database: str, tmp_path: Path, real: RealBroker, start: Start
) -> None:
    rng = random.Random(4)
    feed = Feed(real)
    feed.describe(items(), items(2, "others"))
    feed.cut(*(random_change(rng) for _ in range(300)), *(put(n, "US", n, table=2) for n in range(50)))
    tandem = start("tandem", real.address, tier="tandem", where={"main": {"items": EU}})
    networks.has(tandem.address, real.next_offset)
    access = start("access", tandem.address, level=2, where={"main": {"shop.items": NARROW}})
    networks.has(access.address, real.next_offset)
    places = ((tandem, database, is_in_eu), (access, second_database, is_in_narrow))
    loops = []
    for broker, url, _ in places:
        settings = settings_for(broker.address, {"a": url})
        full_sync(settings, "a")
        loops.append(following(settings, "a"))
    with loops[0], loops[1]:
        for n in range(25):
            feed.cut(*(random_change(rng, t) for t in (1, 2, 1) for _ in range(5)), batch_rows=[1000, 4, 3][n % 3])
            if n == 12:
                feed.truncate(1, put(1, "EU", 30), put(2, "EU", 5), put(3, "US", 30))
        for _, url, _ in places:
            wait_until_caught_up(url, real)

    for broker, url, is_inside in places:
        networks.has(broker.address, real.next_offset)
        assert rows_at(url, items()) == rows_inside(feed, is_inside)
        assert rows_at(url, items(2, "others")) == feed.model[2]
        assert full_data(broker.address)[1].keys() == rows_inside(feed, is_inside).keys()
        assert applied_offset(url) == real.next_offset
        with AdminClient(broker.address) as admin:
            status = admin.status()
        assert [*status.alarms, *status.businesses[0].alarms] == []
    assert business_status(tandem.address).counters["key_only_changes"] > 0
    (where,) = business_status(access.address).mirror.where
    assert (where.table, where.predicate) == ("shop.items", "label = 'EU' and amount >= 20 and amount <= 60")
    bodies = increments(access.address, real.next_offset)
    assert bodies
    assert not any(b"US" in bytes(t.rows) for body in bodies for t in body.tables if t.table_id == 1)


def increments(address: str, until: int) -> list[change_pb2.BatchBody]:
    """Return the bodies of all increments that a set keeps in its queue."""
    found = []
    with Subscriber(address, "main", "reader", credit_bytes=8 << 20, transient=True) as subscriber:
        subscriber.open(business_status(address).log_start, 0)
        while subscriber.position < until:
            found += [change_pb2.BatchBody.FromString(i.body) for i in subscriber.increments(1.0)]
    return found


def test_a_filtered_set_survives_kills(database: str, tmp_path: Path, real: RealBroker) -> None:
    """Each kill interrupts work: the full data at first, then increments."""
    rng = random.Random(5)
    feed = Feed(real)
    feed.describe(items())
    feed.cut(*(put(n, rng.choice(("EU", "US")), rng.randint(0, 80)) for n in range(1, 40_000)))
    chosen = networks.settings_of(
        tmp_path / "eu", [real.address], where={"main": {"items": EU}}, listen=f"127.0.0.1:{free_port()}"
    )
    for _ in range(2):
        with BrokerProcess(chosen):
            pass  # and killed during the fill
    broker = BrokerProcess(chosen)
    try:
        networks.has(broker.address, real.next_offset)
        settings = settings_for(broker.address, {"a": database})
        full_sync(settings, "a")
        with following(settings, "a"):
            for n in range(30):
                feed.cut(*(random_change(rng) for _ in range(40)), batch_rows=7)
                if n % 10 == 5:
                    broker.kill()
                    broker = BrokerProcess(chosen)
            wait_until_caught_up(database, real)
        assert rows_at(database, items()) == rows_inside(feed, is_in_eu)
        assert full_data(broker.address)[1].keys() == rows_inside(feed, is_in_eu).keys()
    finally:
        broker.kill()


def test_another_predicate_fills_the_set_again_and_its_consumers_are_loaded_again(
    database: str, tmp_path: Path, real: RealBroker, start: Start
) -> None:
    rng = random.Random(6)
    feed = Feed(real)
    feed.describe(items())
    feed.cut(*(random_change(rng) for _ in range(200)))
    access = start("access", real.address, where={"main": {"items": EU}})
    networks.has(access.address, real.next_offset)
    settings = settings_for(access.address, {"a": database})
    full_sync(settings, "a")
    with following(settings, "a"):
        feed.cut(*(random_change(rng) for _ in range(20)))
        wait_until_caught_up(database, real)
    networks.has(access.address, real.next_offset)
    position = applied_offset(database)
    port = access.address.rpartition(":")[2]
    access.stop()

    again = start(
        "access",
        real.address,
        where={"main": {"items": EU.upper().replace("'EU'", "'EU'")}},
        listen=f"127.0.0.1:{port}",
    )
    networks.wait_for_state(again.address, "following")
    assert business_status(again.address).mirror.fills == 0  # the same predicate in other words
    again.stop()
    again = start("access", real.address, where={"main": {"items": NARROW}}, listen=f"127.0.0.1:{port}")
    eventually(lambda: networks.wait_for_state(again.address, "waiting").reason)
    assert networks.wait_for_state(again.address, "waiting").reason == (
        f"the predicates have changed; the full data is taken once the queue above goes past offset {position}, so "
        "that main/a has to start over"
    )
    assert full_data(again.address)[1].keys() == rows_inside(feed, is_in_eu).keys()  # the set serves its old rows
    feed.cut(put(500, "EU", 30), put(501, "EU", 70))
    networks.has(again.address, real.next_offset)
    assert full_data(again.address)[1].keys() == rows_inside(feed, is_in_narrow).keys()
    with (
        Subscriber(again.address, "main", "main/a", credit_bytes=1 << 20) as subscriber,
        pytest.raises(OffsetTrimmed, match="the queue starts at"),
    ):
        subscriber.open(position, 0)
    second = settings_for(again.address, {"a": database})
    before = rows_at(database, items())
    with pytest.raises(OffsetTrimmed, match="the queue starts at") as trimmed:  # rows would vanish without deletions
        run_apply(second, "a", threading.Event())
    assert "`venus resync --all --target a`" in trimmed.value.hint
    assert rows_at(database, items()) == before
    request_resync(second, "a", "*")
    with following(second, "a"):
        eventually(lambda: rows_at(database, items()) == rows_inside(feed, is_in_narrow))
        feed.cut(*(random_change(rng) for _ in range(20)))
        wait_until_caught_up(database, real)
        # the table may still hold changes from the time of its reload
        eventually(lambda: rows_at(database, items()) == rows_inside(feed, is_in_narrow))


def test_a_column_that_is_dropped_stops_its_table_alone(real: RealBroker, start: Start) -> None:
    feed = Feed(real)
    feed.describe(items(), items(2, "others"))
    feed.cut(put(1, "EU", 20), put(2, "US", 20), put(1, "EU", 20, table=2))
    access = start("access", real.address, where={"main": {"items": EU}})
    networks.has(access.address, real.next_offset)
    without = replace(items(), version=2, columns=(column(1, "id", INT), column(3, "amount", INT)))
    feed.describe(without)
    feed.cut(put(3, 70), put(1, 5), put(2, "US", 30, table=2))
    feed.cut(put(4, 80), put(3, "US", 30, table=2))
    networks.has(access.address, real.next_offset)

    found = full_data(access.address)
    assert found[1].keys() == {("1",)}
    assert found[2].keys() == {("1",), ("2",), ("3",)}
    (alarm,) = business_status(access.address).alarms
    assert alarm.startswith(
        "table shop.items is no longer mirrored: its predicate (label = 'EU' and amount >= 10) does not fit version "
        "2: character 1: shop.items has no column label"
    )
    assert alarm.endswith("; correct [cluster.where.main] and start this broker again")
    assert feed.model[2].keys() == found[2].keys()

    access.stop()
    again = start("access", real.address, where={"main": {"items": "amount >= 70"}})
    feed.cut(put(5, 90))
    networks.has(again.address, real.next_offset)
    assert full_data(again.address)[1].keys() == {("3",), ("4",), ("5",)}
    assert list(business_status(again.address).alarms) == []


def test_an_invalid_predicate_is_reported(real: RealBroker, start: Start) -> None:
    feed = Feed(real)
    feed.describe(items())
    feed.cut(put(1, "EU", 20), put(2, "EU", 70))
    tandem = start("tandem", real.address, tier="tandem", where={"main": {"items": NARROW}})
    where = {"main": {"items": EU, "widgets": "amount > 1"}, "crm": {"customers": "id > 1"}}
    wider = start("wider", tandem.address, level=2, where=where)
    whole = start("whole", tandem.address, level=2)
    for broker in (wider, whole):
        networks.has(broker.address, real.next_offset)

    assert full_data(wider.address)[1].keys() == full_data(whole.address)[1].keys() == {("1",)}
    gets = "and set tandem above gets those where label = 'EU' and amount >= 20 and amount <= 60: only these come"
    wanted = "the rows of shop.items where label = 'EU' and amount >= 10"
    eventually(lambda: list(business_status(wider.address).alarms) == [f"set wider wants {wanted}, {gets}"])
    eventually(
        lambda: list(business_status(whole.address).alarms) == [f"set whole wants every row of shop.items, {gets}"]
    )
    with AdminClient(wider.address) as admin:
        assert list(admin.status().alarms) == [
            "[cluster.where.crm] is about a business that set tandem does not have",
            "[cluster.where.main] is about the table widgets, which set tandem does not have",
        ]
    assert [w.predicate for w in business_status(whole.address).mirror.where] == [
        "label = 'EU' and amount >= 20 and amount <= 60"
    ]


@pytest.mark.parametrize("part", ["open", "where"])
def test_an_older_set_above_that_ignores_predicates_is_refused(
    real: RealBroker, start: Start, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Such a set does not know the field: here the field is dropped from the requests for full data and increments."""
    opened, made = SnapshotClient.open, Subscriber.__init__

    def build_without_where(snapshots: SnapshotClient, business: str, **options: Any) -> Any:
        return opened(snapshots, business, **{**options, "where": ()})

    def connect_without_filter(subscriber: Subscriber, *arguments: Any, **options: Any) -> None:
        made(subscriber, *arguments, **{**options, "where": ()})

    if part == "open":
        monkeypatch.setattr(SnapshotClient, "open", build_without_where)
    else:
        monkeypatch.setattr(Subscriber, "__init__", connect_without_filter)
        begun = Subscriber.open
        monkeypatch.setattr(Subscriber, "open", lambda one, offset, epoch, **_: begun(one, offset, epoch))
    feed = Feed(real)
    feed.describe(items())
    feed.cut(put(1, "EU", 20), put(2, "US", 70))
    access = start("access", real.address, where={"main": {"items": EU}})
    says = "set core has a version without support for [cluster.where]: update it, or remove the predicates"
    with AdminClient(access.address) as admin:
        if part == "open":
            eventually(lambda: f"this set mirrors nothing of main: {says}" in admin.status().alarms)
            assert not admin.status().businesses
        else:
            assert networks.wait_for_state(access.address, "refused").reason == says
            assert business_status(access.address).mirror.lag == 0


def test_a_snapshot_is_filtered_and_counted_for_each_reader(real: RealBroker) -> None:
    """Readers share a checkpoint; the rows and totals of each depend on its request."""
    feed = Feed(real)
    feed.describe(items())
    feed.cut(*(put(n, "EU" if n % 3 else "US", n) for n in range(1, 100)))
    filters = [broker_pb2.RowFilter(table="items", predicate=text) for text in (EU, NARROW)]
    with SnapshotClient(real.address) as snapshots:
        for asked, is_inside in (((), lambda _: True), (filters[:1], is_in_eu), (filters[1:], is_in_narrow)):
            snapshot = snapshots.open("main", where=asked, splits=2)
            loaded = RowTotals()
            for split in snapshot.splits:
                for chunk in snapshots.read_split(snapshot.snapshot_id, split, chunk_bytes=1):
                    loaded.add(chunk.rows)
            assert loaded.rows == len(rows_inside(feed, is_inside))
            snapshots.confirm(snapshot.snapshot_id, {1: loaded}, {1: "items"})
