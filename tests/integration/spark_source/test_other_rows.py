"""A query that continues at a broker set with other rows is refused, in the driver and in a task. No part is a fake."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.brokers import networks
from tests.support.brokers.feed import Feed, put
from tests.support.brokers.real_broker import RealBroker
from venus.broker.service.process import RunningBroker
from venus.errors import OtherRows
from venus.spark.datasource import VenusSource
from venus.spark.streaming import ChangesReader

pytestmark = [pytest.mark.integration, pytest.mark.spark]
EU, US = {"main": {"items": "label = 'EU'"}}, {"main": {"items": "label = 'US'"}}
#: The rows of another table do not matter to a stream of this table.
ELSEWHERE = {"main": {"items": "label = 'EU'", "others": "amount > 0"}}
Start = Callable[..., RunningBroker]


@pytest.fixture
def real_broker(tmp_path: Path) -> Iterator[RealBroker]:
    made = RealBroker(tmp_path / "home")
    yield made
    made.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with networks.starting(tmp_path) as start:
        yield start


@pytest.fixture
def feed(real_broker: RealBroker) -> Feed:
    return networks.two_regions(real_broker)


def reader_at(broker: RunningBroker, starting: str) -> ChangesReader:
    source = VenusSource({"address": broker.address, "table": "shop.items", "starting": starting})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, ChangesReader)
    return reader


def labels(reader: ChangesReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    pieces = reader.partitions(start, end)
    rows = [row for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]
    return [row["label"] for row in rows if not row["_deleted"]]


@pytest.mark.parametrize("starting", ["full", "earliest"])
def test_a_query_reads_nothing_from_a_set_with_other_rows(
    real_broker: RealBroker, start: Start, feed: Feed, starting: str
) -> None:
    chosen = {"eu": EU, "twin": {"main": {"shop.items": "LABEL in ('EU')"}}, "us": US, "elsewhere": ELSEWHERE}
    sets = {name: start(name, real_broker.address, where=where) for name, where in chosen.items()}
    feed.cut(put(3, "EU", 30))
    for broker in sets.values():
        networks.has(broker.address, real_broker.next_offset)
    first = reader_at(sets["eu"], starting)
    begun = first.latestOffset(first.initialOffset(), ReadAllAvailable()) if starting == "full" else None
    read = begun or {"offset": real_broker.next_offset, "epoch": 0}
    feed.cut(put(4, "EU", 40), put(5, "US", 50))
    for broker in sets.values():
        networks.has(broker.address, real_broker.next_offset)
    moved = first.latestOffset(read, ReadAllAvailable())
    kept = json.loads(json.dumps(moved))
    assert labels(first, read, moved) == ["EU"]
    first.stop()

    for name in ("twin", "elsewhere"):
        reader = reader_at(sets[name], starting)
        assert reader.latestOffset(kept, ReadAllAvailable()) == kept
        assert labels(reader, read, kept) == ["EU"]
        reader.stop()
    reader = reader_at(sets["us"], starting)
    with pytest.raises(OtherRows, match=r"set us has other rows .*shop\.items \(label = 'US'; until now label = 'EU'"):
        reader.latestOffset(kept, ReadAllAvailable())
    reader.stop()


def test_a_task_at_a_set_with_other_rows_reads_none_of_them(real_broker: RealBroker, start: Start, feed: Feed) -> None:
    """The driver asked one set; a moment later a task asks another one of the list."""
    eu, us = start("eu", real_broker.address, where=EU), start("us", real_broker.address, where=US)
    for broker in (eu, us):
        networks.has(broker.address, real_broker.next_offset)
    driver = reader_at(eu, "full")
    begun = driver.latestOffset(driver.initialOffset(), ReadAllAvailable())
    feed.cut(put(4, "EU", 40), put(5, "US", 50))
    for broker in (eu, us):
        networks.has(broker.address, real_broker.next_offset)
    moved = driver.latestOffset(begun, ReadAllAvailable())
    driver.stop()
    task = reader_at(us, "full")
    (piece,) = driver.partitions(begun, moved)
    with pytest.raises(OtherRows, match="set us has other rows than set eu"):
        list(task.read(piece))


def test_a_checkpoint_of_an_older_version_continues(real_broker: RealBroker, start: Start, feed: Feed) -> None:
    eu = start("eu", real_broker.address, where=EU)
    networks.has(eu.address, real_broker.next_offset)
    older = {"offset": real_broker.next_offset, "epoch": 0}
    feed.cut(put(4, "EU", 40))
    networks.has(eu.address, real_broker.next_offset)
    reader = reader_at(eu, "earliest")
    moved = reader.latestOffset(older, ReadAllAvailable())
    assert labels(reader, older, moved) == ["EU"]
    assert moved["rows"]["set"] == "eu"
    reader.stop()
