"""The status of a business with very many consumers or half messages is no longer than a message may be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from venus.broker.machine.business import Business
from venus.broker.machine.consumers import ConsumerState
from venus.broker.machine.half_messages import HalfMessage, HalfState, SharedSequence
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.queue import reader
from venus.broker.status.broker_status import StatusBuilder
from venus.broker.status.table_selection import ANSWER_MAX, EACH_MIN, NAMED_MAX, EntrySelection
from venus.config import BrokerSettings
from venus.network.topology import PULLS_AS
from venus.rpc.channel import MESSAGE_BYTES_MAX
from venus.wire import broker_pb2

MANY = 20_000
LONG = "g" * 150


def business_of(count: int, name: str = "main") -> Business:
    found = Business(1, name, ReviewSchedule(first_s=1.0))
    halves = [HalfMessage(batch_no=n, digest=n, first_sequence=n, count=1) for n in range(1, count + 1)]
    found.committed = replace(HalfState(), halves=SharedSequence(halves))
    for half in halves:
        found.reviews.expect(half.batch_no, float(half.batch_no))
    for n in range(count):
        group = f"{LONG}{n:06d}"
        found.consumers[group] = ConsumerState(group=group, acknowledged=10**9 - n, kept=10**9 - n, token=n + 1)
    return found


def status_of(*businesses: Business) -> broker_pb2.BrokerStatus:
    nothing: Any = SimpleNamespace(
        before=lambda *_: None,
        scan=lambda *_, **__: iter(()),
        get=lambda *_: None,
        is_refusing=False,
        path=Path("/"),
        read_free=lambda: 1 << 40,
        has_failed=False,
        status=lambda *_: [],
        bytes_max=0,
        list_all=lambda: list(businesses),
    )
    buffer: Any = SimpleNamespace(status=lambda: SimpleNamespace(nbytes=0), bytes_max=0)
    report = StatusBuilder(
        settings=BrokerSettings(),
        catalogue=nothing,
        commits=nothing,
        store=nothing,
        buffer=buffer,
        space=nothing,
        snapshots=nothing,
        started_at_us=0,
        clock_us=lambda: 0,
        monotonic=lambda: float(MANY + 1),
    )
    return report()


@pytest.fixture
def _without_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "find_batch", lambda *_: None)


@pytest.mark.usefixtures("_without_batches")
def test_the_oldest_half_messages_are_listed_and_all_are_counted() -> None:
    (entry,) = status_of(business_of(MANY)).businesses

    assert [half.batch_no for half in entry.halves] == list(range(1, NAMED_MAX + 1))
    assert (entry.halves_total, entry.consumers_total, len(entry.consumers)) == (MANY, MANY, NAMED_MAX)
    assert any(f"undecided for {MANY} s ({MANY - 60} of them)" in alarm for alarm in entry.alarms)


@pytest.mark.usefixtures("_without_batches")
def test_consumers_that_need_an_operator_are_listed() -> None:
    business = business_of(MANY)
    away = f"{LONG}{7:06d}"
    business.consumers[away] = replace(business.consumers[away], token=0)
    behind = f"{LONG}{9:06d}"
    business.consumers[behind] = replace(business.consumers[behind], kept=5)
    below = f"{PULLS_AS}eu"
    business.consumers[below] = ConsumerState(group=below, acknowledged=10**12, kept=10**12, token=1)

    (entry,) = status_of(business).businesses

    named = [consumer.group for consumer in entry.consumers]
    assert {away, behind, below} <= set(named)
    assert named == sorted(named)
    assert len(named) == NAMED_MAX


@pytest.mark.usefixtures("_without_batches")
def test_all_businesses_share_the_room_of_one_answer() -> None:
    few = business_of(3, "few")
    status = status_of(*(business_of(2 * NAMED_MAX, f"b{n}") for n in range(12)), few)

    assert sum(len(entry.halves) for entry in status.businesses) <= ANSWER_MAX + 13 * EACH_MIN
    assert [len(entry.consumers) for entry in status.businesses] == [NAMED_MAX] * 10 + [EACH_MIN] * 2 + [3]
    assert status.ByteSize() < MESSAGE_BYTES_MAX / 2


def test_short_lists_are_complete() -> None:
    few = business_of(3)
    assert EntrySelection().select_halves(few.committed.halves) == list(few.committed.halves)
    assert EntrySelection().select_consumers(list(few.consumers.values())) == list(few.consumers.values())
