"""The broker keeps a held table's increments, and a table that has lost them does not stop the others (VENUS 3.4)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers.feed import Feed, following, items, put, rows_at, settings_for, wait_until_caught_up
from tests.support.brokers.real_broker import RealBroker
from tests.support.brokers.servers import business_status
from tests.support.waiting import eventually
from venus.adapters.targets.relational.control import pause, read_progress, read_table_states, request_resync, resume
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.targets.relational.states import TableState
from venus.config import Settings
from venus.rpc.admin import AdminClient
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration

RETAIN_BYTES = 20_000


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealBroker]:
    """Start a broker that keeps little more than its consumers need."""
    started = RealBroker(tmp_path / "data", retain_bytes=RETAIN_BYTES)
    yield started
    started.stop()


def load(database: str, feed: Feed, real: RealBroker) -> Settings:
    feed.describe(items(), items(2, "others"))
    feed.cut(*(put(i, "old", i) for i in range(20)), *(put(i, "old", i, table=2) for i in range(20)))
    settings = settings_for(real.address, {"a": database})
    full_sync(settings, "a")
    return settings


def commit_more_than_retained(feed: Feed, word: str) -> None:
    """Commit several times as much as the broker keeps without consumers."""
    for n in range(10):
        feed.cut(put(n, word, n), *(put(i, f"{word} {n}" * 20, i, table=2) for i in range(100)))


def consumer(real: RealBroker, group: str = "main/a") -> broker_pb2.ConsumerStatus:
    return next(c for c in business_status(real.address).consumers if c.group == group)


def is_trimmed_beyond(real: RealBroker, offset: int) -> bool:
    return business_status(real.address).log_start > offset


def state_of(settings: Settings, name: str = "shop.items") -> TableState:
    return next(t for t in read_table_states(settings, "a") if t.source_name == name)


def test_the_increments_of_a_held_table_are_kept_over_reconnections(database: str, real: RealBroker) -> None:
    feed = Feed(real)
    settings = load(database, feed, real)
    with following(settings, "a"):
        pause(settings, "a", ["items"])
        held_from = real.next_offset
        commit_more_than_retained(feed, "first")
        wait_until_caught_up(database, real)
    real.stop()
    real.start()
    with following(settings, "a"):
        commit_more_than_retained(feed, "second")
        wait_until_caught_up(database, real)
        eventually(lambda: consumer(real).acknowledged == real.next_offset, "the acknowledgement")
        kept = consumer(real)
        commit_more_than_retained(feed, "third")  # so that the broker has time and a reason to trim
        wait_until_caught_up(database, real)
        resume(settings, "a", ["items"])
        eventually(lambda: state_of(settings).state == "ACTIVE", "the table's return")
        eventually(lambda: consumer(real).kept == real.next_offset, "the end of what is kept")
        eventually(lambda: is_trimmed_beyond(real, held_from), "the trimming")

    assert (kept.kept, kept.held_bytes > 2 * RETAIN_BYTES) == (held_from, True)
    assert [rows_at(database, feed.schemas[t]) for t in (1, 2)] == [feed.model[1], feed.model[2]]
    assert read_progress(settings, "a").unaccounted == 0


def test_a_held_table_without_its_increments_halts_alone(database: str, real: RealBroker) -> None:
    """The target's group was forgotten while it was away: other tables continue, and a resync repairs this one."""
    feed = Feed(real)
    settings = load(database, feed, real)
    with following(settings, "a"):
        pause(settings, "a", ["items"])
        feed.cut(put(1, "missed", 1), put(1, "met", 1, table=2))
        wait_until_caught_up(database, real)
        eventually(lambda: consumer(real).acknowledged == real.next_offset, "the acknowledgement")
    eventually(lambda: not consumer(real).connected, "the end of the stream")
    with following(settings, "a"):
        commit_more_than_retained(feed, "while held")
        wait_until_caught_up(database, real)
    eventually(lambda: not consumer(real).connected, "the end of the stream")
    with AdminClient(real.address) as admin:
        admin.forget("main", "main/a")
    eventually(lambda: is_trimmed_beyond(real, state_of(settings).held_from or 0), "the trimming")

    with following(settings, "a"):
        feed.cut(put(2, "again", 2), put(2, "again", 2, table=2))
        eventually(lambda: state_of(settings).state == "HALTED", "the halt")
        halted = state_of(settings)
        wait_until_caught_up(database, real)
        assert state_of(settings, "shop.others").state == "ACTIVE"
        assert rows_at(database, feed.schemas[2]) == feed.model[2]
        eventually(lambda: consumer(real).kept == real.next_offset, "nothing is kept for a table that has lost it")
        resume(settings, "a", ["items"])
        eventually(lambda: state_of(settings).state == "HALTED", "the second halt")
        request_resync(settings, "a", "items")
        commit_more_than_retained(feed, "after")
        eventually(lambda: state_of(settings).state == "ACTIVE", "the table's return")
        wait_until_caught_up(database, real)

    assert "the queue no longer has its changes" in halted.reason
    assert "`venus resync shop.items --target a`" in halted.reason
    assert [rows_at(database, feed.schemas[t]) for t in (1, 2)] == [feed.model[1], feed.model[2]]
    assert read_progress(settings, "a").unaccounted == 0
