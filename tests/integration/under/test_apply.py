"""Increments against an embedded PostgreSQL: net change, rotations, cuts, markers, sweeps, schema versions."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import (
    INT,
    TEXT,
    Change,
    Feed,
    applied_offset,
    column,
    deletion,
    following,
    items,
    make_referring_schema,
    put,
    query,
    rows_at,
    settings_for,
    table,
    unique_label,
    wait_until_caught_up,
)
from tests.support.pipelines.applying import check_counters, check_equal, load_target
from tests.support.waiting import eventually
from venus.adapters.targets.postgresql.database import PostgresDatabase
from venus.adapters.targets.postgresql.rows.at_once import apply_at_once
from venus.adapters.targets.postgresql.session import TargetSession
from venus.adapters.targets.relational import catalogue as catalogues
from venus.adapters.targets.relational.control import pause, read_table_states, request_resync, resume, retry_quarantine
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.targets.relational.session import Superseded
from venus.adapters.targets.relational.transaction import ApplyTransaction
from venus.adapters.targets.relational.verdicts import Verdicts
from venus.adapters.under.cut_assembler import decode_piece
from venus.model import Kind, LogicalType, TableSchema

pytestmark = pytest.mark.integration


WAYS = {
    "keyed": {"keyed_rows_max": 10_000},
    "staging": {"keyed_rows_max": 0},
    "streamed": {"keyed_rows_max": 0, "cut_group_rows_max": 7},
    "mixed": {"keyed_rows_max": 5, "cut_group_rows_max": 60},
}


@pytest.mark.parametrize("way", WAYS)
def test_random_histories_have_the_same_result_by_every_path(
    way: str, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    first, second = unique_label(items()), items(2, "others")
    settings = load_target(database, feed, first, second, rows=20, apply=WAYS[way])
    since = dict(feed.committed)
    rng = random.Random(7)
    with following(settings, "a"):
        for _ in range(60):
            _random_cut(rng, feed)
        wait_until_caught_up(database, broker)
    check_equal(database, feed)
    check_counters(settings, feed, since)


def _random_cut(rng: random.Random, feed: Feed) -> None:
    """Write a cut as a source would: each key occurs once, and unique labels rotate among the rows of the cut."""
    changes: list[Change] = []
    labels = {key: row[0] for key, row in feed.model[1].items()}
    keys = [str(k) for k in rng.sample(range(1, 40), rng.randint(1, 12))]
    live = [k for k in keys if rng.random() < 0.7]
    pool = [labels[k,] for k in keys if (k,) in labels] + [f"new {rng.random()}" for _ in live]
    rng.shuffle(pool)
    for key in keys:
        changes.append(put(key, pool.pop(), rng.randint(0, 9)) if key in live else deletion(key))
    changes += [put(rng.randint(1, 9), None if rng.random() < 0.5 else "x\t\\N'", 1, table=2)]
    if rng.random() < 0.3:
        fresh = 1000 + feed.sequence
        feed.cut(*(put(fresh + i, f"fresh {fresh + i}", i) for i in range(rng.randint(1, 30))), inserts_only=True)
    if rng.random() < 0.1:
        feed.truncate(2, put(1, "after", 1, table=2))
    feed.cut(*changes, batch_rows=rng.choice([3, 1000]))


@pytest.mark.parametrize("keyed_rows_max", [0, 5000])
def test_keys_rotate_and_unique_values_are_swapped_and_children_survive(
    keyed_rows_max: int, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    parent = unique_label(items())
    child = make_referring_schema(table(2, "lines", column(1, "id", INT), column(2, "item", INT)), "item", parent)
    feed.describe(parent, child)
    feed.cut(*(put(i, f"label {i}", i) for i in range(1, 1001)), *(put(i, i, table=2) for i in range(1, 1001)))
    settings = settings_for(broker.address, {"a": database}, apply={"keyed_rows_max": keyed_rows_max})
    full_sync(settings, "a")
    query(database, "ALTER TABLE shop.lines DROP CONSTRAINT lines_fk")
    query(
        database,
        "ALTER TABLE shop.lines ADD CONSTRAINT lines_fk FOREIGN KEY (item) REFERENCES shop.items ON DELETE CASCADE",
    )
    with following(settings, "a"):
        # UPDATE items SET id = id + 1: key 1 is gone, every other key has the previous key's row.
        feed.cut(deletion(1), *(put(i + 1, f"label {i}", i) for i in range(1, 1001)))
        feed.cut(put(2, "label 2", 1), put(3, "label 1", 2))
        wait_until_caught_up(database, broker)
    check_equal(database, feed)


def test_a_cut_is_never_half_visible(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = load_target(database, feed, items(), rows=100, apply={"cut_group_rows_max": 50})
    with following(settings, "a"):
        start = broker.next_offset
        broker.hold_from = start + 150
        feed.cut(*(put(i, "second", i) for i in range(1, 401)), batch_rows=50)
        eventually(lambda: _is_in_transaction(database), "the transaction's start")
        assert query(database, "SELECT count(*) FROM shop.items WHERE label = 'second'") == [(0,)]
        assert applied_offset(database) == start
        broker.release()
        wait_until_caught_up(database, broker)
    check_equal(database, feed)


def test_deletions_wait_for_rows_and_are_executed_in_one_pass(
    monkeypatch: pytest.MonkeyPatch, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    """A DELETE may scan the whole table: one DELETE has all keys, but comes before the rows that follow them."""
    settings = load_target(database, feed, items(), rows=100, apply={"keyed_rows_max": 0, "cut_group_rows_max": 10})
    ran: list[str] = []
    run = TargetSession.run

    def record_call(session: TargetSession, text: str, params: Any = None) -> int:
        ran.append(text)
        return run(session, text, params)

    monkeypatch.setattr(TargetSession, "run", record_call)
    with following(settings, "a"):
        back = [put(i, "back", i) for i in range(1, 21)]
        broker.hold_from = broker.next_offset + 50  # rows that came in one piece are merged at once
        feed.cut(*(deletion(i) for i in range(1, 41)), *back, *(deletion(i) for i in range(51, 91)), batch_rows=10)
        eventually(lambda: any("venus_d_" in text for text in ran))
        broker.release()
        wait_until_caught_up(database, broker)
    check_equal(database, feed)
    assert sum('DELETE FROM "shop"."items" t USING' in text for text in ran) == 2


def _is_in_transaction(database: str) -> bool:
    text = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'venus apply%' AND xact_start IS NOT NULL"
    return bool(query(database, text)[0][0])


def test_truncate_is_applied_in_order_even_under_a_foreign_key(database: str, broker: FakeDelivery, feed: Feed) -> None:
    parent = items()
    child = make_referring_schema(table(2, "lines", column(1, "id", INT), column(2, "item", INT)), "item", parent)
    settings = load_target(database, feed, parent, child, rows=50)
    with following(settings, "a"):
        feed.cut(put(60, "before", 1))
        feed.truncate(1, put(5, "after", 1))
        feed.cut(put(6, "later", 1))
        wait_until_caught_up(database, broker)
    check_equal(database, feed)


@pytest.mark.parametrize(("empty_by", "seen"), [("delete", 3), ("truncate", 0)])
def test_a_truncate_keeps_the_rows_for_readers_with_an_older_snapshot(
    empty_by: str, seen: int, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load_target(database, feed, items(), rows=3, empty_by=empty_by)
    reader = PostgresDatabase(settings, "a").connect("reader")
    reader.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    assert reader.row("SELECT 1") == (1,)  # takes the snapshot; the table itself is not locked yet
    try:
        with following(settings, "a"):
            feed.truncate(1)
            wait_until_caught_up(database, broker)
        assert reader.row("SELECT count(*) FROM shop.items") == (seen,)
    finally:
        reader.close()
    assert query(database, "SELECT count(*) FROM shop.items") == [(0,)]


def test_a_sweep_deletes_the_rows_that_it_did_not_meet(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = load_target(database, feed, items(), rows=100, apply={"keyed_rows_max": 2})
    with following(settings, "a"):
        before = feed.sweep_begin(1)
        feed.cut(*(put(i, "met", i) for i in range(1, 91)))
        wait_until_caught_up(database, broker)
    with following(settings, "a"):  # a restart in the middle loses no mark
        feed.cut(put(95, "touched", 1))
        feed.cut(deletion(3))
        feed.sweep_end(1, before)
        wait_until_caught_up(database, broker)
    for key in (*range(91, 95), *range(96, 101)):
        del feed.model[1][str(key),]
    check_equal(database, feed)
    assert query(database, "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'touched%'") == [(0,)]


def test_the_end_of_a_sweep_that_began_before_the_load_causes_a_resync(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    feed.describe(items())
    feed.cut(*(put(i, "x", i) for i in range(1, 51)))
    before = feed.sweep_begin(1)
    feed.cut(*(put(i, "met", i) for i in range(1, 41)))
    settings = settings_for(broker.address, {"a": database})
    full_sync(settings, "a")
    with following(settings, "a"):
        feed.sweep_end(1, before)
        for key in range(41, 51):
            del feed.model[1][str(key),]
        eventually(lambda: rows_at(database, items()) == feed.model[1], "the resync")


def test_new_columns_and_tables_arrive_and_dropped_columns_stay(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    old = items()
    settings = load_target(database, feed, old, rows=3)
    small = LogicalType(kind=Kind.TEXT, length=20)
    wider = replace(
        old, version=2, columns=(*old.columns, column(4, "extra", small), column(5, "n", INT, default_sql="7"))
    )
    with following(settings, "a"):
        feed.describe(wider)
        feed.model[1] = {k: (*v, None, "7") for k, v in feed.model[1].items()}
        feed.cut(put(9, "label", 1, "more", 8))
        wait_until_caught_up(database, broker)
        check_equal(database, feed)
        narrower = replace(
            wider, version=3, columns=(*wider.columns[:2], replace(wider.columns[3], type=TEXT), wider.columns[4])
        )
        feed.describe(narrower, items(2, "late"))
        feed.model[1] = {k: (v[0], *v[2:]) for k, v in feed.model[1].items()}
        feed.cut(put(10, "label", "x" * 50, 9), put(1, "row", 1, table=2))
        wait_until_caught_up(database, broker)
    check_equal(database, feed)
    assert query(database, "SELECT id, amount FROM shop.items WHERE id IN (1, 10) ORDER BY 1") == [(1, 1), (10, None)]
    assert "amount was dropped" in read_table_states(settings, "a")[0].reason


@pytest.mark.parametrize("by", ["retry", "resync"])
def test_an_incompatible_type_change_halts_the_table_until_it_is_altered(
    by: str, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    old = items()
    settings = load_target(database, feed, old, items(2, "others"), rows=3)
    shrunk = replace(old, version=2, columns=(*old.columns[:2], column(3, "amount", replace(INT, length=2))))
    with following(settings, "a"):
        feed.describe(shrunk)
        feed.cut(put(9, "label", 1), put(1, "continues", 1, table=2))
        wait_until_caught_up(database, broker)
    first, second = read_table_states(settings, "a")
    assert (first.state, second.state) == ("HALTED", "ACTIVE")
    assert "does not widen" in first.reason
    assert rows_at(database, feed.schemas[2]) == feed.model[2]

    statement, _, command = first.reason.partition("come again: ")[2].partition(", or another USING; ")
    assert command == "correct the table at the target, then `venus quarantine retry --table shop.items --target a`"
    query(database, statement)
    retry_quarantine(settings, "a") if by == "retry" else request_resync(settings, "a", "items")
    with following(settings, "a"):
        feed.cut(put(10, "more", 2))
        eventually(lambda: [t.state for t in read_table_states(settings, "a")] == ["ACTIVE", "ACTIVE"])
        wait_until_caught_up(database, broker)
    check_equal(database, feed)


def test_the_heartbeat_is_stored_in_the_applied_row(database: str, broker: FakeDelivery, feed: Feed) -> None:
    beat = TableSchema(
        table_id=9,
        version=1,
        namespace="venus",
        name="heartbeat",
        key=("id",),
        columns=(column(1, "id", INT), column(2, "beat_at", INT)),
    )
    settings = load_target(database, feed, items(), beat, rows=1)
    with following(settings, "a"):
        feed.cut(put(1, 1_700_000_000_123_456, table=9))
        wait_until_caught_up(database, broker)
        found = query(database, "SELECT extract(epoch FROM heartbeat_at)::text FROM venus.applied")
        assert found == [("1700000000.123456",)]
    assert query(database, "SELECT to_regclass('venus.heartbeat')") == [(None,)]


def test_two_targets_follow_with_separate_offsets(
    database: str, second_database: str, broker: FakeDelivery, feed: Feed
) -> None:
    feed.describe(items())
    feed.cut(*(put(i, "x", i) for i in range(50)))
    settings = settings_for(broker.address, {"a": database, "b": second_database})
    full_sync(settings, "a")
    feed.cut(put(99, "between", 1))
    full_sync(settings, "b")
    with following(settings, "a"):
        feed.cut(put(1, "a only", 1))
        wait_until_caught_up(database, broker)
        assert applied_offset(second_database, "main/b") < applied_offset(database)
        with following(settings, "b"):
            feed.cut(put(2, "both", 1))
            wait_until_caught_up(second_database, broker, "main/b")
            wait_until_caught_up(database, broker)
    check_equal(database, feed)
    check_equal(second_database, feed)
    assert set(broker.acknowledged) >= {"main/a", "main/b"}


def test_two_targets_in_two_schemas_of_one_database(database: str, broker: FakeDelivery, feed: Feed) -> None:
    feed.describe(items())
    feed.cut(*(put(i, "x", i) for i in range(50)))
    settings = [
        settings_for(broker.address, {name: database}, schema=f"copy_{name}", apply={"keyed_rows_max": 0})
        for name in "ab"
    ]
    for name, own in zip("ab", settings, strict=True):
        full_sync(own, name)
    with following(settings[0], "a"), following(settings[1], "b"):
        feed.cut(put(1, "both", 1), deletion(2))
        wait_until_caught_up(database, broker, "main/a")
        wait_until_caught_up(database, broker, "main/b")
    check_equal(database, feed, namespace="copy_a")
    check_equal(database, feed, namespace="copy_b")


def test_a_role_without_the_replica_right_defers_constraints(
    postgres_server: object, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    query(database, "DROP ROLE IF EXISTS plain")
    query(database, "CREATE ROLE plain LOGIN")
    query(database, f"GRANT ALL ON DATABASE {database.split('/')[-1].split('?')[0]} TO plain")
    parent = unique_label(items())
    child = make_referring_schema(table(2, "lines", column(1, "id", INT), column(2, "item", INT)), "item", parent)
    feed.describe(parent, child)
    feed.cut(*(put(i, f"label {i}", i) for i in range(1, 31)), *(put(i, i, table=2) for i in range(1, 31)))
    url = database.replace("postgres@", "plain@")
    settings = settings_for(broker.address, {"a": url})
    full_sync(settings, "a")
    with following(settings, "a") as reports:
        feed.cut(deletion(1), deletion(1, table=2), *(put(i + 1, f"label {i}", i) for i in range(1, 31)))
        feed.cut(put(50, 60, table=2), put(60, "label 60", 1))
        wait_until_caught_up(database, broker)
    check_equal(database, feed)
    assert any("end of each transaction" in r.constraints for r in reports)


@pytest.mark.parametrize("way", WAYS)
def test_rows_wrongly_marked_as_new_are_upserted(way: str, database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = load_target(database, feed, items(), rows=30, apply=WAYS[way])
    with following(settings, "a"):
        feed.cut(*(put(i, "again", i) for i in range(20, 60)), inserts_only=True)
        wait_until_caught_up(database, broker)
    check_equal(database, feed)


def test_a_transaction_notices_commands_and_competing_processes(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load_target(database, feed, items(), rows=1)
    target = PostgresDatabase(settings, "a")
    feed.cut(put(1, "new", 2))
    pieces = [decode_piece(broker.increments[-1])]
    for disturb in (lambda: pause(settings, "a", ["items"]), lambda: _set_offset(database)):
        session = target.connect()
        known = catalogues.read_catalogue(target, session)
        disturb()
        with pytest.raises(Superseded):
            apply_at_once(target, session, known, pieces, defer_constraints=False)
        writer = ApplyTransaction(target, session, known, Verdicts(), start=pieces[0].start, defer_constraints=False)
        with pytest.raises(Superseded):
            writer.begin()
        session.close()
        resume(settings, "a", ["items"])
    assert rows_at(database, items()) == {("1",): ("label 1", "1")}


def test_a_single_row_is_upserted_by_a_statement_that_is_planned_once(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load_target(database, feed, items(), rows=2)
    target = PostgresDatabase(settings, "a")
    session = target.connect()
    known = catalogues.read_catalogue(target, session)

    def apply(*changes: Any) -> bool:
        feed.cut(*changes)
        pieces = [decode_piece(broker.increments[-1])]
        done = apply_at_once(target, session, known, pieces, defer_constraints=False)
        if done:
            known.record_position(pieces[-1].end, pieces[-1].epoch)
        return done

    def read_plans() -> list[Any]:
        return session.rows("SELECT name FROM pg_prepared_statements WHERE name LIKE 'venus_upsert%'")

    assert apply(put(1, "it's \\ one", 1))
    assert apply(put(3, "three", 3))
    assert len(read_plans()) == 1
    assert apply(put(4, "four", 4), put(5, "five", 5), deletion(2))
    assert len(read_plans()) == 1
    query(database, "ALTER TABLE shop.items ALTER COLUMN amount TYPE numeric")
    feed.cut(put(1, "larger than before", 10**30))
    pieces = [decode_piece(broker.increments[-1])]
    assert not apply_at_once(target, session, known, pieces, defer_constraints=False)
    assert apply_at_once(target, session, known, pieces, defer_constraints=False), "planned for the new type"
    session.close()
    check_equal(database, feed)


def _set_offset(database: str) -> None:
    query(database, 'UPDATE venus.applied SET "offset" = "offset" + 1')


@pytest.mark.parametrize("keyed_rows_max", [0, 5000])
def test_values_under_an_exclusion_constraint_are_swapped(
    keyed_rows_max: int, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load_target(database, feed, items(), rows=100, apply={"keyed_rows_max": keyed_rows_max})
    query(database, "ALTER TABLE shop.items ADD CONSTRAINT apart EXCLUDE USING hash (label WITH =)")
    first, second = (feed.model[1][key,][0] for key in ("1", "2"))
    with following(settings, "a"):
        feed.cut(put(1, second, 1), put(2, first, 2))
        wait_until_caught_up(database, broker)
    check_equal(database, feed)
