"""A home whose border masks columns: the sets below and their targets never have the plain text, not even in a file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import networks
from tests.support.brokers.feed import (
    INT,
    Feed,
    column,
    deletion,
    following,
    put,
    rows_at,
    settings_for,
    table,
    wait_until_caught_up,
)
from tests.support.brokers.real_broker import RealBroker
from tests.support.brokers.servers import business_status, take
from tests.support.brokers.servers import settings as broker_settings
from tests.support.masked_values import SECRET, mask_by_hand
from tests.support.waiting import eventually
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.relational.apply_session import run_apply
from venus.adapters.targets.relational.full_sync import full_sync
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.codec import schema as schemas_codec
from venus.errors import ConfigError, OtherRows, Refused, SnapshotExpired
from venus.masking.syntax import ColumnRule
from venus.model import Kind, LogicalType, TableSchema
from venus.network.topology import PULLS_AS
from venus.rpc.admin import AdminClient
from venus.rpc.snapshots import SnapshotClient
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration
Start = Callable[..., RunningBroker]
#: Text in every value that a set below must not have.
PLANTED = "xqzPlantedq7"
DATE = LogicalType(kind=Kind.DATE)
PEOPLE = table(
    1, "people", column(1, "id", INT), column(2, "mail"), column(3, "note"), column(4, "born", DATE), column(5, "city")
)
PLAIN = table(2, "plain", column(1, "id", INT), column(2, "text"))
COLUMNS: dict[str, Any] = {"people.mail": "hmac", "people.note": "drop", "people.born": "year"}
HMAC, YEAR = ColumnRule(mask="hmac"), ColumnRule(mask="year")


def write_key(folder: Path) -> str:
    path = folder / "border.key"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return str(path)


class Home(RealBroker):
    """A home with masking rules for the sets below."""

    def __init__(self, folder: Path, columns: dict[str, Any]) -> None:
        self._folder = folder
        super().__init__(folder / "home", cluster=self._cluster_options(columns))

    def _cluster_options(self, columns: dict[str, Any]) -> dict[str, Any]:
        return {"set": "home", "columns": {"main": columns}, "masking_key_file": write_key(self._folder)}

    def restart(self, columns: dict[str, Any]) -> None:
        """Restart with other rules."""
        self.stop()
        port = self.address.rpartition(":")[2]
        self._settings = broker_settings(
            self._folder / "home", cluster=self._cluster_options(columns), listen=f"127.0.0.1:{port}"
        )
        self.start()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path, COLUMNS)
    yield found
    found.stop()


@pytest.fixture
def feed(home: Home) -> Feed:
    found = Feed(home)
    found.describe(PEOPLE, PLAIN)
    found.cut(*(put(n, *person(n)) for n in range(40)), put(1, f"{PLANTED} is not masked here", table=2))
    return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with networks.starting(tmp_path) as start:
        yield start


def person(n: int) -> tuple[str | None, ...]:
    return f"{PLANTED}{n % 7}@x", None if n % 5 == 0 else f"{PLANTED} note {n}", f"20{n % 30:02d}-05-06", f"city{n}"


def write(feed: Feed, first: int) -> None:
    feed.cut(*(put(n, *person(n)) for n in range(first, first + 30)), deletion(first))
    feed.cut(*(put(n, *person(n + 1)) for n in range(5)), deletion(7), put(2, "x", table=2))


def masked_rows(feed: Feed) -> dict[Any, Any]:
    """Return the rows that every set below must have, computed in plain Python."""
    return {
        key: (mask_by_hand(HMAC, "text", mail), mask_by_hand(YEAR, "date", born), city)
        for key, (mail, _, born, city) in feed.model[1].items()
    }


def files_with(text: str, folder: Path) -> list[str]:
    return [path.name for path in sorted(folder.rglob("*")) if path.is_file() and text.encode() in path.read_bytes()]


def read_schemas(address: str) -> list[TableSchema]:
    with SnapshotClient(address) as snapshots:
        snapshot = snapshots.open("main")
        snapshots.close(snapshot.snapshot_id)
    return [schemas_codec.from_wire(wire) for wire in snapshot.schemas]


def test_sets_below_and_their_targets_have_only_masked_rows(
    tmp_path: Path, database: str, home: Home, feed: Feed, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    feed.model[2] = {}
    tandem = start("tandem", home.address, tier="tandem")
    access = start("access", tandem.address, level=2)
    networks.has(access.address, home.next_offset)
    settings = settings_for(access.address, {"a": database})
    full_sync(settings, "a")
    with following(settings, "a"):
        for first in (40, 100):
            write(feed, first)
        feed.cut(put(999, f"{PLANTED} alone", f"{PLANTED} note alone", "2001-02-03", "cityAlone"))
        wait_until_caught_up(database, home)
    seen = next(s for s in read_schemas(access.address) if s.table_id == 1)
    assert [c.name for c in seen.columns] == ["id", "mail", "born", "city"]
    assert rows_at(database, seen) == masked_rows(feed)
    with pytest.raises(Refused, match="target a cannot be cut over: a broker set above masks its columns"):
        open_target(settings, "a").open_cutover()
    assert "mail (hmac; a broker set above" in open_target(settings, "a").read_view().tables[0].columns
    hidden = [f"{PLANTED} alone", f"{PLANTED} note", f"{PLANTED}3@x"]
    # the write-ahead log has a small cut uncompressed, so the search finds its text
    assert all(files_with(text, tmp_path / "home") for text in hidden[:2])
    for name, broker in (("tandem", tandem), ("access", access)):
        assert files_with("cityAlone", tmp_path / name)
        for _ in range(2):
            assert [text for text in hidden if files_with(text, tmp_path / name)] == []
            broker.stop()  # from here on everything is in sorted files
    assert PLANTED not in caplog.text


def test_a_consumer_with_masked_rows_does_not_move_to_a_set_with_plain_ones(
    database: str, home: Home, feed: Feed, start: Start
) -> None:
    access = start("access", home.address)
    networks.has(access.address, home.next_offset)
    full_sync(settings_for(access.address, {"a": database}), "a")
    before = rows_at(database, next(s for s in read_schemas(access.address) if s.table_id == 1))
    with pytest.raises(OtherRows, match=r"set home has other rows than set access .* masking key"):
        run_apply(settings_for(home.address, {"a": database}), "a", threading.Event())
    assert rows_at(database, next(s for s in read_schemas(access.address) if s.table_id == 1)) == before


def test_changed_rules_make_the_sets_below_take_the_full_data_again(
    database: str, home: Home, feed: Feed, start: Start
) -> None:
    access = start("access", home.address)
    networks.has(access.address, home.next_offset)
    assert business_status(access.address).mirror.fills == 1
    home.restart(COLUMNS | {"people.city": "null", "people.mail": {"text": "***"}})
    eventually(lambda: networks.wait_for_state(access.address, "following").fills == 2, "the second fill")
    write(feed, 50)
    networks.has(access.address, home.next_offset)
    full_sync(settings_for(access.address, {"a": database}), "a")
    seen = next(s for s in read_schemas(access.address) if s.table_id == 1)
    assert rows_at(database, seen) == {key: ("***", row[1], None) for key, row in masked_rows(feed).items()}


def test_a_snapshot_with_other_rules_is_not_continued_below(home: Home, feed: Feed) -> None:
    with SnapshotClient(home.address) as snapshots:
        load = snapshots.open("main", holder="a load")
    before: list[broker_pb2.Snapshot] = []
    for rules in ({}, COLUMNS, COLUMNS | {"people.city": "null"}):
        home.restart(rules)
        with SnapshotClient(home.address) as snapshots:
            assert list(snapshots.read_split(load.snapshot_id, load.splits[0]))
            for snapshot in before:
                with pytest.raises(SnapshotExpired):
                    list(snapshots.read_split(snapshot.snapshot_id, snapshot.splits[0]))
            before.append(snapshots.open("main", holder=f"{PULLS_AS}below"))


def test_a_reader_beside_a_set_below_gets_plain_rows(home: Home, feed: Feed) -> None:
    """Both are at the same position with the same options, and would share frames otherwise."""
    with ExitStack() as stack:
        readers = {
            group: stack.enter_context(Subscriber(home.address, "main", group, credit_bytes=8 << 20))
            for group in (f"{PULLS_AS}below", "reader", f"{PULLS_AS}other")
        }
        for reader in readers.values():
            reader.open(0, 0)
        for first in (40, 100, 160):
            write(feed, first)
            for group, reader in readers.items():
                bodies = b"".join(one.body for one in take(reader, home.next_offset))
                assert (f"{PLANTED} note".encode() in bodies) == (group == "reader")


def test_a_table_that_contradicts_the_rules_is_not_sent(home: Home, feed: Feed, start: Start) -> None:
    access = start("access", home.address)
    networks.has(access.address, home.next_offset)
    columns = tuple(c if c.name != "mail" else column(2, "mail", INT) for c in PEOPLE.columns)
    feed.describe(replace(PEOPLE, version=2, columns=columns))
    feed.model[1] = {}
    feed.cut(put(1, 5, PLANTED, "2001-02-03", "x"), put(3, "y", table=2))
    networks.has(access.address, home.next_offset)
    (alarm,) = business_status(home.address).alarms
    assert alarm.startswith("table shop.people is not sent to the sets below: cluster.columns.main.people.mail: ")
    assert alarm.endswith("correct [cluster.columns.main] and start this broker again")
    assert [s.version for s in read_schemas(access.address) if s.table_id == 1] == [1]
    late = start("late", home.address)
    networks.has(late.address, home.next_offset)
    feed.cut(put(4, "z", table=2))
    for broker in (access, late):
        networks.has(broker.address, home.next_offset)
        assert business_status(broker.address).mirror.fills == 1
    assert [s.name for s in read_schemas(late.address)] == ["plain"]


def test_options_that_reveal_plain_values_are_refused(tmp_path: Path, home: Home, feed: Feed, start: Start) -> None:
    access = start("access", home.address, where={"main": {"people": f"mail = '{PLANTED}1@x'"}})
    reason = "is about mail, which is masked at the border of the set above"
    with AdminClient(access.address) as admin:
        eventually(lambda: any(reason in alarm for alarm in admin.status().alarms), "the alarm")
    core = start("core", home.address, tier="core", level=0)
    networks.has(core.address, home.next_offset)
    with AdminClient(core.address) as admin, pytest.raises(Refused, match=r"a set above masks columns of shop\.people"):
        admin.promote("main", only_look=True, force=False)


def test_a_missing_key_is_reported_before_any_process_starts(tmp_path: Path) -> None:
    place = {"set": "home", "columns": {"main": COLUMNS}}
    with pytest.raises(ConfigError, match=r"cluster\.columns\.main\.people\.mail: hmac needs a key"):
        start_in_thread(broker_settings(tmp_path / "none", cluster=place)).stop()
    with pytest.raises(ValueError, match=r"has rename for people\.city: a border masks and drops"):
        broker_settings(tmp_path / "none", cluster={"columns": {"main": {"people.city": {"rename": "town"}}}})
