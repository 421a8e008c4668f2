"""The scale-out apply, with its tasks in processes of this machine, has exactly the result of the ordinary loop."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import (
    INT,
    Feed,
    applied_offset,
    column,
    deletion,
    items,
    make_referring_schema,
    put,
    query,
    rows_at,
    settings_for,
    table,
    unique_label,
)
from tests.support.brokers.real_broker import RealBroker
from tests.support.brokers.servers import business_status
from tests.support.waiting import eventually
from venus.adapters.targets.postgresql.apply.staged_apply import StagedApply
from venus.adapters.targets.postgresql.apply.staged_task import StageTask, stage_prefix, stage_range
from venus.adapters.targets.relational.apply_session import ApplyReport
from venus.adapters.targets.relational.control import pause, read_progress, read_table_states, request_resync, resume
from venus.adapters.targets.relational.full_sync import full_sync
from venus.codec.batch import digest
from venus.config import Settings
from venus.config import SparkSettings as SparkSettings
from venus.errors import ProtocolError
from venus.wire.broker_pb2 import Increment
from venus.wire.change_pb2 import BatchBody

pytestmark = pytest.mark.integration

#: Staging table of another target's tasks in the same database, which no other task may drop.
OTHER = f"{stage_prefix('main/b')}0123456789abcdef_1_l"


class LocalRunner:
    """Runs tasks in this process, with hooks of the test before and after each one."""

    def __init__(self) -> None:
        self.before: Callable[[StageTask], None] = lambda _: None
        self.after: Callable[[Any], Any] = lambda receipt: receipt
        self.tasks = 0

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        for task in reversed(tasks):  # the order does not matter
            self.tasks += 1
            self.before(task)
            yield self.after(function(task))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("venus.adapters.targets.postgresql.apply.staged_apply.PIECE_OFFSETS_MIN", 10)


def staging_settings(broker: FakeDelivery, url: str, rows_min: int = 1, **target: Any) -> Settings:
    settings = settings_for(broker.address, {"a": url}, apply={"load_workers": 3}, **target)
    return settings.model_copy(update={"spark": SparkSettings(stage_rows_min=rows_min)})


def make_apply(settings: Settings, runner: LocalRunner | None = None) -> StagedApply:
    return StagedApply(settings, "a", runner or LocalRunner(), threading.Event())


def write_changes(feed: Feed, rng: random.Random, cuts: int) -> None:
    for n in range(cuts):
        keys = rng.sample(range(1, 80), 20)
        feed.cut(
            *(deletion(k) if rng.random() < 0.3 else put(k, f"{n} {k}", n) for k in keys),
            put(n % 7, "o", n, table=2),
            batch_rows=6,
        )


def stage_tables(url: str) -> list[Any]:
    return query(url, "SELECT relname FROM pg_class WHERE relname LIKE 'stage!_%' ESCAPE '!' AND relkind = 'r'")


def test_micro_batches_are_staged_and_taken_over(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings, rng, runner = staging_settings(broker, database), random.Random(4), LocalRunner()
    feed.describe(items(), items(2, "others"))
    feed.cut(put(1, "a", 1), put(1, "b", 1, table=2))
    full_sync(settings, "a")
    applies = make_apply(settings, runner)
    applies.start()
    for _ in range(4):
        write_changes(feed, rng, 10)
        applies.apply_up_to(broker.next_offset)
    applies.close()

    assert (applies.staged, applies.ordinary) == (4, 0)
    assert runner.tasks == 12
    for table_id, schema in feed.schemas.items():
        assert rows_at(database, schema) == feed.model[table_id]
    assert applied_offset(database) == broker.next_offset
    assert read_progress(settings, "a").unaccounted == 0
    assert {t.rows_applied for t in read_table_states(settings, "a")} == {feed.committed[1] - 1, feed.committed[2] - 1}
    assert broker.acknowledged["main/a"] == broker.next_offset
    assert not stage_tables(database)


def test_applied_changes_are_not_applied_again(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = staging_settings(broker, database)
    feed.describe(items())
    feed.cut(put(1, "a", 1))
    full_sync(settings, "a")
    first = broker.next_offset
    feed.cut(*(put(i, "b", i) for i in range(20)))
    middle = broker.next_offset
    applies = make_apply(settings)
    applies.apply_up_to(middle)
    query(database, "UPDATE shop.items SET label = 'mine'")  # a second application would undo this

    for end in (middle, first, 0):  # a micro-batch is replayed after a lost checkpoint
        applies.apply_up_to(end)
    restarted = make_apply(settings)
    restarted.start()
    restarted.apply_up_to(middle)

    assert {row[0] for row in rows_at(database, items()).values()} == {"mine"}
    assert applied_offset(database) == middle
    assert (applies.staged, restarted.staged) == (1, 0)
    assert (applies.ordinary, restarted.ordinary) == (0, 0)
    applies.close()
    restarted.close()


def test_unusual_changes_use_the_ordinary_path(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = staging_settings(broker, database)
    feed.describe(unique_label(items()))
    feed.cut(*(put(i, f"label {i}", i) for i in range(1, 40)))
    full_sync(settings, "a")
    applies = make_apply(settings)
    ways = []

    def apply_and_check() -> None:
        before = applies.staged, applies.ordinary
        applies.apply_up_to(broker.next_offset)
        ways.append("staged" if applies.staged > before[0] else "ordinary" if applies.ordinary > before[1] else "none")
        assert rows_at(database, items()) == feed.model[1]

    feed.cut(*(put(i, f"new {i}", i) for i in range(1, 30)))
    apply_and_check()
    feed.cut(put(1, "new 2", 1), put(2, "new 1", 2))  # unique values are exchanged
    apply_and_check()
    feed.truncate(1, put(5, "five", 5))
    apply_and_check()
    feed.describe(items(3, "late"))
    feed.cut(put(1, "l", 1, table=3), put(6, "six", 6))
    apply_and_check()
    feed.cut(*(put(i, f"end {i}", i) for i in range(1, 30)), put(2, "l", 1, table=3))
    apply_and_check()
    applies.close()

    assert ways == ["staged", "ordinary", "ordinary", "ordinary", "staged"]
    assert rows_at(database, items(3, "late")) == feed.model[3]
    assert read_progress(settings, "a").unaccounted == 0
    assert not stage_tables(database)


def test_a_refused_row_halts_its_table_and_operators_commands_are_executed(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = staging_settings(broker, database)
    feed.describe(items(), items(2, "others"))
    feed.cut(put(1, "a", 1), put(1, "a", 1, table=2))
    full_sync(settings, "a")
    query(database, "ALTER TABLE shop.items ADD CHECK (amount < 100)")
    applies = make_apply(settings)

    feed.cut(*(put(i, "b", i) for i in range(2, 30)), put(30, "big", 500), *(put(i, "b", i, table=2) for i in range(9)))
    applies.apply_up_to(broker.next_offset)
    halted = {t.name: t.state for t in read_table_states(settings, "a")}
    query(database, "ALTER TABLE shop.items DROP CONSTRAINT items_amount_check")
    resume(settings, "a", ["items"])
    feed.cut(put(2, "c", 2))
    applies.apply_up_to(broker.next_offset)
    query(database, "DELETE FROM shop.items")
    request_resync(settings, "a", "items")
    feed.cut(put(3, "d", 3))
    applies.apply_up_to(broker.next_offset)
    applies.close()

    assert halted == {"items": "HALTED", "others": "ACTIVE"}
    assert {t.state for t in read_table_states(settings, "a")} == {"ACTIVE"}
    for table_id, schema in feed.schemas.items():
        assert rows_at(database, schema) == feed.model[table_id]
    assert read_progress(settings, "a").unaccounted == 0


def test_a_paused_target_waits(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = staging_settings(broker, database)
    feed.describe(items())
    feed.cut(put(1, "a", 1))
    full_sync(settings, "a")
    pause(settings, "a")
    feed.cut(put(2, "b", 2))
    applies = make_apply(settings)
    thread = threading.Thread(target=applies.apply_up_to, args=[broker.next_offset])
    thread.start()
    eventually(lambda: broker.acknowledged.get("main/a") == 1, "the first look")

    before = applied_offset(database)
    resume(settings, "a")
    thread.join(60)

    assert before == 1
    assert rows_at(database, items()) == feed.model[1]
    applies.close()


def test_an_operators_command_is_executed_while_tasks_stage(database: str, broker: FakeDelivery, feed: Feed) -> None:
    """Changes that were staged under the target's old state are discarded, and the new state is read."""
    settings, runner = staging_settings(broker, database), LocalRunner()
    feed.describe(items())
    feed.cut(put(1, "a", 1))
    full_sync(settings, "a")
    before = broker.next_offset
    feed.cut(*(put(i, "b", i) for i in range(40)))
    reports: list[ApplyReport] = []

    def pause_once(_: StageTask) -> None:
        runner.before = lambda _: None
        pause(settings, "a")

    runner.before = pause_once
    applies = StagedApply(settings, "a", runner, threading.Event(), reports.append)
    thread = threading.Thread(target=applies.apply_up_to, args=[broker.next_offset])
    thread.start()
    eventually(lambda: any("operator" in report.error for report in reports) or not thread.is_alive(), "a second look")
    paused_at = applied_offset(database)
    resume(settings, "a")
    thread.join(60)
    applies.close()

    assert paused_at == before
    assert applied_offset(database) == broker.next_offset
    assert applies.staged == 1
    assert rows_at(database, items()) == feed.model[1]
    assert not stage_tables(database)


