"""Stream readers as Spark calls them, but without Spark: ends of micro-batches, and the changes in each partition."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed, deletion, items, put
from tests.support.brokers.real_broker import RealBroker
from tests.support.brokers.servers import business_status
from tests.support.waiting import eventually
from venus.errors import OffsetTrimmed
from venus.spark import datasource_options
from venus.spark.datasource import VenusSource
from venus.spark.datasource_options import DataSourceOptions
from venus.spark.streaming import LOOKS_MAX, ChangesReader
from venus.spark.streaming_apply import RangesReader
from venus.wire import broker_pb2

pytestmark = [pytest.mark.integration, pytest.mark.spark]


class FloodedBroker:
    """A broker with ten times the changes that it keeps."""

    def __init__(self, broker: RealBroker) -> None:
        self.broker, self.feed = broker, Feed(broker)

    def flood(self) -> None:
        for n in range(10):
            self.feed.cut(*(put(i, "more than is retained", n) for i in range(30)))


Latest = Callable[[dict[str, Any], ReadLimit], dict[str, Any]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RealBroker]:
    made = RealBroker(tmp_path / "data")
    yield made
    made.stop()


def changes_reader(broker: RealBroker, **options: object) -> ChangesReader:
    texts = {"address": broker.address, "table": "shop.items", "starting": "earliest"}
    source = VenusSource(texts | {name: str(value) for name, value in options.items()})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, ChangesReader)
    return reader


def micro_batch_ends(start: dict[str, Any], latest: Latest, limit: ReadLimit, until: int) -> list[int]:
    """Return the ends of consecutive micro-batches; an attempt without changes is repeated."""
    found: list[int] = []

    def next_one() -> bool:
        nonlocal start
        end = latest(start, limit)
        if end["offset"] != start["offset"]:
            start = end
            found.append(end["offset"])
        return bool(found) and found[-1] >= until

    eventually(next_one, f"offset {until}")
    return found


def cuts_of(feed: Feed, broker: RealBroker) -> list[int]:
    """Commit cuts of several batches each, and return their end offsets; the last cut is large."""
    found = []
    for n, rows in enumerate((40, 40, 7, 40, 13, 400)):
        feed.cut(*(put(i, "x" * 10, n) for i in range(rows)), batch_rows=9)
        found.append(broker.next_offset)
    return found


def test_micro_batches_end_where_cuts_end_at_every_limit(broker: RealBroker) -> None:
    feed = Feed(broker)
    feed.describe(items())
    cuts = cuts_of(feed, broker)
    last = cuts[-1]
    for options, limit in (
        ({}, ReadMaxRows(60)),
        ({}, ReadMaxRows(5)),
        ({}, ReadAllAvailable()),
        ({"max_bytes": 700}, ReadMaxRows(10**6)),
    ):
        reader = changes_reader(broker, **options)
        found = micro_batch_ends(reader.initialOffset(), reader.latestOffset, limit, last)
        reader.stop()
        assert set(found) <= set(cuts), (options, limit)
        assert len(found) >= 3 or isinstance(limit, ReadAllAvailable)
    ranges = RangesReader(
        {"address": broker.address, "business": "main", "offset": "0", "epoch": "0", "rows_max": "60"}
    )
    found = micro_batch_ends(ranges.initialOffset(), ranges.latestOffset, ReadAllAvailable(), last)
    ranges.stop()
    assert set(found) <= set(cuts)
    assert len(found) >= 3


def test_half_a_cut_is_waited_for() -> None:
    """The other half has not arrived yet: without the wait a target would show part of a transaction."""
    fake = FakeDelivery()
    fake.start()
    feed = Feed(fake)
    feed.describe(items())
    feed.cut(put(1, "a", 1))
    fake.hold_from = fake.next_offset + 18
    feed.cut(*(put(i, "b", i) for i in range(40)), batch_rows=9)
    ranges = RangesReader({"address": fake.address, "business": "main", "offset": "0", "epoch": "1", "rows_max": "5"})

    first = micro_batch_ends(ranges.initialOffset(), ranges.latestOffset, ReadAllAvailable(), 1)
    start = {"offset": 1, "epoch": 1}
    waits = [ranges.latestOffset(start, ReadAllAvailable())["offset"] for _ in range(5)]
    fake.release()
    rest = micro_batch_ends(start, ranges.latestOffset, ReadAllAvailable(), 41)
    ranges.stop()
    fake.stop()

    assert (first, waits, rest) == ([1], [1] * 5, [41])


def test_parts_of_cuts_are_delivered_only_on_request(broker: RealBroker) -> None:
    feed = Feed(broker)
    feed.describe(items())
    cuts = cuts_of(feed, broker)
    reader = changes_reader(broker, whole_cuts="false")

    found = micro_batch_ends(reader.initialOffset(), reader.latestOffset, ReadMaxRows(20), cuts[-1])
    reader.stop()

    assert not set(found) <= set(cuts)
    assert max(b - a for a, b in pairwise([0, *found])) <= 20


def test_every_change_is_in_one_partition_of_a_micro_batch(broker: RealBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("venus.spark.streaming.PIECE_OFFSETS_MIN", 10)
    feed = Feed(broker)
    feed.describe(items(), items(2, "others"))
    feed.cut(*(put(i, "x", i) for i in range(50)), put(1, "other", 1, table=2), batch_rows=30)
    feed.truncate(1, put(3, "behind", 3))
    feed.cut(*(deletion(i) for i in range(20)), *(put(i, "y", i) for i in range(20, 60)), batch_rows=35)
    reader = changes_reader(broker, splits=7)
    start = reader.initialOffset()

    end = {"from": 0, "offset": broker.next_offset, "epoch": 0}
    pieces = reader.partitions(start, end)
    rows = [row for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]
    again = [row for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]
    reader.stop()

    assert len(pieces) == 7
    assert sorted(row["_offset"] for row in rows) == [o for o in range(broker.next_offset) if o != 50]
    assert again == rows
    assert [row["_gone_before"] for row in rows if row["_gone_before"] is not None] == [52]


def test_a_group_keeps_changes_that_spark_has_not_committed(broker: RealBroker) -> None:
    """Only changes that Spark has committed are acknowledged; the broker keeps the rest for the group."""
    feed = Feed(broker)
    feed.describe(items())
    feed.cut(*(put(i, "x", i) for i in range(30)))
    reader = changes_reader(broker, group="lab")

    def acknowledged_offset() -> int:
        return next(c.acknowledged for c in business_status(broker.address).consumers if c.group == "lab")

    start = reader.initialOffset()
    feed.cut(put(1, "y", 1))
    (end,) = micro_batch_ends(start, reader.latestOffset, ReadMaxRows(5), broker.next_offset)[-1:]
    before = acknowledged_offset()
    reader.commit({"offset": end, "epoch": 1})
    eventually(lambda: acknowledged_offset() == end, "the acknowledgement")
    reader.stop()
    feed.cut(put(2, "z", 2))
    restarted = changes_reader(broker, group="lab", starting="latest").initialOffset()

    assert before == start["offset"] == 0
    assert restarted["offset"] == end


@pytest.fixture
def flooded_feed(tmp_path: Path) -> Iterator[FloodedBroker]:
    """Start a broker that keeps a tenth of its changes."""
    made = FloodedBroker(RealBroker(tmp_path / "flooded", retain_bytes=1_000))
    made.feed.describe(items())
    made.flood()
    yield made
    made.broker.stop()


def return_stale_starts(broker: RealBroker, monkeypatch: pytest.MonkeyPatch, stale: int) -> list[int]:
    """Let this many status requests return an outdated log start; return the list of log starts, as they come."""
    found: list[int] = []
    eventually(lambda: business_status(broker.address).log_start > 0, "the trimming")

    def read_stale_status(options: DataSourceOptions) -> broker_pb2.BusinessStatus:
        status = datasource_options.read_business_status(options)
        if len(found) < stale:
            status.log_start = 0
        found.append(status.log_start)
        return status

    monkeypatch.setattr("venus.spark.streaming.read_business_status", read_stale_status)
    return found


@pytest.mark.parametrize("group", ["", "lab"])
def test_the_earliest_offset_is_read_again_if_the_broker_trims_in_between(
    flooded_feed: FloodedBroker, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = return_stale_starts(flooded_feed.broker, monkeypatch, stale=2)
    reader = changes_reader(flooded_feed.broker, **{"group": group} if group else {})
    start = reader.initialOffset()

    end = reader.latestOffset(start, ReadMaxRows(1))
    while end == start:
        end = reader.latestOffset(start, ReadMaxRows(1))
    rows = [row for piece in reader.partitions(start, end) for batch in reader.read(piece) for row in batch.to_pylist()]
    reader.stop()

    assert found[:2] == [0, 0]
    assert len(found) > 2
    assert end["from"] == found[-1] > 0
    assert min(row["_offset"] for row in rows) == found[-1]


def test_a_reader_that_always_comes_too_late_gets_an_error(
    flooded_feed: FloodedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = return_stale_starts(flooded_feed.broker, monkeypatch, stale=1_000)
    reader = changes_reader(flooded_feed.broker)
    start = reader.initialOffset()
    with pytest.raises(OffsetTrimmed):
        reader.latestOffset(start, ReadMaxRows(1))
    reader.stop()
    assert len(found) == LOOKS_MAX


def test_changes_trimmed_after_the_first_look_are_not_skipped(
    flooded_feed: FloodedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that knows its start and has no change yet may be away while its table's changes are trimmed."""
    return_stale_starts(flooded_feed.broker, monkeypatch, stale=0)
    reader = changes_reader(flooded_feed.broker)
    start = {"offset": flooded_feed.broker.next_offset, "epoch": 0}  # no change yet
    assert reader.latestOffset(start, ReadMaxRows(1)) == start
    flooded_feed.broker.stop()
    flooded_feed.broker.start()
    flooded_feed.flood()
    eventually(lambda: business_status(flooded_feed.broker.address).log_start > start["offset"], "the trimming")
    with pytest.raises(OffsetTrimmed):  # the first attempt notices that its stream has ended
        eventually(lambda: reader.latestOffset(start, ReadMaxRows(1)) != start, "an answer")
    reader.stop()


