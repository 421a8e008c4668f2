"""A large cut is applied piece by piece: new rows are inserted directly, other changes through staging."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import (
    Change,
    Feed,
    deletion,
    following,
    items,
    put,
    query,
    section,
    unique_label,
    wait_until_caught_up,
)
from tests.support.pipelines.applying import check_equal, load_target
from venus.adapters.targets.postgresql.session import TargetSession
from venus.adapters.targets.relational.control import list_quarantine, read_progress, read_table_states
from venus.config import Settings
from venus.model import TableSchema
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration

#: Most rows in memory; a larger cut is streamed.
GROUP = 20


@pytest.fixture(autouse=True)
def _single_batch_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver batches one by one, because a cut that has arrived completely is not streamed."""
    increments = Subscriber.increments
    kept: dict[Subscriber, deque[broker_pb2.Increment]] = {}

    def read_one(subscriber: Subscriber, timeout_s: float) -> list[broker_pb2.Increment]:
        own = kept.setdefault(subscriber, deque())
        if not own:
            own.extend(increments(subscriber, timeout_s))
        return [own.popleft()] if own else []

    monkeypatch.setattr(Subscriber, "increments", read_one)


@pytest.fixture
def copied_tables(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the tables into which rows are copied."""
    found: list[str] = []
    copy_in = TargetSession.copy_in

    def record_call(session: TargetSession, text: str, data: bytes) -> int:
        found.append(text.split()[1].split(".")[-1])
        return copy_in(session, text, data)

    monkeypatch.setattr(TargetSession, "copy_in", record_call)
    return found


def load_streamed(database: str, feed: Feed, schema: TableSchema, **options: object) -> Settings:
    """Load a target that streams its cuts."""
    return load_target(database, feed, schema, rows=100, apply={"cut_group_rows_max": GROUP}, **options)


def cut(feed: Feed, *runs: tuple[Sequence[Change], bool]) -> None:
    """Commit one cut of these sections, each of which is marked as new rows or not."""
    schema = feed.schemas[1]
    for changes, _ in runs:
        for change in changes:
            if change.row is None:
                feed.model[1].pop(change.key, None)
            else:
                feed.model[1][change.key] = change.row
    feed.sections([section(schema, c, inserts_only=new) for c, new in runs], batch_rows=1)


def changed_rows(keys: Sequence[int], word: str = "changed") -> tuple[list[Change], bool]:
    return [put(k, f"{word} {k}", k) for k in keys], False


def new_rows(keys: Sequence[int], word: str = "new") -> tuple[list[Change], bool]:
    return [put(k, f"{word} {k}", k) for k in keys], True


def deletions(keys: Sequence[int]) -> tuple[list[Change], bool]:
    return [deletion(k) for k in keys], False


def check_applied(database: str, feed: Feed, settings: Settings) -> None:
    with following(settings, "a"):
        wait_until_caught_up(database, feed.broker)
    check_equal(database, feed)
    assert read_progress(settings, "a").unaccounted == 0


def test_new_rows_of_a_mixed_cut_are_not_staged(
    database: str, broker: FakeDelivery, feed: Feed, copied_tables: list[str]
) -> None:
    settings = load_streamed(database, feed, items())
    copied_tables.clear()
    cut(feed, changed_rows(range(30)), new_rows(range(200, 260)), changed_rows(range(40, 45)), deletions(range(50, 80)))
    check_applied(database, feed, settings)
    assert copied_tables.count('"items"') == 1
    assert "venus_s_1_1" in copied_tables


def test_a_row_wrongly_marked_as_new_replaces_the_existing_one(
    database: str, broker: FakeDelivery, feed: Feed, copied_tables: list[str]
) -> None:
    settings = load_streamed(database, feed, items())
    copied_tables.clear()
    more = [new_rows(range(400 + 30 * i, 430 + 30 * i)) for i in range(5)]
    cut(feed, changed_rows(range(25)), new_rows([*range(300, 325), 90]), *more, deletions([91]))
    check_applied(database, feed, settings)
    # the next piece is built before the refusal is known
    assert copied_tables.count('"items"') <= 2, "refused once, new rows of this cut are staged"


def test_a_new_row_does_not_overtake_a_waiting_deletion(database: str, broker: FakeDelivery, feed: Feed) -> None:
    """Two keys may be equal at the target but different at the source, so one cut may delete and insert a key."""
    settings = load_streamed(database, feed, items())
    cut(feed, deletions([*range(30), 500]), new_rows([500, *range(600, 630)]), changed_rows(range(60, 90)))
    check_applied(database, feed, settings)


def test_a_new_row_may_take_a_value_that_another_one_gives_up_later_in_the_cut(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load_streamed(database, feed, unique_label(items()))
    wanted = [put(700, "label 70", 1), *(put(k, f"new {k}", k) for k in range(701, 730))]
    cut(feed, changed_rows(range(30)), (wanted, True), changed_rows(range(60, 80), "freed"), deletions([99]))
    check_applied(database, feed, settings)


def test_unique_values_of_the_target_alone_are_resolved_once_the_cut_is_complete(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load_streamed(database, feed, items())
    query(database, "CREATE UNIQUE INDEX only_here ON shop.items (md5(label))")
    exchanged = [put(10, "label 80", 10), *(put(k, f"changed {k}", k) for k in range(11, 40))]
    back = [put(80, "label 10", 80), *(put(k, f"changed {k}", k) for k in range(81, 99))]
    cut(feed, new_rows(range(800, 830)), (exchanged, False), new_rows(range(830, 860)), (back, False))
    check_applied(database, feed, settings)


@pytest.mark.parametrize("on_error", ["halt", "quarantine"])
def test_a_refused_new_row_is_named(on_error: str, database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = load_streamed(database, feed, items(), on_error=on_error)
    query(database, "ALTER TABLE shop.items ADD CONSTRAINT not_odd CHECK (amount <> 666)")
    bad = [put(k, "bad" if k == 915 else "good", 666 if k == 915 else 1) for k in range(900, 940)]
    cut(feed, changed_rows(range(30)), (bad, True), changed_rows(range(40, 70)), deletions(range(70, 75)))
    with following(settings, "a"):
        wait_until_caught_up(database, feed.broker)
    (row,) = list_quarantine(settings, "a")
    assert row.key == '{"id": "915"}'
    assert read_table_states(settings, "a")[0].state == ("HALTED" if on_error == "halt" else "ACTIVE")
    if on_error == "quarantine":
        del feed.model[1]["915",]
        check_equal(database, feed)


@pytest.mark.parametrize("schema", [items(), unique_label(items())], ids=["by key", "unique label"])
def test_cuts_with_new_changed_and_deleted_rows_in_any_order(
    schema: TableSchema, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    rng = random.Random(7)
    settings = load_streamed(database, feed, schema)
    for number in range(25):
        there = sorted(int(str(k)) for (k,) in feed.model[1])
        rng.shuffle(there)
        changed, left_out = there[: rng.randint(0, 40)], there[40 : 40 + rng.randint(0, 30)]
        fresh = [10_000 + 100 * number + i for i in range(rng.randint(0, 60))]
        lying = there[70:72] if rng.random() < 0.3 else []
        # a label moves to another row, as a unique value may within a transaction
        passing = [put(k, f"label of {k} in {number}", k) for k in changed]
        runs = [
            *((passing[i : i + 12], False) for i in range(0, len(passing), 12)),
            *(new_rows(fresh[i : i + 15], f"n{number}") for i in range(0, len(fresh), 15)),
            *(deletions(left_out[i : i + 9]) for i in range(0, len(left_out), 9)),
            *([new_rows(lying, f"not new {number}")] if lying else []),
        ]
        rng.shuffle(runs)
        if runs:
            cut(feed, *runs)
    check_applied(database, feed, settings)
