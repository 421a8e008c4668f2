"""Clients subscribe at a broker whose matching others share: they get the same rows, also while the others die.

The brokers find each other by configured addresses, or in the etcd of their cluster.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.integration.service.test_listening import Reader
from tests.support.brokers.broker_clusters import BrokerCluster
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.feed import Feed, deletion, items, put
from tests.support.brokers.overlays import BrokerOverlay, matching
from tests.support.brokers.real_broker import RealBroker
from tests.support.brokers.servers import settings
from tests.support.ports import free_port
from tests.support.waiting import eventually
from venus.client import Broker as Connection
from venus.client import connect
from venus.rpc.admin import AdminClient
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration

#: Longest time for which a subscriber waits for a broker that was killed.
DEADLINE_MS = 500.0
#: Tables to try: the broker itself is responsible for about every third or fourth one.
TABLES_MAX = 40


class SharingBroker(RealBroker):
    """A broker in a thread, in an overlay."""

    def __init__(self, data_dir: Path, join: list[str]) -> None:
        own = settings(data_dir, listen=f"127.0.0.1:{free_port()}")
        self._settings = own.model_copy(update={"matching": matching(join, brokers=8, deadline_ms=DEADLINE_MS)})
        self._last_batch = self.next_offset = 0
        self.start()


def predicates() -> list[tuple[str, Callable[[str, int], bool]]]:
    """Return predicates, and the SQL condition of each."""
    found: list[tuple[str, Callable[[str, int], bool]]] = []
    for low in range(0, 400, 20):
        found.append((f"amount between {low} and {low + 29}", lambda _, a, low=low: low <= a <= low + 29))  # type: ignore[misc]
        found.append((f"label = 'EU' and amount >= {low}", lambda name, a, low=low: name == "EU" and a >= low))  # type: ignore[misc]
    return found


class LeadingBroker(RealBroker):
    """The leading broker of a cluster."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self._last_batch = self.next_offset = 0
        self.name, self._producer, _ = cluster.connect_producer()
        self.address = cluster.brokers[self.name].address


class ChangingRows:
    """Random changes of a table, its current rows, and one reader of them for each predicate."""

    def __init__(self, broker: RealBroker, feed: Feed, number: int) -> None:
        self._broker, self._feed, self._number, self._chance = broker, feed, number, random.Random(5)
        self.table = items(number, f"items{number}")
        self._readers: list[Reader] = []
        self._rows: dict[int, tuple[str, int]] = {}
        self._feed.describe(self.table)
        self._put(1, "EU", 50)

    def subscribe(self, connection: Connection) -> None:
        """Start a reader for each predicate."""
        table = f"shop.{self.table.name}"
        self._readers = [Reader(connection.changes(table, where=text)) for text, _ in predicates()]
        self._read()

    def unsubscribe(self) -> None:
        """Close all readers."""
        for reader in self._readers:
            reader.changes.close()

    def write(self, cuts: int) -> None:
        """Insert, update or delete a row in each cut."""
        chance = self._chance
        for _ in range(cuts):
            key, row = chance.randrange(60), (chance.choice(["EU", "US"]), chance.randrange(450))
            if key in self._rows and chance.random() < 0.2:
                self._feed.cut(deletion(key, table=self._number))
                del self._rows[key]
            else:
                self._put(key, *row)

    def check(self) -> None:
        """Compare each reader's rows with the rows that satisfy its predicate."""
        self._read()
        for (text, holds), reader in zip(predicates(), self._readers, strict=True):
            wanted = {n: row for n, row in self._rows.items() if holds(*row)}
            assert {n: (row["label"], row["amount"]) for n, row in reader.rows.items()} == wanted, text

    def _put(self, key: int, label: str, amount: int) -> None:
        self._feed.cut(put(key, label, amount, table=self._number))
        self._rows[key] = (label, amount)

    def _read(self) -> None:
        for reader in self._readers:
            reader.read_until(self._broker.next_offset)


