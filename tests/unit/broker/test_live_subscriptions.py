"""Live subscriptions while the table's columns change, and the limits of subscriptions."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from queue import Empty, Queue
from typing import Any, cast

import numpy as np
import pytest

from venus.broker.listening import listening, watched_table
from venus.broker.listening.listening import Listening, WantedSubscription
from venus.broker.listening.watched_table import WatchedTable
from venus.broker.machine.business import Business
from venus.broker.machine.queue_index import QueuedBatch
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.snapshot.watched_rows import FoldedBatch
from venus.codec.columns import from_columns
from venus.codec.packed import join_items
from venus.codec.row_bytes import Layout
from venus.codec.stored_rows import HEAD_BYTES, heads_of
from venus.model import Column, Kind, LogicalType, TableSchema
from venus.network.matching.interests import Events, Interest, Matches
from venus.predicates import ranges
from venus.predicates.ranges import Predicate

INT, TEXT = LogicalType(kind=Kind.INT, length=8), LogicalType(kind=Kind.TEXT)
DECIMAL = LogicalType(kind=Kind.DECIMAL, precision=9, scale=2)


def table_of(version: int, kind: LogicalType) -> TableSchema:
    return TableSchema(
        table_id=1,
        version=version,
        namespace="shop",
        name="t",
        key=("id",),
        columns=(Column(name="id", number=1, type=INT), Column(name="x", number=2, type=kind)),
    )


def encode_stored(schema: TableSchema, *values: str | None) -> list[bytes]:
    ids, rows = from_columns([[str(n) for n in range(len(values))], list(values)], Layout.of(schema))
    heads = heads_of(1, schema.version, np.zeros(len(values), np.bool_), ids.sizes)
    return join_items(heads.view(np.uint8).reshape(len(values), HEAD_BYTES), ids, rows)


def find_inside(table: WatchedTable, rows: Iterable[bytes]) -> list[tuple[int, int]]:
    found = table.judge_again(list(rows))
    return sorted(zip(found.changes.tolist(), found.subscriptions.tolist(), strict=True))


class OtherBrokers:
    """Interests that are installed at other brokers."""

    def __init__(self) -> None:
        self.interests: dict[int, Interest] = {}

    def add(self, number: int, interest: Interest) -> None:
        assert number not in self.interests
        self.interests[number] = interest

    def remove(self, number: int) -> None:
        del self.interests[number]

    def match(self, events: Events) -> Matches | None:
        return None


def test_equal_predicates_stay_shared_when_a_column_gets_another_type() -> None:
    others = OtherBrokers()
    table = WatchedTable([table_of(1, INT)], others)
    for number in (1, 2):
        table.add(number, "x > 5")
    assert find_inside(table, encode_stored(table_of(1, INT), "5", "6")) == [(1, 1), (1, 2)]
    assert table.describe(table_of(2, DECIMAL)) == {}
    assert find_inside(table, encode_stored(table_of(2, DECIMAL), "5.00", "5.50", None)) == [(1, 1), (1, 2)]
    assert len(others.interests) == 1
    table.add(3, "x > 5")
    assert len(others.interests) == 1


def test_a_column_with_a_new_type_is_compared_by_that_type() -> None:
    table = WatchedTable([table_of(1, TEXT)])
    table.add(1, "x > '5'")
    table.add(2, "id >= 0")
    assert find_inside(table, encode_stored(table_of(1, TEXT), "6")) == [(0, 1), (0, 2)]
    assert list(table.describe(table_of(2, INT))) == [1]
    table.add(3, "x > 5")
    assert find_inside(table, encode_stored(table_of(2, INT), "10", "4")) == [(0, 2), (0, 3), (1, 2)]


def test_a_column_that_no_predicate_names_any_more_leaves_nothing_behind() -> None:
    table = WatchedTable([table_of(1, TEXT)])
    table.add(1, "x in ('5', '6')")
    table.add(2, "id >= 0")
    table.remove(1)
    assert table.describe(table_of(2, INT)) == {}
    table.add(3, "x in (5, 6)")
    assert find_inside(table, encode_stored(table_of(2, INT), "5")) == [(0, 2), (0, 3)]


def test_entry_numbers_do_not_grow_while_subscriptions_start_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_table, "ENTRIES_MIN", 10)
    others = OtherBrokers()
    table = WatchedTable([table_of(1, INT)], others)
    rows = encode_stored(table_of(1, INT), "0", "1")
    table.add(0, "x = 1")
    for n in range(1, 100):
        table.add(n, f"x = {n + 5}")
        assert find_inside(table, rows) == [(1, 0)]
        table.remove(n)
    assert table._index.limit <= 12
    assert len(others.interests) == 1


# -- limits ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def business() -> Business:
    return Business(1, "main", ReviewSchedule(first_s=1.0))


@pytest.fixture(autouse=True)
def _versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "load_schemas", lambda *_: [(0, table_of(1, INT))])


def subscriptions(*predicates: str) -> list[WantedSubscription]:
    return [WantedSubscription(n, predicate) for n, predicate in enumerate(predicates)]


def test_the_number_of_values_in_predicates_is_limited(business: Business) -> None:
    judging = Listening(cast("Any", None), subscriptions_max=100, values_max=8, values_of_stream_max=5)
    one, other = object(), object()
    made, refused = judging.subscribe(business, 1, subscriptions("x in (1, 2, 3)", "x > 1", "", "x in (4, 5)"), one)
    assert len(made) == 3
    assert [(number, str(error)) for number, error in refused] == [
        (3, "the predicates of this stream have 4 values, 2 more would exceed 5")
    ]
    assert "predicate_values_of_client" in refused[0][1].hint
    made_too, refused = judging.subscribe(business, 1, subscriptions("x in (1, 2, 3, 4)", "x in (7, 8, 9)"), other)
    assert len(made_too) == 1
    assert "this stream have 4" in str(refused[0][1])
    third = object()
    _, refused = judging.subscribe(business, 1, subscriptions("x > 2"), third)
    assert str(refused[0][1]) == "the predicates of this broker have 8 values, 1 more would exceed 8"
    judging.unsubscribe(made)
    assert judging.subscribe(business, 1, subscriptions("x in (1, 2, 3, 4)"), third)[1] == []


def test_predicates_are_compiled_while_others_are_judged(business: Business, monkeypatch: pytest.MonkeyPatch) -> None:
    judging = Listening(cast("Any", None), subscriptions_max=100)
    compiled = ranges.compile_predicate
    has_lock: list[bool] = []

    def compile_predicate(text: str, schema: TableSchema) -> Predicate:
        has_lock.append(judging._lock.locked())
        return compiled(text, schema)

    monkeypatch.setattr(listening, "compile_predicate", compile_predicate)
    monkeypatch.setattr(watched_table, "compile_predicate", compile_predicate)
    judging.subscribe(business, 1, subscriptions("x > 1", "x > 2"), object())
    assert has_lock == [False, False]


def folded_batch(at: int, nbytes: int) -> FoldedBatch:
    place = QueuedBatch(
        base_offset=at,
        index=at,
        count=1,
        epoch=1,
        batch_no=at,
        cut=at,
        first_sequence=at,
        last_sequence=at,
        committed_at_us=1,
        captured_at_us=1,
        digest=0,
        nbytes=nbytes,
        before=0,
        cut_end=True,
        tables=(1,),
    )
    return FoldedBatch(place=place, sections=[], schemas=())


def test_the_backlog_of_one_business_makes_no_other_read_again(
    business: Business, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging = Listening(cast("Any", None), subscriptions_max=100)
    monkeypatch.setattr(listening, "QUEUE_BYTES_MAX", 100)
    monkeypatch.setattr(FoldedBatch, "nbytes", property(lambda batch: batch.place.nbytes))
    judging._thread = threading.current_thread()  # so that no thread takes the work
    small = Business(2, "small", ReviewSchedule(first_s=1.0))
    judging.on_folded(business, [folded_batch(1, 60), folded_batch(2, 30)])
    judging.on_folded(small, [folded_batch(1, 20)])
    gaps = [
        (number, batch.next_offset) for number, batch in judging._waiting if isinstance(batch, listening.JudgedBatch)
    ]
    assert gaps == [(1, 3)]
    assert judging.waiting_bytes == 20
    judging.on_folded(business, [folded_batch(3, 10)])
    assert judging.waiting_bytes == 30
    judging.on_folded(small, [folded_batch(2, 200)])
    assert judging.waiting_bytes == 10
    assert judging.gaps == 2


def test_judging_waits_for_the_frames_of_the_previous_batch(
    business: Business, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging, delivered = Listening(cast("Any", None), subscriptions_max=100), Queue[listening.JudgedBatch]()
    judging.deliver = delivered.put
    monkeypatch.setattr(listening, "find_pause_s", lambda _streams: 600.0)
    judging.on_folded(business, [folded_batch(1, 60)])
    assert delivered.get(timeout=60).next_offset == 2
    for offset in (2, 3):
        judging.on_folded(business, [folded_batch(offset, 60)])
    with pytest.raises(Empty):
        delivered.get(timeout=0.2)
    judging.stop()  # does not wait for the pause
    assert delivered.get(timeout=0).next_offset == 4


def test_a_pause_grows_with_the_number_of_streams_up_to_its_limit() -> None:
    assert [listening.find_pause_s(streams) for streams in (0, 1, 20, 1_000_000)] == [0, 0.0015, 0.03, 0.1]
