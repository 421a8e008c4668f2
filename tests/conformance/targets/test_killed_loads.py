"""A load that is killed between any two statements: the next one continues, or begins again if its snapshot is lost."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest

from tests.conformance.targets.places import ORACLE
from tests.conformance.targets.playing import Stage
from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import column, items, make_referring_schema, put, unique_label
from venus.adapters.targets.contract import LoadProgress, LoadReport
from venus.adapters.targets.mysql.session import MysqlSession
from venus.adapters.targets.oracle.session import OracleTargetSession
from venus.adapters.targets.postgresql.session import TargetSession
from venus.adapters.targets.sqlite.session import SqliteSession
from venus.model import TableSchema

pytestmark = [pytest.mark.integration, pytest.mark.fault]

#: The method of each kind of target that executes every statement.
SESSIONS = ((TargetSession, "run"), (MysqlSession, "run"), (SqliteSession, "_run"), (OracleTargetSession, "_run"))
KINDS = ("postgresql", "mariadb", "sqlite", ORACLE)
#: The load is killed before every n-th statement; n is larger where a load takes longer.
STEPS = {"PostgresPlace": 4, "MariaTargetPlace": 13, "SqlitePlace": 2, "OracleTargetPlace": 17}
STATEMENTS_MAX = 1000
AGAIN = "its load begins again: "


class ProcessKilled(BaseException):
    """Stands for the end of a process."""


@contextmanager
def kill_before(statement: int) -> Iterator[None]:
    """Interrupt the load before the statement with this number."""
    numbers = itertools.count(1)

    def count(run: Callable[..., object]) -> Callable[..., object]:
        def run_or_end(*arguments: object, **named: object) -> object:
            if threading.current_thread() is threading.main_thread() and next(numbers) == statement:
                raise ProcessKilled
            return run(*arguments, **named)

        return run_or_end

    with ExitStack() as patches:
        for session, name in SESSIONS:
            patches.enter_context(patch.object(session, name, count(getattr(session, name))))
        yield


def lose_snapshots(broker: FakeDelivery) -> None:
    """Lose the open snapshots, as a power cut at the broker does."""
    broker.pinned.clear()


def lose_history(broker: FakeDelivery) -> None:
    """Give the broker another history with the same rows."""
    broker.pinned.clear()
    broker.increments.clear()
    broker.epoch += 1


def keep_everything(broker: FakeDelivery) -> None:
    """Change nothing at the broker."""


def start_stage(stage: Stage) -> None:
    stage.feed.describe(unique_label(items()), make_referring_schema(items(2, "others"), "amount", items()))
    stage.feed.cut(*(put(i, f"label {i}", i) for i in range(1, 9)))
    stage.feed.cut(*(put(i, "other", i, table=2) for i in range(1, 9)))


def load_beside_read(stage: Stage, notes: list[str]) -> LoadReport:
    """Load while the source is still being read: a change arrives after the snapshot."""
    ends = iter([None, None])

    def end() -> int | None:
        found = next(ends, stage.feed.broker.next_offset)
        if found is None:
            stage.feed.cut(put(3, "label 3", 3), put(3, "changed", 3, table=2))
        return found

    return stage.target.load(lambda found: collect_note(found, notes), fill_end=end)


def load_from_broker(stage: Stage, notes: list[str]) -> LoadReport:
    return stage.target.load(lambda found: collect_note(found, notes))


def collect_note(found: LoadProgress, notes: list[str]) -> None:
    if found.note:
        notes.append(found.note)


@pytest.mark.full
@pytest.mark.parametrize("place", KINDS, indirect=True)
@pytest.mark.parametrize(
    ("load", "lose"),
    [
        (load_from_broker, keep_everything),
        (load_from_broker, lose_snapshots),
        (load_beside_read, lose_snapshots),
        (load_beside_read, lose_history),
    ],
    ids=["behind", "behind-lost", "beside-lost", "beside-other-history"],
)
def test_a_load_that_is_killed_before_any_statement_is_completed_by_the_next_run(
    stage: Stage,
    broker: FakeDelivery,
    load: Callable[[Stage, list[str]], LoadReport],
    lose: Callable[[FakeDelivery], None],
) -> None:
    start_stage(stage)
    notes: list[str] = []
    kills = 0
    for statement in range(1, STATEMENTS_MAX, STEPS[type(stage.place).__name__]):
        try:
            with kill_before(statement):
                load(stage, notes)
        except ProcessKilled:
            lose(broker)
            kills += 1
        else:
            break
    assert kills > 4
    stage.compare_tables()
    assert {t.state for t in stage.target.read_view().tables} == {"ACTIVE"}
    continued = [note for note in notes if not note.startswith(AGAIN)]
    assert bool(continued) == (lose is keep_everything or load is load_beside_read)
    assert (len(continued) < len(notes)) == (lose is not keep_everything)
    stage.feed.cut(put(1, "behind", 1), put(1, "behind", 1, table=2))
    stage.follow_to_end()
    stage.compare_tables()


def change_table_version(stage: Stage, broker: FakeDelivery, schema: TableSchema) -> None:
    """Give the table another version at the source, with which it is read again."""
    broker.rows[1].clear()
    stage.feed.model[1].clear()
    stage.feed.describe(schema)
    more = ("more",) * (len(schema.columns) - 3)
    stage.feed.cut(*(put(i, *((f"label {i}", i) if schema.key == ("id",) else (i, "a label")), *more) for i in (3, 4)))


WIDER = replace(items(), version=2, columns=(*items().columns, column(4, "more")))
REKEYED = replace(items(), version=2, key=("amount",))


@pytest.mark.parametrize("place", KINDS, indirect=True)
@pytest.mark.parametrize("schema", [items(), WIDER, REKEYED], ids=["same", "wider", "rekeyed"])
def test_a_load_that_begins_again_follows_the_newest_version(
    stage: Stage, broker: FakeDelivery, schema: TableSchema
) -> None:
    start_stage(stage)
    with pytest.raises(ProcessKilled), kill_before_end():
        stage.target.load()
    lose_snapshots(broker)
    change_table_version(stage, broker, schema)
    notes: list[str] = []

    load_from_broker(stage, notes)

    assert notes == [f"{AGAIN}the broker no longer has its snapshot"]
    stage.compare_tables()


@contextmanager
def kill_before_end() -> Iterator[None]:
    """End a load after its last row, key, index and foreign key."""
    with patch("venus.adapters.targets.relational.full_sync._Load._register", side_effect=ProcessKilled):
        yield


@pytest.mark.parametrize("place", ["mariadb", "sqlite", ORACLE], indirect=True)
def test_the_remedy_for_a_changed_key_works(stage: Stage, broker: FakeDelivery) -> None:
    start_stage(stage)
    stage.target.load()
    change_table_version(stage, broker, REKEYED)
    stage.follow_to_end()
    state = stage.table("shop.items")
    assert state.state == "HALTED"
    assert f"`venus migrate --target {stage.place.name} --empty-meanwhile`" in state.reason

    assert not stage.target.load(empty_meanwhile=True).already
    stage.compare_tables()
    stage.feed.cut(put(4, 4, "changed"), put(9, 4, "new"))
    stage.follow_to_end()
    stage.compare_tables()
    assert stage.target.load(empty_meanwhile=True).already