def overlay_of(address: str) -> broker_pb2.OverlayStatus:
    with AdminClient(address) as admin:
        return admin.status().overlay


def are_apart(addresses: Sequence[str]) -> bool:
    """Return whether brokers know each other and each has a part of the overlay for itself: then none moves.

    One that moves may take over a table for which others were responsible.
    """
    found = [overlay_of(address) for address in addresses]
    return all(one.neighbours == len(found) - 1 and len(one.members) == 1 for one in found)


def write_until_matched_elsewhere(rows: ChangingRows, address: str) -> None:
    before = overlay_of(address)

    def is_matched_elsewhere() -> bool:
        rows.write(1)
        return overlay_of(address).changes_elsewhere > before.changes_elsewhere

    eventually(is_matched_elsewhere, lambda: f"changes matched elsewhere; before: {before}; now: {overlay_of(address)}")


def subscribe_elsewhere(connection: Connection, broker: RealBroker, feed: Feed, first: int = 1) -> ChangingRows:
    """Subscribe to a table that other brokers match; its name and the order of joining decide which do.

    `first` is the number of the first table that is tried.
    """
    for number in range(first, first + TABLES_MAX):
        rows = ChangingRows(broker, feed, number)
        rows.subscribe(connection)
        eventually(partial(is_installed, broker.address), "installed subspaces")
        if not overlay_of(broker.address).installed_subspaces:
            return rows
        rows.unsubscribe()
        eventually(partial(is_empty, broker.address), "an overlay without this table")
    raise AssertionError(f"this broker matches each of {TABLES_MAX} tables itself")


def is_installed(address: str) -> bool:
    overlay = overlay_of(address)
    return bool(overlay.subspaces and not overlay.uninstalled)


def is_empty(address: str) -> bool:
    overlay = overlay_of(address)
    return not overlay.subspaces and not overlay.installed_subspaces


def test_subscribers_get_exactly_their_rows_while_the_brokers_that_match_are_killed(tmp_path: Path) -> None:
    with BrokerOverlay(tmp_path, 3, brokers=8) as others:
        broker = SharingBroker(tmp_path / "own", others.addresses)
        feed = Feed(broker)
        eventually(partial(are_apart, [*others.addresses, broker.address]), "four brokers apart", every_s=0.1)
        with connect(broker.address, client="test") as connection:
            rows = subscribe_elsewhere(connection, broker, feed)
            write_until_matched_elsewhere(rows, broker.address)
            rows.check()
            others.kill(3)
            before = overlay_of(broker.address).changes_here
            rows.write(20)
            rows.check()
        eventually(lambda: overlay_of(broker.address).changes_here > before, "changes matched here")
        broker.stop()


def test_brokers_of_a_cluster_find_each_other_in_etcd_and_share_matching(
    tmp_path: Path, etcd_server: EtcdCluster
) -> None:
    shared = matching((), brokers=8, deadline_ms=DEADLINE_MS)
    with BrokerCluster(tmp_path, etcd_server, lease_s=4.0, matching=shared) as cluster:
        broker = LeadingBroker(cluster)
        other = next(name for name in "abc" if name != broker.name)

        def share_matching() -> bool:
            return are_apart([one.address for one in cluster.brokers.values()])

        eventually(share_matching, "an overlay of three brokers", every_s=0.1)
        feed = Feed(broker)
        with connect(broker.address, client="test") as connection:
            rows = subscribe_elsewhere(connection, broker, feed)
            write_until_matched_elsewhere(rows, broker.address)
            cluster.brokers[other].kill()
            rows.write(20)
            rows.check()
            cluster.start(other)
            eventually(share_matching, "an overlay of three brokers again", every_s=0.1)
            # a broker that joins takes any empty part of the overlay, so the table may be at this broker from now on
            rows.check()
            rows.unsubscribe()
            eventually(partial(is_empty, broker.address), "an overlay without this table")
            rows = subscribe_elsewhere(connection, broker, feed, first=TABLES_MAX + 1)
            write_until_matched_elsewhere(rows, broker.address)
            rows.check()
