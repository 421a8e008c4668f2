"""Subscriptions of real clients at a broker whose matching others share: the same rows, also while the others die."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.service.test_listening import Reader
from tests.support.brokers.feed import Feed, gone, items, put
from tests.support.brokers.overlays import BrokerOverlay, matching
from tests.support.brokers.real_broker import RealBroker
from tests.support.brokers.servers import settings
from tests.support.ports import free_port
from tests.support.waiting import eventually
from venus.client import connect
from venus.rpc.admin import AdminClient
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration


class SharingBroker(RealBroker):
    """A broker in a thread, in an overlay."""

    def __init__(self, data_dir: Path, join: list[str]) -> None:
        own = settings(data_dir, listen=f"127.0.0.1:{free_port()}")
        self._settings = own.model_copy(update={"matching": matching(join, brokers=8, deadline_ms=500.0)})
        self._last_batch = self.next_offset = 0
        self.start()

    def overlay(self) -> broker_pb2.OverlayStatus:
        """Return its place in the overlay."""
        with AdminClient(self.address) as admin:
            return admin.status().overlay


def predicates() -> list[tuple[str, Callable[[str, int], bool]]]:
    """Return predicates, and what each says."""
    found: list[tuple[str, Callable[[str, int], bool]]] = []
    for low in range(0, 400, 20):
        found.append((f"amount between {low} and {low + 29}", lambda _, a, low=low: low <= a <= low + 29))  # type: ignore[misc]
        found.append((f"label = 'EU' and amount >= {low}", lambda name, a, low=low: name == "EU" and a >= low))  # type: ignore[misc]
    return found


def test_subscribers_get_exactly_their_rows_while_the_brokers_that_match_are_killed(tmp_path: Path) -> None:
    rng, source = random.Random(5), dict[int, tuple[str, int]]()
    with BrokerOverlay(tmp_path, 3, brokers=8) as others:
        broker = SharingBroker(tmp_path / "own", others.addresses)
        feed = Feed(broker)
        feed.describe(items())
        feed.cut(put(1, "EU", 50))
        source[1] = ("EU", 50)

        def write(cuts: int) -> None:
            for _ in range(cuts):
                number, row = rng.randrange(60), (rng.choice(["EU", "US"]), rng.randrange(450))
                if number in source and rng.random() < 0.2:
                    feed.cut(gone(number))
                    del source[number]
                else:
                    feed.cut(put(number, *row))
                    source[number] = row

        def check() -> None:
            for (text, holds), reader in zip(predicates(), readers, strict=True):
                reader.until(broker.next_offset)
                wanted = {n: row for n, row in source.items() if holds(*row)}
                got = {n: (row["label"], row["amount"]) for n, row in reader.rows.items()}
                assert got == wanted, text

        with connect(broker.address, client="test") as connection:
            readers = [Reader(connection.changes("shop.items", where=text)) for text, _ in predicates()]
            for reader in readers:
                reader.until(broker.next_offset)
            eventually(lambda: broker.overlay().subspaces and not broker.overlay().uninstalled, "installed subspaces")

            def is_matched_elsewhere() -> bool:
                write(1)
                return broker.overlay().changes_elsewhere > 20

            eventually(is_matched_elsewhere, "changes matched elsewhere")
            check()
            others.kill(3)
            write(20)
            check()
        eventually(lambda: broker.overlay().changes_here > 0, "changes matched here")
        broker.stop()
