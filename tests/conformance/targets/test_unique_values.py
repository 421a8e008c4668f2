"""Unique columns: rows that exchange their values, and a row whose value another row still has."""

from __future__ import annotations

import pytest

from tests.conformance.targets.playing import Stage
from tests.support.brokers.feed import deletion, items, put, unique_label

pytestmark = pytest.mark.integration


def test_rows_that_exchange_their_unique_values_are_all_kept(stage: Stage) -> None:
    stage.feed.describe(unique_label(items()))
    stage.feed.cut(put(1, "a", 1), put(2, "b", 2), put(3, "c", 3))
    stage.target.load()
    with stage.follow_in_thread():
        stage.feed.cut(put(1, "b", 1), put(2, "c", 2), put(3, "a", 3))
        stage.feed.cut(deletion(1), put(9, "b", 9))
        stage.wait_until_applied(stage.feed.broker.next_offset)

    stage.compare_tables()


def test_a_row_whose_unique_value_is_taken_waits_and_changes_no_other_row(stage: Stage) -> None:
    """An upsert that matched rows by the label would replace or change row 2."""
    if not stage.place.duplicate:
        return
    stage.feed.describe(unique_label(items()), items(2, "others"))
    stage.feed.cut(put(1, "a", 1), put(2, "b", 2))
    stage = stage.configure(on_error="quarantine")
    stage.target.load()
    with stage.follow_in_thread():
        stage.feed.cut(put(1, "b", 10), put(5, "e", 5), put(1, "fine", 1, table=2))
        stage.wait_until_applied(stage.feed.broker.next_offset)
    (row,) = stage.target.open_quarantine().list()

    found = stage.place.rows(stage.settings, items())
    assert found == {("1",): ("a", "1"), ("2",): ("b", "2"), ("5",): ("e", "5")}
    assert (row.key, row.sqlstate) == ('{"id": "1"}', stage.place.duplicate)
    stage.feed.cut(put(2, "free", 2))
    stage.follow_to_end()
    assert stage.target.open_quarantine().retry([row.id]).applied == 1
    stage.compare_tables()
