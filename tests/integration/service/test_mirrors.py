"""Broker sets mirror the set above over the wire: every level has the same bytes at the same offsets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.figures import t1
from tests.support.brokers import networks
from tests.support.brokers.servers import BUSINESS, business_status, commit, data, fill, take
from tests.support.engines.batches import ITEMS, half, other_table
from tests.support.pipelines.pipeline import slowdown_by_others
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker
from venus.errors import Refused, VenusError
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
from venus.rpc.snapshots import SnapshotClient
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2, change_pb2

Start = Callable[..., RunningBroker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with networks.starting(tmp_path) as start:
        yield start


def increments(address: str, offset: int, until: int, epoch: int = 0) -> list[broker_pb2.Increment]:
    with Subscriber(address, BUSINESS, "reader", credit_bytes=8 << 20, transient=True) as subscriber:
        subscriber.open(offset, epoch)
        return take(subscriber, until)


def full_data(address: str) -> dict[int, dict[bytes, bytes]]:
    found: dict[int, dict[bytes, bytes]] = {}
    with SnapshotClient(address) as snapshots:
        snapshot = snapshots.open(BUSINESS, splits=2)
        for split in snapshot.splits:
            for chunk in snapshots.read_split(snapshot.snapshot_id, split):
                rows = found.setdefault(chunk.table_id, {})
                rows |= zip(chunk.rows.record_ids.split(), chunk.rows.packed.split(), strict=True)
        snapshots.close(snapshot.snapshot_id)
    return found


def test_every_level_has_the_same_bytes_at_the_same_offsets(start: Start) -> None:
    home = start("home")
    fill(home.address, 1, 5, rows=20)
    tandem = start("tandem", home.address, tier="tandem")
    access = start("access", tandem.address, level=2)
    networks.has(access.address, 100)
    with Producer(home.address, BUSINESS, "fill", window_bytes_max=8 << 20) as producer:
        producer.connect(0, 5)
        for n in range(6, 12):
            commit(producer, [half(n, rows=20)])
    networks.has(access.address, 220)

    wanted = increments(home.address, 100, 220)
    for broker in (tandem, access):
        assert increments(broker.address, 100, 220) == wanted
        assert full_data(broker.address) == full_data(home.address)
    with AdminClient(access.address) as admin:
        status = admin.status()
    assert list(status.network.path) == ["home", "tandem", "access"]
    assert (status.network.tier, status.network.level, status.network.set) == ("access", 2, "access")
    assert list(status.network.home) == [home.address]
    mirror = status.businesses[0].mirror
    assert (mirror.state, mirror.set, mirror.address, mirror.fills) == ("following", "tandem", tandem.address, 1)
    groups = [c.group for c in business_status(home.address).consumers]
    assert groups == ["mirror/tandem"]
    eventually(lambda: business_status(home.address).consumers[0].acknowledged == 220)


def test_each_subscriber_of_three_access_sets_sees_each_change_once_and_in_order(start: Start) -> None:
    """Scenario 63."""
    home = start("home")
    fill(home.address, 1, 1)
    access = [start(name, home.address) for name in ("lyon", "oslo", "rome")]
    with ExitStack() as stack:
        readers = []
        for broker in access:
            networks.has(broker.address, 1)
            for number in range(5):
                reader = Subscriber(broker.address, BUSINESS, f"main/{number}", credit_bytes=1 << 20)
                readers.append(stack.enter_context(reader))
                reader.open(1, 0)
        sender = stack.enter_context(Producer(home.address, BUSINESS, "fill", window_bytes_max=8 << 20))
        sender.connect(0, 1)
        halves = [half(number) for number in range(2, 102)]
        for message in halves:
            commit(sender, [message])
        for reader in readers:
            assert [one.body for one in take(reader, 101)] == [message.body for message in halves]


@pytest.mark.slow
def test_subscribers_of_three_access_sets_see_each_change_in_time_and_in_bounded_memory() -> None:
    """Scenario 63 with 300 subscribers in processes of their own; figure T1 has 1,000."""
    crowded = slowdown_by_others()
    slowest, memory = t1.measure_access_brokers(300, 10.0)
    crowded = max(crowded, slowdown_by_others())
    assert float(slowest.ours.removesuffix(" s")) <= t1.SEEN_WITHIN_S * crowded, slowest.what
    assert memory.met, memory


def test_a_business_that_is_created_later_is_mirrored_too(start: Start) -> None:
    home = start("home")
    access = start("access", home.address)
    fill(home.address, 1, 3, rows=5)

    networks.has(access.address, 15)
    assert data(increments(access.address, business_status(access.address).log_start, 15)) == data(
        increments(home.address, business_status(access.address).log_start, 15)
    )


def test_existing_data_is_served_while_the_set_above_is_away(start: Start, tmp_path: Path) -> None:
    home = start("home")
    access = start("access", home.address)
    fill(home.address, 1, 3, rows=5)
    networks.has(access.address, 15)
    wanted = full_data(home.address)
    home.stop()

    mirror = networks.wait_for_state(access.address, "cut off")
    assert mirror.since_us
    assert full_data(access.address) == wanted
    port = home.address.rpartition(":")[2]
    start("home", listen=f"127.0.0.1:{port}")
    networks.wait_for_state(access.address, "following")
    with Producer(home.address, BUSINESS, "fill", window_bytes_max=8 << 20) as producer:
        producer.connect(0, 3)
        commit(producer, [half(4, rows=5)])
    networks.has(access.address, 20)
    assert networks.wait_for_state(access.address, "following").fills == 1


def test_a_set_that_is_cut_off_raises_one_alarm_that_names_every_business(start: Start) -> None:
    home = start("home")
    access = start("access", home.address)
    for business in ("orders", "stock"):
        fill(home.address, 1, 3, rows=5, business=business)
        networks.has(access.address, 15, business)
    home.stop()
    for business in ("orders", "stock"):
        networks.wait_for_state(access.address, "cut off", business=business)

    def alarms() -> list[str]:
        with AdminClient(access.address) as admin:
            status = admin.status()
        return [*status.alarms, *(alarm for entry in status.businesses for alarm in entry.alarms)]

    (said,) = eventually(alarms)
    assert re.match(r"set home does not answer for \d+ s, the local data of orders, stock is served: ", said)


def test_two_sets_of_one_name_are_kept_apart(start: Start, tmp_path: Path) -> None:
    home = start("home")
    fill(home.address, 1, 3, rows=5)
    first = start("lyon", home.address)
    networks.has(first.address, 15)
    second = start("another", home.address, set_name="lyon")

    said = networks.wait_for_state(second.address, "refused")
    assert "two sets are called lyon: another one, at ipv4:127.0.0.1:" in said.reason
    assert business_status(first.address).mirror.state == "following"
    (alarm,) = business_status(second.address).alarms
    assert alarm.startswith("the mirror is refused by set home: two sets are called lyon")
    second.stop()
    first.stop()
    networks.has(start("lyon", home.address).address, 15)  # a set is identified by its data directory
    with Producer(home.address, BUSINESS, "fill", window_bytes_max=8 << 20) as producer:
        producer.connect(0, 3)
        commit(producer, [half(4, rows=5)])
    networks.has(start("paris", home.address).address, 20)


def test_a_producer_is_redirected_to_the_home_in_one_line(start: Start) -> None:
    home = start("home")
    fill(home.address, 1, 1)
    tandem = start("tandem", home.address, tier="tandem")
    access = start("access", tandem.address, level=2)
    networks.has(access.address, 1)

    for business in (BUSINESS, "another"):
        with (
            Producer(access.address, business, "lost", window_bytes_max=1 << 20) as producer,
            pytest.raises(Refused, match=rf"takes no changes from producers; the home is at {home.address}"),
        ):
            producer.connect(0, 0)


def test_a_consumer_moves_between_two_access_sets_at_the_same_offset(start: Start) -> None:
    home = start("home")
    fill(home.address, 1, 2, rows=5)
    first, second = start("first", home.address), start("second", home.address)
    networks.has(first.address, 10)
    networks.has(second.address, 10)
    with Producer(home.address, BUSINESS, "fill", window_bytes_max=8 << 20) as producer:
        producer.connect(0, 2)
        commit(producer, [half(n, rows=5) for n in range(3, 9)])
    networks.has(first.address, 40)
    networks.has(second.address, 40)
    with Subscriber(first.address, BUSINESS, "main/eu", credit_bytes=200) as subscriber:
        subscriber.open(10, business_status(home.address).epoch)
        taken = take(subscriber, 20)
        subscriber.acknowledge(subscriber.position)
        position, epoch = subscriber.position, taken[-1].epoch
    with Subscriber(second.address, BUSINESS, "main/eu", credit_bytes=1 << 20) as subscriber:
        subscriber.open(position, epoch)
        taken += take(subscriber, 40)

    assert taken == increments(home.address, 10, 40)


def test_labels_select_their_tables_alone(start: Start) -> None:
    labels = {"eu": ("items",), "us": ("shop.others2", "business:crm")}
    home = start("home")
    other = other_table(2)
    with Producer(home.address, BUSINESS, "fill", window_bytes_max=8 << 20) as producer:
        producer.connect(0, 0)
        commit(producer, [half(1, rows=10), half(2, rows=10, table=other)])
    tandem = start("tandem", home.address, tier="tandem", labels=["eu", "us"], known_labels=labels)
    access = start("access", tandem.address, level=2, labels=["eu"], known_labels=labels)
    networks.has(access.address, 20)
    before = networks.wait_for_state(access.address, "following").bytes
    with Producer(home.address, BUSINESS, "fill", window_bytes_max=8 << 20) as producer:
        producer.connect(0, 2)
        for n in range(3, 43):
            commit(producer, [half(n, rows=10, payload="x" * 200, table=other if n % 4 else ITEMS)])
    networks.has(access.address, 420)

    assert full_data(access.address) == {1: full_data(home.address)[1]}
    assert full_data(tandem.address) == full_data(home.address)
    found = increments(access.address, business_status(access.address).log_start, 420)
    assert found[0].base_offset == 20
    assert all(a.base_offset + a.count == b.base_offset for a, b in pairwise(found))
    bodies = [change_pb2.BatchBody.FromString(i.body) for i in found]
    assert {t.table_id for b in bodies for t in b.tables if t.kind != change_pb2.TableChanges.LEFT_OUT} == {1}
    labelled = sum(
        len(i.body)
        for i in increments(home.address, 20, 420)
        if change_pb2.BatchBody.FromString(i.body).tables[0].table_id == 1
    )
    pulled = networks.wait_for_state(access.address, "following").bytes - before
    assert abs(pulled - labelled) <= 0.01 * labelled
    with AdminClient(access.address) as admin:
        assert admin.status().alarms == []


def test_a_label_of_an_unknown_table_is_reported(start: Start) -> None:
    home = start("home")
    fill(home.address, 1, 1)
    access = start("access", home.address, labels=["eu"], known_labels={"eu": ("items", "ordres")})
    networks.has(access.address, 1)
    with AdminClient(access.address) as admin:
        eventually(lambda: list(admin.status().alarms) == ["label eu names ordres, which the set above does not have"])


def test_changed_labels_cause_a_new_fill(start: Start, tmp_path: Path) -> None:
    labels = {"eu": ("items",), "us": ("others2",)}
    home = start("home")
    with Producer(home.address, BUSINESS, "fill", window_bytes_max=8 << 20) as producer:
        producer.connect(0, 0)
        commit(producer, [half(1, rows=10), half(2, rows=10, table=other_table(2))])
    access = start("access", home.address, labels=["eu"], known_labels=labels)
    networks.has(access.address, 20)
    access.stop()
    access = start("access", home.address, labels=["eu", "us"], known_labels=labels)
    networks.has(access.address, 20)
    eventually(lambda: networks.wait_for_state(access.address, "following").only == ["items", "others2"])
    eventually(lambda: full_data(access.address) == full_data(home.address))


def test_a_mirror_behind_the_trimmed_queue_is_filled_again(start: Start) -> None:
    small = {"retain_bytes": 2000, "consumer_ttl_s": 0.5}
    home = start("home", **small)
    fill(home.address, 1, 3, rows=5)
    access = start("access", home.address)
    networks.has(access.address, 15)
    access.stop()
    with Producer(home.address, BUSINESS, "fill", window_bytes_max=8 << 20) as producer:
        producer.connect(0, 3)
        for n in range(4, 60):
            commit(producer, [half(n, rows=5)])
        eventually(lambda: business_status(home.address).log_start > 15)
    access = start("access", home.address)
    networks.has(access.address, 295)

    assert full_data(access.address) == full_data(home.address)
    mirror = networks.wait_for_state(access.address, "following")
    assert mirror.fills == 1
    assert business_status(access.address).log_start == 295


@pytest.mark.parametrize("rows", [2, 5])
def test_a_business_that_was_forgotten_and_recreated_is_filled_again(start: Start, rows: int) -> None:
    home = start("home")
    with Producer(home.address, BUSINESS, "fill", window_bytes_max=8 << 20) as producer:
        producer.connect(0, 0)  # both histories have the same epoch, so that it cannot distinguish them
        commit(producer, [half(n, rows=5) for n in range(1, 4)])
        access = start("access", home.address)
        networks.has(access.address, 15)
        commit(producer, [half(4, rows=5)])
        networks.has(access.address, 20)
    port = access.address.rpartition(":")[2]
    access.stop()
    with AdminClient(home.address) as admin:
        admin.forget_business(BUSINESS)
    with Producer(home.address, BUSINESS, "fill", window_bytes_max=8 << 20) as producer:
        producer.connect(0, 0)
        commit(producer, [half(n, rows=rows, payload="other") for n in range(1, 11)])
        access = start("access", home.address, listen=f"127.0.0.1:{port}")
        eventually(lambda: networks.wait_for_state(access.address, "following").fills == 1)
        commit(producer, [half(11, rows=rows, payload="other")])
    networks.has(access.address, 11 * rows)

    assert full_data(access.address) == full_data(home.address)
    assert len(full_data(access.address)[1]) == 11 * rows


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"set_name": "home"}, r"the sets are in a loop: home -> home"),
        ({"level": 2}, r"set home is at level 0, and access set access at level 2 needs one of level 1 above it"),
    ],
)
def test_a_wrong_position_in_the_topology_is_refused_at_the_start(
    start: Start, options: dict[str, Any], says: str
) -> None:
    home = start("home")
    with pytest.raises(Refused, match=says):
        start("access", home.address, **options)


def test_a_mirror_of_another_network_is_refused_at_the_start(start: Start) -> None:
    home, other = start("home"), start("other")
    fill(home.address, 1, 1)
    access = start("access", home.address)
    networks.has(access.address, 1)
    access.stop()
    with pytest.raises(Refused, match=r"set other belongs to another network \(id \w+\), this broker's data to \w+"):
        start("access", other.address)


def test_an_access_set_cannot_have_a_set_below(start: Start) -> None:
    home = start("home")
    first = start("first", home.address)
    with pytest.raises(Refused, match="set second pulls from first, an access set: those serve consumers"):
        start("second", first.address, level=2)


def test_every_broker_of_the_set_above_is_checked_at_the_start(start: Start) -> None:
    home, tandem = start("home"), start("tandem", "127.0.0.1:1", tier="tandem")
    with pytest.raises(Refused, match="set tandem is at level 1, and access set access at level 1 needs one of level"):
        start("access", home.address, tandem.address)


def test_a_contradiction_found_later_is_an_alarm_and_stops_pulling(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    home = start("home")
    fill(home.address, 1, 1)
    port = home.address.rpartition(":")[2]
    home.stop()
    access = start("access", f"127.0.0.1:{port}", level=2)
    assert f"no broker of [cluster] upstream answers yet (127.0.0.1:{port})" in caplog.text
    start("home", listen=f"127.0.0.1:{port}")

    says = "set home is at level 0, and access set access at level 2 needs one of level 1 above it"
    with AdminClient(access.address) as admin:
        eventually(lambda: any(says in alarm for alarm in admin.status().alarms))
        assert not admin.status().businesses
    assert caplog.text.count(says) == 1


def test_a_label_that_the_set_above_lacks_is_reported(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    labels = {"eu": ("items",), "us": ("others2",)}
    home = start("home")
    fill(home.address, 1, 1)
    tandem = start("tandem", home.address, tier="tandem", labels=["eu"], known_labels=labels)
    access = start("access", tandem.address, level=2, labels=["eu", "us"], known_labels=labels)
    says = "set access pulls the label us, and tandem above does not get it: add it there"
    with AdminClient(access.address) as admin:
        eventually(lambda: says in admin.status().alarms)
    assert caplog.text.count(says) == 1
    networks.has(access.address, 1)


def test_two_sets_that_pull_from_each_other_report_it(start: Start, tmp_path: Path) -> None:
    first = networks.start(tmp_path / "a", "127.0.0.1:1", tier="tandem")
    port = first.address.rpartition(":")[2]
    second = start("b", first.address, tier="tandem", level=2)
    first.stop()
    with pytest.raises(VenusError, match=r"set b is at level 2|in a loop"):
        start("a", second.address, tier="tandem", level=1, listen=f"127.0.0.1:{port}")
