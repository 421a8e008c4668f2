"""A subscription's view drops changes that it has delivered before, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.engines.batches import ITEMS, half
from venus.broker.machine import envelope, folding
from venus.codec.changed_rows import ChangeVerdicts, Operation, encode_loaded, encode_replay, encode_truncation
from venus.codec.packed import pack_items
from venus.codec.schema import to_wire
from venus.codec.stored_rows import StoredRows
from venus.codec.subscription import SubscriptionView
from venus.wire import broker_pb2

NUMBER = 1


def values(*batches: int) -> list[bytes]:
    """Return the stored rows of batches of one row, whose key and sequence are its number."""
    found: list[bytes] = []
    for batch in batches:
        (section,) = envelope.build_sections(envelope.parse_body(half(batch).body))
        found += folding.encode_values(section)
    return found


def changes(*batches: int, position: int = 0, replayed: bool = False) -> broker_pb2.ChangedRows:
    after = values(*batches)
    verdicts = ChangeVerdicts(
        np.arange(len(after)), np.full(len(after), NUMBER), np.full(len(after), Operation.INSERT, np.uint8)
    )
    message = encode_replay(ITEMS.table_id, after, verdicts, [NUMBER] if replayed else [])
    message.next_offset, message.epoch = position, 1
    return message


def loaded_rows(*batches: int, position: int = 0) -> broker_pb2.ChangedRows:
    message = encode_loaded(ITEMS.table_id, StoredRows(pack_items(values(*batches))), NUMBER)
    message.next_offset, message.epoch = position, 1
    return message


def truncation(*, replayed: bool = False) -> broker_pb2.ChangedRows:
    return encode_truncation(ITEMS.table_id, [NUMBER], is_replay=replayed)


class Reader:
    """A view, and the keys that it has returned; 0 = a truncation."""

    def __init__(self) -> None:
        self.view = SubscriptionView(NUMBER)
        self.keys: list[int] = []
        self.take(state=broker_pb2.BEGUN)

    def take(self, *messages: broker_pb2.ChangedRows, state: Any = None) -> Reader:
        frame = broker_pb2.ChangesFrame(tables=[to_wire(ITEMS)], changes=messages)
        if state is not None:
            frame.news.add(number=NUMBER, state=state, table_id=ITEMS.table_id)
        for found in self.view.take(frame):
            self.keys += [0] if found.is_truncation else [row["id"] for row in found.values()]
        return self

    def begin(self) -> Reader:
        return self.take(state=broker_pb2.BEGUN)

    def live_reader(self) -> Reader:
        return self.take(state=broker_pb2.LIVE)


def test_a_transaction_that_is_replayed_after_its_first_part_is_delivered_once() -> None:
    reader = Reader().live_reader().take(changes(1, position=1)).take(changes(2, 3))
    reader.begin().take(changes(2, 3, 4, position=4, replayed=True)).live_reader().take(changes(5, position=5))
    assert reader.keys == [1, 2, 3, 4, 5]


def test_live_changes_that_were_judged_together_with_read_ones_are_delivered_once() -> None:
    reader = (
        Reader()
        .take(loaded_rows(3, 1))
        .take(loaded_rows(2, position=3))
        .take(changes(4, position=4, replayed=True))
        .live_reader()
    )
    assert reader.take(changes(3, 4, 5, position=5)).keys == [3, 1, 2, 4, 5]


def test_a_late_change_does_not_count_as_delivered() -> None:
    reader = Reader().take(changes(5, 6, position=6, replayed=True)).live_reader()
    assert reader.take(changes(2, 7, position=8)).keys == [5, 6, 2, 7]


@pytest.mark.parametrize("position", [4, 0])
def test_after_a_replayed_truncation_everything_is_delivered_again(position: int) -> None:
    reader = Reader().live_reader().take(changes(1, position=1)).take(truncation()).take(changes(2))
    reader.begin().take(truncation(replayed=True)).take(changes(2, 3, position=position, replayed=True))
    assert reader.keys == [1, 0, 2, 0, 2, 3]


def test_repeated_rows_are_all_delivered() -> None:
    reader = Reader().take(loaded_rows(1, 2))
    assert reader.take(state=broker_pb2.RELOADS).take(loaded_rows(1, 2, position=2)).keys == [1, 2, 0, 1, 2]