def test_changes_that_no_task_has_staged_are_noticed(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings, runner = staging_settings(broker, database), LocalRunner()
    feed.describe(items())
    feed.cut(put(1, "a", 1))
    full_sync(settings, "a")
    before = broker.next_offset
    feed.cut(*(put(i, "b", i) for i in range(40)))
    runner.after = lambda receipt: replace(receipt, staged=()) if receipt.start == before else receipt
    applies = make_apply(settings, runner)

    with pytest.raises(ProtocolError, match="changes were staged of 40 from 1 on"):
        applies.apply_up_to(broker.next_offset)
    applies.close()

    assert applied_offset(database) == before
    assert len(rows_at(database, items())) == 1


def test_a_failure_between_staging_and_applying_leaves_nothing(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings, runner = staging_settings(broker, database), LocalRunner()
    parents = table(1, "parents", column(1, "id", INT), column(2, "v"))
    children = make_referring_schema(
        table(2, "children", column(1, "id", INT), column(2, "parent", INT)), "parent", parents
    )
    feed.describe(parents, children)
    feed.cut(put(1, "p"), put(1, 1, table=2))
    full_sync(settings, "a")
    feed.cut(*(put(i, "p") for i in range(2, 40)), *(put(i, i, table=2) for i in range(2, 40)))
    done: list[StageTask] = []

    def rival_then_death(task: StageTask) -> None:
        stage_range(task)  # a second attempt of the same task, whose answer is lost
        done.append(task)
        if len(done) == 2:
            raise KeyboardInterrupt

    runner.before = rival_then_death
    with pytest.raises(KeyboardInterrupt):
        make_apply(settings, runner).apply_up_to(broker.next_offset)
    query(database, f"CREATE TABLE venus.{OTHER} (id int)")
    left = stage_tables(database)
    survivor = make_apply(settings)
    survivor.start()
    dropped = stage_tables(database)
    survivor.apply_up_to(broker.next_offset)
    survivor.close()

    assert len(left) >= 4
    assert dropped == stage_tables(database) == [(OTHER,)]
    assert survivor.staged == 1
    assert rows_at(database, parents) == feed.model[1]
    assert rows_at(database, children) == feed.model[2]
    assert read_progress(settings, "a").unaccounted == 0


def test_tasks_stage_the_rows_of_the_predicate(database: str, broker: FakeDelivery, feed: Feed) -> None:
    def rows_inside(at_least: int) -> dict[Any, Any]:
        return {k: r for k, r in feed.model[1].items() if r[1] is not None and int(r[1]) >= at_least}

    settings, rng, runner = (
        staging_settings(broker, database, where={"items": "amount >= 3"}),
        random.Random(5),
        LocalRunner(),
    )
    feed.describe(items(), items(2, "others"))
    feed.cut(*(put(n, "a", n) for n in range(10)))
    full_sync(settings, "a")
    assert rows_at(database, items()) == rows_inside(3)
    applies = make_apply(settings, runner)
    applies.start()
    for _ in range(3):
        write_changes(feed, rng, 6)
        applies.apply_up_to(broker.next_offset)
        assert rows_at(database, items()) == rows_inside(3)
    applies.close()
    assert applies.staged == 3
    assert runner.tasks >= 3
    assert rows_at(database, items(2, "others")) == feed.model[2]

    changed = make_apply(staging_settings(broker, database, where={"items": "amount >= 5"}), runner)
    changed.start()  # the ordinary loop applies this change of schema
    write_changes(feed, rng, 3)
    changed.apply_up_to(broker.next_offset)
    changed.close()
    assert changed.ordinary == 1
    assert rows_at(database, items()) == rows_inside(5)
    assert read_progress(settings, "a").unaccounted == 0


def test_a_target_behind_the_trimmed_queue_continues_from_the_full_data(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    feed.describe(items(), items(2, "others"))
    feed.cut(*(put(k, "first", 0) for k in range(1, 40)))
    settings = staging_settings(broker, database)
    full_sync(settings, "a")
    feed.cut(deletion(3), put(4, "changed", 1))
    broker.log_start = broker.next_offset
    applies = make_apply(settings)
    try:
        assert applies.start() == (broker.log_start, broker.epoch)
        write_changes(feed, random.Random(5), 5)
        applies.apply_up_to(broker.next_offset)
    finally:
        applies.close()

    assert rows_at(database, items()) == feed.model[1]
    assert rows_at(database, feed.schemas[2]) == feed.model[2]
    assert read_progress(settings, "a").unaccounted == 0


def test_each_lost_offset_is_accounted_for(database: str, broker: FakeDelivery, feed: Feed) -> None:
    """An increment for offsets lost in an unclean election has no changes, and accounts for all of its offsets."""
    settings = staging_settings(broker, database)
    feed.describe(items())
    feed.cut(put(1, "a", 1))
    full_sync(settings, "a")
    feed.cut(*(put(i, "b", i) for i in range(20)))
    body = BatchBody(batch_no=90, first_sequence=1000, cut=90, cut_end=True, lost=7).SerializeToString()
    with broker.changed:
        broker.increments.append(
            Increment(base_offset=broker.next_offset, count=7, epoch=broker.epoch, body=body, digest=digest(body))
        )
    applies = make_apply(settings)
    applies.apply_up_to(broker.next_offset)
    applies.close()

    assert (applies.staged, applies.ordinary) == (1, 0)
    assert applied_offset(database) == broker.next_offset
    assert read_progress(settings, "a").unaccounted == 0


def reported_switch(address: str) -> list[str]:
    """Return the target's last report of an unfinished switch."""
    found = business_status(address).consumers[0].reported.report.tables
    return [t.reason for t in found if t.name == "switch"]


@pytest.mark.parametrize("rows_min", [1, 1_000_000], ids=["staged", "ordinary"])
def test_an_unfinished_switch_is_reported_with_and_without_changes(
    database: str, real: RealBroker, rows_min: int
) -> None:
    feed, broker = Feed(real), real
    feed.describe(items())
    feed.cut(*(put(i, "a", i) for i in range(40)))
    settings = settings_for(broker.address, {"a": database}, apply={"load_workers": 3})
    settings = settings.model_copy(update={"spark": SparkSettings(stage_rows_min=rows_min)})
    full_sync(settings, "a")
    advice = ""
    applies = StagedApply(settings, "a", LocalRunner(), threading.Event(), describe_switch=lambda: advice)
    try:
        applies.start()
        advice = "the switch to new is not finished"
        applies.report_switch()
        eventually(lambda: reported_switch(broker.address) == [advice], "the report without changes")
        feed.cut(*(put(i, "b", i) for i in range(40)))
        applies.apply_up_to(broker.next_offset)
        applies.report_switch()
        eventually(lambda: reported_switch(broker.address) == [advice], "the report behind changes")
        advice = ""
        applies.report_switch()
        eventually(lambda: reported_switch(broker.address) == [], "the end of the switch")
    finally:
        applies.close()
