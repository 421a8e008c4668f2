"""A consumer is refused at a set that has other rows at its offset, and applies nothing; all parts are real."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import networks
from tests.support.brokers.feed import (
    Feed,
    applied_offset,
    following,
    items,
    put,
    query,
    rows_at,
    settings_for,
    wait_until_caught_up,
)
from tests.support.brokers.real_broker import RealBroker
from tests.support.brokers.servers import business_status
from tests.support.ports import free_port
from tests.support.waiting import eventually
from venus.adapters.targets.parquet.lake_stream import run_lake
from venus.adapters.targets.parquet.load import load_lake
from venus.adapters.targets.parquet.manifest import LakeManifest, ParquetFolder
from venus.adapters.targets.relational.apply_session import run_apply
from venus.adapters.targets.relational.control import request_resync
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.targets.relational.states import rows_from_text
from venus.broker.mirrors import replication_plan
from venus.broker.service.process import RunningBroker
from venus.config import BrokerSettings as BrokerSettings
from venus.config import Settings
from venus.errors import OffsetTrimmed, OtherRows, Unavailable
from venus.migrations import VERSION_TABLE
from venus.network.row_filters import RowsIdentity
from venus.rpc import reports
from venus.rpc.admin import AdminClient
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2, mirror_pb2

pytestmark = pytest.mark.integration
EU, US = {"main": {"items": "label = 'EU'"}}, {"main": {"items": "label = 'US'"}}
Start = Callable[..., RunningBroker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with networks.starting(tmp_path) as start:
        yield start


@pytest.fixture
def feed(real: RealBroker) -> Feed:
    return networks.two_regions(real)


def settings_at(settings: Settings, address: str) -> Settings:
    return settings.model_copy(update={"broker": BrokerSettings(listen=address)})


def follow_once(settings: Settings) -> None:
    run_apply(settings, "a", threading.Event())


def read_identity(address: str, offset: int, rows: RowsIdentity | None = None) -> RowsIdentity | None:
    """Return the identity of the rows that a set reports at an offset to a client with other rows."""
    with Subscriber(address, "main", "reader", credit_bytes=1 << 20, transient=True) as subscriber:
        return reports.rows_identity(subscriber.open(offset, 0, rows=rows))


def test_a_target_takes_no_changes_from_a_set_with_other_rows(
    database: str, real: RealBroker, start: Start, feed: Feed
) -> None:
    twin = {"main": {"shop.items": "LABEL in ('EU')"}}
    chosen = (("eu", EU), ("twin", twin), ("us", US), ("whole", None))
    sets = {name: start(name, real.address, where=where) for name, where in chosen}
    for broker in sets.values():
        networks.has(broker.address, real.next_offset)
    settings = settings_for(sets["eu"].address, {"a": database})
    full_sync(settings, "a")
    for name, there in (("us", "label = 'US'"), ("whole", "every row")):
        offset = applied_offset(database)
        with pytest.raises(OtherRows) as caught:
            follow_once(settings_at(settings, sets[name].address))
        assert str(caught.value) == (
            f"target a: main: set {name} has other rows than set eu at offset {offset}: shop.items ({there}; until "
            "now label = 'EU'); nothing is read from it"
        )
        assert caught.value.hint.startswith("give that set the same predicates; or `venus resync --all --target a`")
        assert applied_offset(database) == offset
    feed.cut(put(3, "EU", 30), put(4, "US", 40))
    with following(settings_at(settings, sets["twin"].address), "a"):  # the same predicate in other words
        wait_until_caught_up(database, real)
    assert rows_at(database, items()).keys() == {("1",), ("3",)}
    assert '"set": "twin"' in query(database, "SELECT rows_identity FROM venus.applied")[0][0]

    request_resync(settings_at(settings, sets["us"].address), "a", "*")  # the remedy
    with following(settings_at(settings, sets["us"].address), "a"):
        eventually(lambda: rows_at(database, items()).keys() == {("2",), ("4",)})
        wait_until_caught_up(database, real)


def test_a_target_waits_for_a_set_with_its_rows_if_one_exists(
    database: str, real: RealBroker, start: Start, feed: Feed
) -> None:
    port = free_port()
    eu = start("eu", real.address, where=EU, listen=f"127.0.0.1:{port}")
    us = start("us", real.address, where=US)
    for broker in (eu, us):
        networks.has(broker.address, real.next_offset)
    settings = settings_for(eu.address, {"a": database})
    both = settings.model_copy(update={"broker": BrokerSettings(addresses=(eu.address,), further=((us.address,),))})
    full_sync(settings, "a")
    eu.stop()
    feed.cut(put(3, "EU", 30), put(4, "US", 40))
    networks.has(us.address, real.next_offset)
    with (
        Subscriber(both.broker.reach, "main", "main/a", credit_bytes=1 << 20) as subscriber,
        pytest.raises(Unavailable, match=r"set us has other rows than set eu .*another set may have these rows"),
    ):
        subscriber.open(applied_offset(database), 0, rows=position(database))
    with following(both, "a"):
        eu = start("eu", real.address, where=EU, listen=f"127.0.0.1:{port}")
        networks.has(eu.address, real.next_offset)
        wait_until_caught_up(database, real)
    assert rows_at(database, items()).keys() == {("1",), ("3",)}


def position(database: str) -> RowsIdentity | None:
    return rows_from_text(query(database, "SELECT rows_identity FROM venus.applied")[0][0])


def test_a_position_of_an_older_version_is_accepted_once(
    database: str, real: RealBroker, start: Start, feed: Feed
) -> None:
    sets = [start(name, real.address, where=where) for name, where in (("eu", EU), ("us", US))]
    for broker in sets:
        networks.has(broker.address, real.next_offset)
    settings = settings_for(sets[0].address, {"a": database})
    full_sync(settings, "a")
    query(database, "ALTER TABLE venus.applied DROP COLUMN rows_identity, DROP COLUMN compared")
    query(database, f"UPDATE venus.{VERSION_TABLE} SET version_num = 'target_0003' WHERE version_num = 'target_0005'")
    with following(settings, "a"):
        feed.cut(put(3, "EU", 30))
        wait_until_caught_up(database, real)
    found = position(database)
    assert found is not None
    assert found.set == "eu"
    with pytest.raises(OtherRows):
        follow_once(settings_at(settings, sets[1].address))


def test_a_table_that_appears_later_is_in_the_position(
    database: str, tmp_path: Path, real: RealBroker, start: Start, feed: Feed
) -> None:
    """A stream's report at its beginning does not last: a table with the name appears later, also in a folder."""
    late = {"main": {"late": "label = 'EU'"}}
    sets = [start(name, real.address, where=where) for name, where in (("eu", late), ("whole", None))]
    for broker in sets:
        networks.has(broker.address, real.next_offset)
    settings = settings_for(sets[0].address, {"a": database})
    folder = settings_for(sets[0].address, {"a": f"parquet:{tmp_path / 'lake'}"})
    full_sync(settings, "a")
    load_lake(ParquetFolder(folder, "a"), lambda *_: None)
    stop = threading.Event()
    lake = threading.Thread(target=run_lake, args=(folder, "a", stop))
    lake.start()
    try:
        with following(settings, "a"):
            feed.describe(items(3, "late"))
            feed.cut(put(1, "EU", 1, table=3), put(2, "US", 1, table=3))
            feed.cut(put(5, "EU", 1))
            wait_until_caught_up(database, real)
            eventually(lambda: manifest(folder).offset == real.next_offset)
    finally:
        stop.set()
        lake.join()
    for found in (position(database), manifest(folder).rows):
        assert found is not None
        assert [one.name for one in found.tables] == ["shop.late"]
    with pytest.raises(OtherRows, match=r"shop\.late"):
        follow_once(settings_at(settings, sets[1].address))
    with pytest.raises(OtherRows, match=r"shop\.late"):
        run_lake(settings_at(folder, sets[1].address), "a", threading.Event())
    with following(settings, "a"):
        wait_until_caught_up(database, real)


