"""A target whose queue position is gone continues from the full data; readers keep the old rows until then."""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc
import pytest

from tests.conformance.targets.playing import Stage
from tests.support.brokers.delivery import FakeDelivery, PinnedSnapshot
from tests.support.brokers.feed import Key, Row, deletion, items, put
from tests.support.waiting import eventually
from venus.errors import OffsetDiverged, Refused

pytestmark = pytest.mark.integration


def watch_full_data(broker: FakeDelivery, look: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record the rows that readers see each time the target requests a part of the full data."""
    seen: list[object] = []
    find = FakeDelivery._find_pinned

    def watch_call(self: FakeDelivery, name: str, context: grpc.ServicerContext) -> PinnedSnapshot:
        seen.append(look())
        return find(self, name, context)

    monkeypatch.setattr(FakeDelivery, "_find_pinned", watch_call)
    return seen


def lose_history(stage: Stage, broker: FakeDelivery) -> None:
    """Let the broker be one that never had the last changes."""
    broker.increments.clear()
    broker.epoch += 1
    broker.rows[1].pop(next(iter(broker.rows[1])))
    stage.feed.model[1].pop(("1",))


def load_target(stage: Stage) -> dict[Key, Row]:
    stage.feed.describe(items(), items(2, "others"))
    stage.feed.cut(*(put(i, "a", i) for i in range(1, 5)), put(1, "other", 1, table=2))
    stage.target.load()
    return dict(stage.feed.model[1])


def trim_changes(stage: Stage, broker: FakeDelivery) -> None:
    """Change and delete rows and create a table, in increments that the queue then no longer has."""
    stage.feed.cut(put(1, "changed", 10), deletion(2), put(9, "new", 9))
    stage.feed.describe(items(3, "late"))
    stage.feed.cut(put(1, "late", 1, table=3))
    broker.log_start = broker.next_offset


def is_whole(stage: Stage) -> bool:
    found = stage.target.read_view()
    return {t.state for t in found.tables} == {"ACTIVE"} and found.offset == stage.feed.broker.next_offset


def test_a_target_whose_increments_are_gone_continues_by_itself(
    stage: Stage, broker: FakeDelivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_target(stage)
    trim_changes(stage, broker)
    seen = watch_full_data(broker, lambda: stage.place.rows(stage.settings, items()), monkeypatch)
    with stage.follow_in_thread():
        eventually(lambda: is_whole(stage), "the target to be equal")
        stage.feed.cut(put(3, "behind", 30), put(2, "late too", 2, table=3), deletion(1, table=2))
        eventually(lambda: is_whole(stage), "the changes behind it")

    assert seen
    assert seen[0] == before, "readers have every row until the new ones are there"
    stage.compare_tables()
    assert {t.name for t in stage.target.read_view().tables} == {"shop.items", "shop.others", "shop.late"}
    assert stage.target.read_view().unaccounted_rows == 0


def test_changes_that_arrive_during_the_new_load_are_not_lost(
    stage: Stage, broker: FakeDelivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_target(stage)
    trim_changes(stage, broker)
    changes = [(put(1, "meanwhile", 11), deletion(9)), (put(12, "meanwhile", 12),), (put(2, "back", 2),)]
    watch_full_data(broker, lambda: stage.feed.cut(*changes.pop(0)) if changes else None, monkeypatch)
    with stage.follow_in_thread():
        eventually(lambda: not changes and is_whole(stage), "the target to be equal")

    stage.compare_tables()
    assert stage.target.read_view().unaccounted_rows == 0


def test_another_history_is_followed_when_an_operator_asks_for_it(stage: Stage, broker: FakeDelivery) -> None:
    load_target(stage)
    offset = stage.target.read_view().offset
    lose_history(stage, broker)
    with pytest.raises(OffsetDiverged, match=f"target {stage.target.name}: ") as refused:
        stage.target.follow(threading.Event())

    assert f"`venus resync --all --target {stage.target.name}`" in refused.value.hint
    assert stage.target.read_view().offset == offset, "nothing was given up"
    stage.target.resync(None)
    with stage.follow_in_thread():
        eventually(lambda: is_whole(stage), "the target to be equal")
        stage.feed.cut(put(7, "behind", 7), deletion(3))
        eventually(lambda: is_whole(stage), "the changes behind it")

    stage.compare_tables()
    assert stage.target.read_view().unaccounted_rows == 0


def test_one_table_is_not_replaced_by_all(stage: Stage, broker: FakeDelivery) -> None:
    load_target(stage)
    lose_history(stage, broker)
    stage.target.resync("items")
    with pytest.raises(OffsetDiverged):
        stage.target.follow(threading.Event())


def test_a_new_load_shows_no_empty_table_unless_the_operator_accepts_it(
    stage: Stage, broker: FakeDelivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_target(stage)
    lose_history(stage, broker)
    seen = watch_full_data(broker, lambda: stage.place.rows(stage.settings, items()), monkeypatch)
    if stage.target.capabilities.quarantines:  # with that consent its tables are emptied and filled in place
        with pytest.raises(Refused, match="would show empty tables until it is done") as refused:
            stage.target.load()
        assert f"`venus resync --all --target {stage.target.name}`" in refused.value.hint
        assert "--empty-meanwhile" in refused.value.hint
        assert stage.place.rows(stage.settings, items()) == before
        stage.target.load(empty_meanwhile=True)
    else:
        stage.target.load()
        assert seen
        assert all(rows == before for rows in seen)
    stage.compare_tables()
    stage.feed.cut(put(7, "behind", 7))
    stage.follow_to_end()
    stage.compare_tables()
