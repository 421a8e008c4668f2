"""A subscriber that reads from replicas: which one it uses, and the effect of a replica's error."""

from __future__ import annotations

from typing import Any

import pytest

from venus.errors import Unavailable, VenusError
from venus.rpc.nearest_subscriber import AVOID_S, NearestSubscriber
from venus.wire import broker_pb2


class Reader:
    """A stream at a replica."""

    def __init__(self, address: str, position: int) -> None:
        self.address, self.position = address, position
        self.error: VenusError | None = None

    def increments(self, _: float) -> list[broker_pb2.Increment]:
        self._check()
        self.position += 1
        return []

    def acknowledge(self, _: int) -> None:
        self._check()

    def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.error is not None:
            raise self.error


class Connection:
    """The connection to the leader."""

    address = "leader:1"

    def call(self, *_: object) -> broker_pb2.Opened:
        names = ("near:1", "far:1")
        return broker_pb2.Opened(replicas=[broker_pb2.ReadReplica(address=n, site=n[:-2]) for n in names])

    def close(self) -> None:
        pass


@pytest.fixture
def subscriber(monkeypatch: pytest.MonkeyPatch) -> NearestSubscriber:
    monkeypatch.setattr("venus.rpc.duplex._connect", lambda *_: Connection())
    monkeypatch.setattr(NearestSubscriber, "_open_at", lambda _, address, offset: Reader(address, offset))
    made = NearestSubscriber("leader:1", "main", "main/eu", near="near", credit_bytes=1 << 20)
    made.open(5, 1)
    return made


def break_reader(subscriber: NearestSubscriber) -> None:
    reader: Any = subscriber._reader
    reader.error = Unavailable("gone")


def test_an_acknowledgement_that_a_replica_refuses_is_no_error_of_the_group(
    subscriber: NearestSubscriber,
) -> None:
    break_reader(subscriber)
    subscriber.acknowledge(5)
    assert subscriber.increments(0.0) == []
    assert subscriber.reads_from == "far:1"


def test_a_reader_returns_to_the_nearest_replica_after_growing_intervals(
    subscriber: NearestSubscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the leader would send the increments for ever once all replicas had failed."""
    now = 0.0
    monkeypatch.setattr(subscriber, "_monotonic", lambda: now)
    for expected in ("far:1", "leader:1"):
        break_reader(subscriber)
        subscriber.increments(0.0)
        assert subscriber.reads_from == expected
    now = AVOID_S
    subscriber.increments(0.0)
    assert (subscriber.reads_from, subscriber.position) == ("near:1", 6)
    break_reader(subscriber)
    subscriber.increments(0.0)
    assert subscriber.reads_from == "far:1"
    now = 2 * AVOID_S
    subscriber.increments(0.0)
    assert subscriber.reads_from == "far:1"
    now = 3 * AVOID_S
    subscriber.increments(0.0)
    assert subscriber.reads_from == "near:1"
