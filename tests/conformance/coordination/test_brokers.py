"""Registration of brokers: leases, one living broker for each id, watches."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance.coordination.conftest import LEASE_S, SHORT_LEASE_S, AnyCoordinator, Cluster
from tests.conformance.coordination.test_businesses import create_business, leadership
from tests.support.waiting import eventually
from venus.broker.replicas.store_identity import CLUSTER_FILE, join_cluster
from venus.errors import Fenced, Refused
from venus.replication.records import InstallationProgress, LiveBroker, Member

#: etcd ends a lease when it looks the next time, and again later on a loaded machine.
LATE_S = 60.0


def broker(name: str = "b1", store: str = "s1", address: str = "127.0.0.1:7400", **fields: object) -> LiveBroker:
    found = LiveBroker(member=Member(broker=name, store=store), address=address)
    return replace(found, **fields)  # type: ignore[arg-type]


def test_a_registered_broker_is_listed_with_all_its_fields(cluster: Cluster) -> None:
    one, other = cluster.coordinator(), cluster.coordinator()
    first = broker(site="north", priority=-2, version="0.2.0")
    second = broker("b2", "s2", "[::1]:7400")

    one.register(first)
    other.register(second)
    assert one.brokers() == other.brokers() == (first, second)

    installing = InstallationProgress(
        business="main", leader="b2", records=7, records_expected=9, nbytes=100, bytes_per_s=50, seconds_left=3
    )
    changed = replace(first, draining=True, priority=7, unhealthy="its disk is slow", installing=(installing,))
    one.register(changed)
    assert other.brokers() == (changed, second)
    assert one.refresh()
    assert other.refresh()


def begin_lease(coordinator: AnyCoordinator) -> float:
    """Register a broker until its lease is refreshed; return when that was asked for."""

    def try_to_register() -> float:
        coordinator.register(broker())
        asked_at = time.monotonic()
        return asked_at if coordinator.refresh() else 0.0

    return float(eventually(try_to_register, "a lease"))


def test_a_lease_that_is_refreshed_does_not_end(cluster: Cluster) -> None:
    coordinator = cluster.coordinator(SHORT_LEASE_S)

    def lives_on() -> bool:
        """Refresh for three leases; False if this test was not scheduled for as long as a lease."""
        refreshed_at = begin_lease(coordinator)
        end = refreshed_at + 3 * SHORT_LEASE_S
        while (asked_at := time.monotonic()) < end:
            if not coordinator.refresh() or coordinator.brokers() != (broker(),):
                assert time.monotonic() - refreshed_at >= SHORT_LEASE_S, "it has ended early"
                return False
            refreshed_at = asked_at
            time.sleep(0.2)
        return True

    eventually(lives_on, "a lease that does not end", timeout_s=120.0)


def test_a_lease_that_is_not_refreshed_ends_after_its_time(cluster: Cluster) -> None:
    one, other = cluster.coordinator(SHORT_LEASE_S), cluster.coordinator()
    before = begin_lease(one)

    eventually(lambda: not other.brokers(), timeout_s=LATE_S)
    assert time.monotonic() - before >= SHORT_LEASE_S, "its broker would still have counted on it"
    assert not one.refresh()
    assert not one.refresh()
    one._lease_s = int(LEASE_S)
    one.register(broker())
    assert other.brokers() == (broker(),)
    assert one.refresh()


def test_a_broker_that_leaves_is_gone_at_once(cluster: Cluster) -> None:
    one, other = cluster.coordinator(), cluster.coordinator()
    one.register(broker())

    one.leave()
    assert other.brokers() == ()
    assert not one.refresh()
    one.leave()
    other.register(broker(store="another", address="127.0.0.1:1"))
    assert other.brokers() != ()


def test_a_broker_that_never_registered_is_not_refreshed(coordinator: AnyCoordinator) -> None:
    assert not coordinator.refresh()
    coordinator.leave()


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        (broker(address="127.0.0.1:7500"), "another broker with the id b1 is alive, at 127.0.0.1:7400"),
        (broker(store="s2"), "another broker with the id b1 is alive, with another store (s1)"),
    ],
)
def test_two_brokers_with_one_id_are_refused(cluster: Cluster, second: LiveBroker, sentence: str) -> None:
    one, other = cluster.coordinator(), cluster.coordinator()
    one.register(broker())

    with pytest.raises(Refused) as caught:
        other.register(second)

    assert str(caught.value) == sentence
    assert caught.value.hint
    assert one.brokers() == (broker(),)
    assert one.refresh()
    assert not other.refresh()


def test_of_eight_brokers_with_one_id_one_lives(cluster: Cluster) -> None:
    living = [broker(address=f"127.0.0.1:{7400 + number}") for number in range(8)]
    together = threading.Barrier(8)

    def register(own: LiveBroker) -> LiveBroker | None:
        coordinator = cluster.coordinator()
        together.wait()
        try:
            coordinator.register(own)
        except Refused:
            return None
        return own

    with ThreadPoolExecutor(8) as pool:
        won = [own for own in pool.map(register, living) if own is not None]

    assert len(won) == 1
    assert cluster.coordinator().brokers() == tuple(won)


def test_a_restarted_broker_takes_its_own_registration_again(cluster: Cluster) -> None:
    before, after = cluster.coordinator(), cluster.coordinator()
    before.register(broker())

    after.register(broker(version="newer"))

    assert not before.refresh(), "the process that was there before must not believe that it is registered"
    assert after.refresh()
    before.leave()
    assert after.brokers() == (broker(version="newer"),)
    assert after.refresh()


def test_a_watch_reports_changes_of_brokers_and_businesses(cluster: Cluster) -> None:
    one, other = cluster.coordinator(), cluster.coordinator()
    notified = threading.Event()
    one.watch(notified.set)
    assert notified.wait(LATE_S), "what happened before the watch was not seen"

    def check_reported(change: object) -> None:
        time.sleep(0.2)
        notified.clear()
        assert callable(change)
        change()
        assert notified.wait(LATE_S)

    check_reported(lambda: other.register(broker()))
    check_reported(lambda: create_business(other))
    check_reported(lambda: other.leave())
    stored = other.read("main")
    assert stored is not None
    check_reported(lambda: other.swap(stored, leadership(term=5)))

    one.close()
    time.sleep(0.2)
    notified.clear()
    other.register(broker())
    assert not notified.wait(0.5)


def test_a_data_directory_belongs_to_one_cluster(cluster: Cluster, tmp_path: Path) -> None:
    one = cluster.coordinator()
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()

    identity = join_cluster(one, first, "shop")
    assert join_cluster(cluster.coordinator(), second, "shop") == identity == join_cluster(one, first, "shop")
    assert list(first.iterdir()) == [first / CLUSTER_FILE]


def test_a_data_directory_of_another_cluster_is_refused_and_nothing_is_touched(
    cluster: Cluster, tmp_path: Path
) -> None:
    one = cluster.coordinator()
    (tmp_path / CLUSTER_FILE).write_text('{"format":1,"id":"of-another-one"}')

    with pytest.raises(Refused, match=r"belongs to another cluster \(id of-another-one\).*was never created there"):
        join_cluster(one, tmp_path, "shop")
    assert one.identity(create=False) is None, "nothing was created either"

    identity = one.identity(create=True)
    with pytest.raises(Refused, match=f"has the id {identity}") as caught:
        join_cluster(one, tmp_path, "shop")
    assert "venus cluster dissolve" in caught.value.hint
    assert (tmp_path / CLUSTER_FILE).read_text() == '{"format":1,"id":"of-another-one"}'


def test_eight_brokers_that_join_at_once_are_in_one_cluster(cluster: Cluster, tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def join_one(number: int) -> str:
        own = tmp_path / str(number)
        own.mkdir()
        coordinator = cluster.coordinator()
        together.wait()
        return join_cluster(coordinator, own, "shop")

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(join_one, range(8)))) == 1


def test_a_broker_stays_marked_as_draining_while_it_is_down(cluster: Cluster) -> None:
    one, other = cluster.coordinator(), cluster.coordinator()
    other.drain("b1", draining=True)
    other.drain("b1", draining=True)
    assert one.draining_brokers() == {"b1"}
    one.register(broker())
    assert other.brokers() == (broker(draining=True),)

    other.drain("b1", draining=False)
    assert other.brokers() == (broker(),)
    assert one.draining_brokers() == frozenset()


def test_the_newest_write_of_a_store_never_decreases(cluster: Cluster) -> None:
    one, other = cluster.coordinator(), cluster.coordinator()
    assert other.newest_write("s1") == 0
    for sequence, newest in ((7, 7), (5, 7), (7, 7), (9, 9)):
        one.save_newest_write("s1", sequence)
        assert other.newest_write("s1") == newest
    other.save_newest_write("s2", 1)
    assert (one.newest_write("s1"), one.newest_write("s2")) == (9, 1)


def test_saving_the_newest_write_of_a_store_notifies_no_watch(cluster: Cluster) -> None:
    """Every broker saves it every few seconds, and a broker that is notified reads the whole cluster state again."""
    one, other, heard = cluster.coordinator(), cluster.coordinator(), list[int]()
    other.watch(lambda: heard.append(1))
    eventually(lambda: heard)
    before = len(heard)
    for sequence in range(1, 9):
        one.save_newest_write("s1", sequence)
    one.drain("b1", draining=True)
    eventually(lambda: len(heard) > before)
    assert len(heard) == before + 1


def test_a_copy_of_a_running_broker_fences_the_older_process(cluster: Cluster) -> None:
    """Without the fence both would register in turn each second and lead in the same term: one member with two logs."""
    before, after = cluster.coordinator(), cluster.coordinator()
    known = create_business(before)
    before.register(broker())
    known = before.swap(known, replace(known, term=2)) or known
    assert (known.term, before.brokers()) == (2, (broker(),))

    after.register(broker())

    assert before.swap(known, replace(known, term=3)) is None, "no broker may act in its name"
    with pytest.raises(Fenced, match="another process has the id, the address and the data of broker b1"):
        before.brokers()
    assert not before.refresh()
    with pytest.raises(Fenced):
        before.register(broker(version="newer"))
    assert before.swap(known, replace(known, term=3)) is None
    assert after.refresh()
    assert after.brokers() == (broker(),)
    stored = after.swap(known, replace(known, term=3))
    assert stored is not None
    assert stored.term == 3


def test_a_broker_whose_lease_has_ended_is_itself_when_it_registers_again(cluster: Cluster) -> None:
    one, other = cluster.coordinator(SHORT_LEASE_S), cluster.coordinator()
    known = create_business(one)
    one.register(broker())
    eventually(lambda: not other.brokers(), timeout_s=LATE_S)
    assert one.swap(known, replace(known, term=2)) is None, "another broker may have taken its place"

    assert not one.refresh()
    one._lease_s = int(LEASE_S)
    one.register(broker(version="newer"))
    one.register(broker(version="newest"))
    assert one.refresh()
    assert one.swap(known, replace(known, term=2)) is not None
    assert one.brokers() == other.brokers() == (broker(version="newest"),)


def test_a_client_that_is_no_broker_may_change_records(cluster: Cluster) -> None:
    operator = cluster.coordinator()
    known = create_business(operator)
    cluster.coordinator().register(broker())
    assert operator.swap(known, replace(known, term=2)) is not None