def test_changes_that_spark_may_request_again_are_kept_over_reconnections(tmp_path: Path) -> None:
    """Planning the next micro-batch opens the stream after changes that Spark has not committed yet."""
    broker = RealBroker(tmp_path / "data", retain_bytes=1_000)
    feed = Feed(broker)
    feed.describe(items())
    for n in range(10):
        feed.cut(*(put(i, "more than is retained", n) for i in range(30)))
    reader = changes_reader(broker, group="lab", idle_s=0)
    start = reader.initialOffset()
    *_, end = micro_batch_ends(start, reader.latestOffset, ReadAllAvailable(), broker.next_offset)
    broker.stop()
    broker.start()
    for n in range(20):
        feed.cut(*(put(i, "x", n) for i in range(100)))
    last = micro_batch_ends({"offset": end, "epoch": 0}, reader.latestOffset, ReadAllAvailable(), broker.next_offset)[
        -1
    ]
    time.sleep(2.5)  # the broker trims its queue each second
    reader.stop()

    again = changes_reader(broker, group="lab")
    pieces = again.partitions(again.initialOffset(), {"from": start["offset"], "offset": end, "epoch": 1})
    rows = [row for piece in pieces for batch in again.read(piece) for row in batch.to_pylist()]
    again.commit({"offset": end, "epoch": 1})
    again.latestOffset({"offset": last, "epoch": 0}, ReadAllAvailable())
    again.commit({"offset": last, "epoch": 0})
    eventually(lambda: business_status(broker.address).log_start > end, "the trimming of what Spark has committed")
    again.stop()
    broker.stop()

    assert len(rows) == end - start["offset"] > 0  # the log may already begin after 0
