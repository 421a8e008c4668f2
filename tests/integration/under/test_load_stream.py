"""A split is loaded by one COPY that is fed while it runs: its progress, and its result when the feed ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import grpc
import pytest

from tests.support.brokers.delivery import CHUNK_ROWS, FakeDelivery
from tests.support.brokers.feed import Feed, column, items, put, query, rows_at, settings_for, table
from tests.support.waiting import eventually
from venus.adapters.targets.relational.full_sync import LoadProgress, full_sync
from venus.errors import ProtocolError
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration


@dataclass
class HaltingBroker(FakeDelivery):
    """A broker that pauses in the middle of a split, or ends it there with a wrong count."""

    halt_at: int = -1
    damage: bool = False
    resume: threading.Event = field(default_factory=threading.Event)

    def ReadSplit(  # noqa: N802
        self, request: broker_pb2.ReadSplitRequest, context: grpc.ServicerContext
    ) -> Iterator[broker_pb2.SnapshotChunk]:
        for number, chunk in enumerate(super().ReadSplit(request, context)):
            if number == self.halt_at and self.damage:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, "another server is listening here")
            if number == self.halt_at:
                self.resume.wait(60)
            yield chunk


@pytest.fixture
def broker() -> Iterator[HaltingBroker]:
    fake = HaltingBroker()
    fake.start()
    yield fake
    fake.resume.set()
    fake.stop()


def test_the_rows_of_a_split_in_progress_are_reported(database: str, broker: HaltingBroker, feed: Feed) -> None:
    count, broker.halt_at = 4 * 4 * CHUNK_ROWS, 3  # four splits, each of which pauses before its last chunk
    feed.describe(items())
    feed.cut(*(put(i, f"a label that is not short, of row number {i}" * 4, i) for i in range(count)))
    reports: list[LoadProgress] = []
    settings = settings_for(broker.address, {"a": database}, apply={"load_workers": 1})
    thread = threading.Thread(target=full_sync, args=(settings, "a", reports.append))

    thread.start()
    eventually(lambda: any(t.rows > CHUNK_ROWS for t in reports), "the first rows")
    seen = [t.rows for t in reports if t.phase == "loading"]
    broker.resume.set()
    thread.join(60)

    assert seen == sorted(seen)
    assert CHUNK_ROWS < max(seen) <= 3 * CHUNK_ROWS  # nothing of the load is committed
    assert reports[-1].rows == count
    assert rows_at(database, items()) == feed.model[1]


def test_an_error_of_the_feed_is_raised_and_no_row_is_loaded(database: str, broker: HaltingBroker, feed: Feed) -> None:
    broker.halt_at, broker.damage = 1, True
    feed.describe(items())
    feed.cut(*(put(i, "x", i) for i in range(8 * CHUNK_ROWS)))
    settings = settings_for(broker.address, {"a": database}, apply={"load_workers": 1})
    with pytest.raises(ProtocolError, match="another server"):
        full_sync(settings, "a")
    assert query(database, "SELECT count(*) FROM shop.items") == [(0,)]
    assert query(database, "SELECT count(*) FROM venus.load_manifest") == [(0,)]

    broker.halt_at = -1
    full_sync(settings, "a")

    assert rows_at(database, items()) == feed.model[1]


def test_rows_of_several_versions_are_in_one_split(database: str, broker: HaltingBroker, feed: Feed) -> None:
    first = table(1, "items", *(c for c in items().columns[:2]), column(4, "gone"))
    second = replace(first, version=2, columns=(*first.columns[:2], column(3, "amount", items().columns[2].type)))
    feed.describe(first)
    feed.cut(*(put(i, "old", "dropped") for i in range(0, 2000, 2)))
    feed.describe(second)
    feed.cut(*(put(i, "new", i) for i in range(1, 2000, 2)))

    report = full_sync(settings_for(broker.address, {"a": database}, apply={"load_workers": 1}), "a")

    assert report.rows == {"shop.items": 2000}
    expected = {(str(i),): ("new", str(i)) if i % 2 else ("old", None) for i in range(2000)}
    assert rows_at(database, second) == expected