def manifest(settings: Settings) -> LakeManifest:
    found = ParquetFolder(settings, "a").read_manifest()
    assert found is not None
    return found


def test_a_set_takes_no_changes_from_another_set_above_with_other_rows(
    tmp_path: Path, real: RealBroker, start: Start, feed: Feed
) -> None:
    uppers = {
        name: start(name, real.address, tier="tandem", where=where)
        for name, where in (("eu", EU), ("us", US), ("narrow", {"main": {"items": "label = 'EU' and amount > 0"}}))
    }
    for broker in uppers.values():
        networks.has(broker.address, real.next_offset)
    port = free_port()
    own = {"main": {"items": "amount > 0"}}

    def start_below(name: str) -> RunningBroker:
        return start("access", uppers[name].address, level=2, where=own, listen=f"127.0.0.1:{port}")

    access = start_below("eu")
    networks.has(access.address, real.next_offset)
    access.stop()
    access = start_below("us")
    reason = networks.wait_for_state(access.address, "refused").reason
    assert reason.startswith("main: set us has other rows than set eu at offset ")
    assert "shop.items (label = 'US' and amount > 0; until now label = 'EU' and amount > 0)" in reason
    feed.cut(put(7, "EU", 70), put(8, "US", 80))
    networks.has(uppers["us"].address, real.next_offset)
    assert business_status(access.address).next_offset < real.next_offset
    assert business_status(access.address).mirror.fills == 0
    access.stop()
    access = start_below("narrow")  # the same rows, selected by other predicates above
    networks.has(access.address, real.next_offset)
    assert business_status(access.address).mirror.fills == 0
    assert read_identity(access.address, real.next_offset) != read_identity(uppers["us"].address, real.next_offset)


