"""Several broker sets: a client that loses the nearest continues at the next, and returns once it is healthy."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers.servers import BUSINESS, fill, settings, take
from tests.support.faults.not_leader import NotLeading
from tests.support.faults.proxy import Proxy
from tests.support.pipelines.end_to_end import EndToEnd
from venus.adapters.verify.findings import ComparisonVerdict
from venus.broker.service.process import start_in_thread
from venus.config import BrokerSettings
from venus.errors import Diverged, NotLeader, Unavailable
from venus.rpc import broker_selection
from venus.rpc.broker_selection import BrokerSelector, shared_selector
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber

pytestmark = pytest.mark.integration

BACK_AFTER_S = 2.0


def selection_threads() -> set[threading.Thread]:
    """Return the threads that look for a nearer set; they never stop if the nearer set never returns."""
    return {thread for thread in threading.enumerate() if thread.name == "venus-look"}


@pytest.fixture
def e2e(tmp_path: Path, database: str) -> Iterator[tuple[EndToEnd, Proxy]]:
    """Make two addresses of one broker, which stand for two sets with the same offsets."""
    source = tmp_path / "app.db"
    with sqlite3.connect(source) as app:
        app.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
        app.executemany("INSERT INTO item VALUES (?, ?)", [(n, f"item {n}") for n in range(100)])
    app.close()
    made = EndToEnd(tmp_path, f"sqlite:///{source}", database)
    nearest = Proxy(made.broker.address)
    found = BrokerSettings(addresses=(nearest.address,), further=((made.broker.address,),))
    made.settings = made.settings.model_copy(update={"broker": found})
    try:
        yield made, nearest
    finally:
        made.close()
        nearest.close()


def test_apply_continues_at_the_next_set_and_returns_once_the_nearest_stays_healthy(
    e2e: tuple[EndToEnd, Proxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, nearest = e2e
    reach = made.settings.broker.reach
    sets = [tuple(one.split(",")) for one in reach.split(";")]
    monkeypatch.setitem(broker_selection._known, reach, BrokerSelector(*sets, back_after_s=BACK_AFTER_S))
    monkeypatch.setattr(broker_selection, "LOOK_EVERY_S", 0.2)
    monkeypatch.setattr("venus.network.directory.LOOK_EVERY_S", 0.2)

    def insert(first: int) -> None:
        with sqlite3.connect(tmp_path / "app.db", timeout=60) as app:
            app.executemany("INSERT INTO item VALUES (?, ?)", [(n, f"item {n}") for n in range(first, first + 100)])
        app.close()

    before_all = selection_threads()
    made.install()
    made.load()
    made.start()
    insert(100)
    made.wait_until_caught_up()
    made.until(lambda: shared_selector(reach).place == 0, "the nearest set")
    at_first = nearest.passed.copy()

    nearest.silence()
    nearest.cut()
    insert(200)
    made.until(lambda: shared_selector(reach).place == 1, "the next set")
    made.wait_until_caught_up()
    assert made.at_target("SELECT count(*) FROM item") == [(300,)]

    nearest.resume()
    made.until(lambda: shared_selector(reach).place == 0, "the nearer set")
    before = nearest.passed.copy()
    assert before != at_first, "it was looked at"
    insert(300)
    made.wait_until_caught_up()
    made.until(lambda: sum(nearest.passed.values()) > sum(before.values()) + 2000, "the stream to go back")
    insert(400)
    made.wait_until_caught_up()
    assert made.at_target("SELECT count(*) FROM item") == [(500,)]
    assert made.verify().verdict is ComparisonVerdict.SAME
    made.until(lambda: not selection_threads() - before_all, "the look to end")
    made.stop()


def test_a_set_without_a_leader_is_left_for_the_next(tmp_path: Path) -> None:
    leading = start_in_thread(settings(tmp_path / "b"))
    try:
        fill(leading.address, 1, 1)
        with NotLeading(leading.address, follows="") as first, NotLeading(leading.address, follows="") as second:
            reach = f"{first.address},{second.address};{leading.address}"
            with Subscriber(reach, "main", "g", credit_bytes=1 << 20) as reader, pytest.raises(NotLeader):
                reader.open(0, 0)
            with Subscriber(reach, "main", "g", credit_bytes=1 << 20) as reader:
                assert reader.address == leading.address
                reader.open(0, 0)
                assert len(take(reader, 1)) == 1
                assert not reader.can_move_nearer
    finally:
        leading.stop()


def test_a_replaced_home_that_does_not_know_it_yet_fails_no_producer(tmp_path: Path) -> None:
    old, new = start_in_thread(settings(tmp_path / "old")), start_in_thread(settings(tmp_path / "new"))
    reach = f"{old.address};{new.address}"
    try:
        fill(old.address, 1, 3)
        fill(new.address, 1, 5)
        with Producer(reach, BUSINESS, "capture", window_bytes_max=1 << 20) as producer:
            producer.connect(0, 5)
            assert producer.address == new.address
        with Producer(reach, BUSINESS, "capture", window_bytes_max=1 << 20) as producer, pytest.raises(Diverged):
            producer.connect(0, 9)  # an epoch that no set has
        new.stop()
        with (
            Producer(reach, BUSINESS, "capture", window_bytes_max=1 << 20) as producer,
            pytest.raises(Unavailable, match="another set may be the home by now, and none can be reached"),
        ):
            producer.connect(0, 5)
    finally:
        old.stop()
        new.stop()