def test_a_consumer_at_the_cut_of_a_refilled_set_gets_the_reason(real: RealBroker, start: Start, feed: Feed) -> None:
    """The column is dropped and added again; meanwhile the table does not change, and keeps its predicate."""
    port = free_port()

    def start_mirror() -> RunningBroker:
        broker = start("eu", real.address, where=EU, listen=f"127.0.0.1:{port}")
        networks.has(broker.address, real.next_offset)
        return broker

    broker = start_mirror()
    before = read_identity(broker.address, real.next_offset)
    whole = items()
    feed.describe(replace(whole, version=2, columns=(whole.columns[0], whole.columns[2])))
    feed.cut(put(3, 30))
    feed.describe(replace(whole, version=3))
    feed.cut(put(4, "EU", 40))
    networks.has(broker.address, real.next_offset)
    assert read_identity(broker.address, real.next_offset, before) == before
    end = real.next_offset
    broker.stop()
    broker = start("eu", real.address, where={"main": {"items": "amount > 0"}}, listen=f"127.0.0.1:{port}")
    networks.has(broker.address, end)
    broker.stop()
    broker = start_mirror()
    with pytest.raises(
        OffsetTrimmed, match=f"set eu has loaded the full data again, and has other rows at offset {end} than"
    ):
        read_identity(broker.address, end, before)


def test_a_set_below_follows_a_refilled_set_above_and_its_readers_restart(
    real: RealBroker, start: Start, feed: Feed
) -> None:
    """The reader is unknown, and everything happens at one offset: only the identity of the rows reveals it."""
    port, upper = free_port(), f"127.0.0.1:{free_port()}"
    tandem = start("tandem", real.address, tier="tandem", where=EU, listen=upper)
    access = start("access", tandem.address, level=2, listen=f"127.0.0.1:{port}")
    end = real.next_offset
    networks.has(access.address, end)
    access.stop()
    with AdminClient(tandem.address) as admin:
        admin.forget("main", "mirror/access")
    tandem.stop()
    access = start("access", upper, level=2, listen=f"127.0.0.1:{port}")
    with Subscriber(access.address, "main", "reader", credit_bytes=1 << 20, transient=True) as subscriber:
        before = reports.rows_identity(subscriber.open(end, 0))
        assert before is not None
        assert before.tables[0].rows == "label = 'EU'"
        elsewhere = start("tandem", real.address, tier="tandem", where=US)
        networks.has(elsewhere.address, end)
        elsewhere.stop()
        start("tandem", real.address, tier="tandem", where=US, listen=upper)
        eventually(lambda: (found := networks.mirror_of(access.address)) is not None and found.fills == 1)
        networks.has(access.address, end)
        feed.cut(put(9, "US", 90))
        networks.has(access.address, real.next_offset)
        with pytest.raises(Unavailable, match="this mirror takes the full data again"):
            eventually(lambda: subscriber.increments(0.2))
    assert business_status(access.address).log_start == end
    with pytest.raises(OffsetTrimmed, match="set access has loaded the full data again"):
        read_identity(access.address, end, before)


def test_a_set_of_an_older_version_learns_the_selection_of_the_sets_above(
    real: RealBroker, start: Start, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older version took its full data, and did not store the selection."""
    made = replication_plan.build_begin_entry

    def build_older_entry(snapshot: broker_pb2.Snapshot, **more: Any) -> mirror_pb2.MirrorBegin:
        found = made(snapshot, **more)
        found.ClearField("levels")
        return found

    monkeypatch.setattr(replication_plan, "build_begin_entry", build_older_entry)
    eu = start("eu", real.address, tier="tandem", where=EU)
    access = start("access", eu.address, level=2)
    networks.has(access.address, real.next_offset)
    found = read_identity(access.address, real.next_offset)
    assert found is not None
    assert [one.rows for one in found.tables] == ["label = 'EU'"]
