"""A target gets the rows of its predicate: in the load, in later changes, and when the predicate changes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.support.brokers.feed import (
    INT,
    Feed,
    column,
    deletion,
    following,
    items,
    put,
    query,
    rows_at,
    settings_for,
    wait_until_caught_up,
)
from tests.support.brokers.real_broker import RealBroker
from tests.support.waiting import eventually
from venus.adapters.targets.postgresql.apply.staged_apply import StagedApply
from venus.adapters.targets.predicates import predicate_text
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.relational.apply_session import run_apply
from venus.adapters.targets.relational.control import read_progress, read_table_states, request_resync
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.targets.relational.resync import Resyncs
from venus.config import Settings, SparkSettings, TargetSettings
from venus.errors import ConfigError
from venus.migrations import VERSION_TABLE
from venus.model import count_phrase
from venus.process.runners import LocalRunner

pytestmark = pytest.mark.integration

#: Paths of rows into a target: in one round trip, or through staging tables in pieces.
WAYS = {"at once": {}, "staged": {"keyed_rows_max": 0, "cut_group_rows_max": 30}}
WHERE = {"items": "label = 'EU' and amount >= 100"}
REGIONS = ("EU", "US", "eu", None)


@pytest.fixture
def feed(real: RealBroker) -> Feed:
    return Feed(real)


def rows_inside(feed: Feed, at_least: int = 100, region: str = "EU") -> dict[Any, Any]:
    """Return the source's rows that satisfy a predicate, computed in plain Python."""
    rows = feed.model[1].items()
    return {k: r for k, r in rows if r[0] == region and r[1] is not None and int(r[1]) >= at_least}


def start(feed: Feed, database: str, where: dict[str, str], **options: Any) -> Settings:
    feed.describe(items(), items(2, "others"))
    rng = random.Random(1)
    feed.cut(
        *(put(i, rng.choice(REGIONS), rng.choice((None, 99, 100, 101))) for i in range(1, 200)),
        *(put(i, "o", i, table=2) for i in range(5)),
    )
    settings = settings_for(feed.broker.address, {"a": database}, where=where, **options)
    full_sync(settings, "a")
    return settings


def write_cuts(feed: Feed, cuts: int, seed: int) -> None:
    """Write cuts in which rows enter and leave the range, keys occur twice, and the table is emptied once."""
    rng = random.Random(seed)
    for n in range(cuts):
        keys = rng.choices(range(1, 260), k=12)
        changes = [
            deletion(k) if rng.random() < 0.2 else put(k, rng.choice(REGIONS), rng.choice((None, 0, 100, 500)))
            for k in keys
        ]
        feed.cut(*changes, put(n % 5, "o", n, table=2))
        if n == cuts // 2:
            feed.truncate(1, *(put(k, rng.choice(REGIONS), 100) for k in range(1, 40)))
    new = range(1000 * seed, 1000 * seed + 80)
    feed.cut(*(put(k, rng.choice(REGIONS), 100) for k in new), inserts_only=True)


def with_where(settings: Settings, where: dict[str, str]) -> Settings:
    target = settings.targets["a"]
    changed = TargetSettings.model_validate({**target.model_dump(by_alias=True), "where": where})
    return settings.model_copy(update={"targets": {"a": changed}})


class ProcessKilled(BaseException):
    """Raised where the process would be killed."""


def kill_here(*_: object) -> None:
    raise ProcessKilled


def has_settled(settings: Settings) -> bool:
    found, where = read_progress(settings, "a"), settings.targets["a"].where
    return not found.resyncing and all(
        t.predicate_before is None and t.state == "ACTIVE" and t.predicate == predicate_text(where, t.source_name)
        for t in found.tables
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_target_gets_the_rows_of_its_predicate(database: str, feed: Feed, way: str) -> None:
    settings = start(feed, database, WHERE, apply=WAYS[way])
    assert 0 < len(rows_inside(feed)) < len(feed.model[1])
    assert rows_at(database, items()) == rows_inside(feed)
    left = {"id": "5000"}

    feed.cut(put(left["id"], "EU", 100))
    with following(settings, "a"):
        wait_until_caught_up(database, feed.broker)
        assert (left["id"],) in rows_at(database, items())
        feed.cut(put(left["id"], "US", 100))  # the row leaves the range
        wait_until_caught_up(database, feed.broker)
        assert (left["id"],) not in rows_at(database, items())
        feed.cut(put(left["id"], "EU", None))  # NULL does not satisfy the predicate
        feed.cut(put(left["id"], "EU", 100), deletion(left["id"]), put("5001", "EU", 100))  # the update changes the key
        write_cuts(feed, 30, seed=7)
        wait_until_caught_up(database, feed.broker)

    assert rows_at(database, items()) == rows_inside(feed)
    assert rows_at(database, items(2, "others")) == feed.model[2]
    assert read_progress(settings, "a").unaccounted == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_changed_predicate_is_applied_from_the_brokers_full_data(database: str, feed: Feed, way: str) -> None:
    settings = start(feed, database, {}, apply=WAYS[way])
    assert rows_at(database, items()) == feed.model[1]
    steps: list[tuple[dict[str, str], dict[str, Any]]] = [
        (WHERE, {}),
        ({"shop.items": "label = 'US' and amount >= 0"}, {"at_least": 0, "region": "US"}),
        ({"ITEMS": "label = 'eu' and amount >= 100"}, {"region": "eu"}),
    ]
    for number, (where, named) in enumerate(steps, 1):
        changed = with_where(settings, where)
        with following(changed, "a"):
            write_cuts(feed, 15, seed=number)
            wait_until_caught_up(database, feed.broker)
            eventually(partial(has_settled, changed), "the change of the predicate")
            write_cuts(feed, 5, seed=number + 10)
            wait_until_caught_up(database, feed.broker)
        assert rows_at(database, items()) == rows_inside(feed, **named) != {}, where
        assert rows_at(database, items(2, "others")) == feed.model[2]
        assert read_progress(changed, "a").unaccounted == 0
    with following(settings, "a"):  # without a predicate every row is added again
        eventually(lambda: has_settled(settings), "the end of the predicate")
    assert rows_at(database, items()) == feed.model[1]


def test_an_interrupted_change_of_predicate_continues_and_is_reported(
    database: str, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = start(feed, database, WHERE)
    changed = with_where(settings, {"items": "label = 'US'"})
    before = rows_at(database, items())
    waiting = next(t for t in open_target(changed, "a").read_view().tables if t.name == "shop.items")
    assert "configured is the rows where label = 'US', which `venus sync` applies" in waiting.rows_shown

    with monkeypatch.context() as patched:
        patched.setattr(Resyncs, "_replace", kill_here)
        with pytest.raises(ProcessKilled):
            run_apply(changed, "a", threading.Event())
    pending = next(t for t in open_target(changed, "a").read_view().tables if t.name == "shop.items")
    assert pending.predicate == "label = 'US'"
    assert pending.predicate_before == "label = 'EU' and amount >= 100"
    assert "the difference is being added and removed" in pending.rows_shown
    assert rows_at(database, items()) == before

    feed.cut(put(9000, "US", None), put(9001, "EU", 100))
    with following(changed, "a"):
        wait_until_caught_up(database, feed.broker)
        eventually(lambda: has_settled(changed), "the change of the predicate")
    found = next(t for t in open_target(changed, "a").read_view().tables if t.name == "shop.items")
    assert rows_at(database, items()) == {k: r for k, r in feed.model[1].items() if r[0] == "US"}
    assert (found.rows_removed, found.predicate_before) == (len(before), None)
    assert found.rows_brought >= len(feed.model[1]) // 8
    assert f"added {count_phrase(found.rows_brought, 'row')} and removed {len(before):,}" in found.rows_shown


def test_a_dropped_column_halts_its_table_alone(database: str, feed: Feed) -> None:
    settings = start(feed, database, WHERE)
    narrow = replace(items(), version=2, columns=items().columns[:2])
    feed.describe(narrow)
    feed.cut(put(3, "EU"), put(1, "p", 1, table=2))

    with following(settings, "a"):
        wait_until_caught_up(database, feed.broker)
    (held,) = [t for t in read_table_states(settings, "a") if t.state != "ACTIVE"]
    assert (held.source_name, held.state) == ("shop.items", "HALTED")
    assert "its predicate (label = 'EU' and amount >= 100) does not fit version 2" in held.reason
    assert "shop.items has no column amount" in held.reason
    assert "change [targets.a.where] and start `venus sync` again" in held.reason
    assert rows_at(database, items(2, "others"))[("1",)] == ("p", "1")

    with following(settings, "a"):  # the target starts as it was: this table halted, the other one follows
        feed.cut(put(2, "q", 2, table=2))
        wait_until_caught_up(database, feed.broker)
    changed = with_where(settings, {"items": "label = 'EU'"})
    with following(changed, "a"):
        eventually(lambda: has_settled(changed), "the table's coming back")
        wait_until_caught_up(database, feed.broker)
    assert set(rows_at(database, narrow)) == {k for k, r in feed.model[1].items() if r[0] == "EU"}


def test_a_renamed_column_halts_its_table_alone_until_the_predicate_follows(database: str, feed: Feed) -> None:
    settings = start(feed, database, WHERE)
    columns = items().columns
    renamed = replace(items(), version=2, columns=(*columns[:2], replace(columns[2], name="total")))
    feed.describe(renamed)
    feed.cut(put(3, "EU", 200), put(4, "US", 200), put(1, "p", 1, table=2))

    with following(settings, "a"):
        wait_until_caught_up(database, feed.broker)
    tables = {t.name: t for t in open_target(settings, "a").read_view().tables}
    assert (tables["shop.items"].state, tables["shop.others"].state) == ("HALTED", "ACTIVE")
    assert "shop.items has no column amount" in tables["shop.items"].reason
    assert rows_at(database, items(2, "others"))[("1",)] == ("p", "1")

    changed = with_where(settings, {"items": "label = 'EU' and total >= 100"})
    with following(changed, "a"):
        eventually(lambda: has_settled(changed), "the table's coming back")
        feed.cut(put(5, "EU", 300), put(3, "US", 300))
        wait_until_caught_up(database, feed.broker)
    assert rows_at(database, renamed) == rows_inside(feed)
    assert read_progress(changed, "a").unaccounted == 0


def test_a_predicate_is_not_transferred_to_another_column(database: str, feed: Feed) -> None:
    """The predicate selected unchanged rows by the former column: only a resync finds which are in range now."""
    columns = (*items().columns, column(4, "net", INT))
    feed.describe(replace(items(), columns=columns), items(2, "others"))
    feed.cut(put(1, "EU", 100, 0), put(2, "EU", 0, 100), put(3, "EU", 100, 100), put(1, "o", 1, table=2))
    settings = settings_for(feed.broker.address, {"a": database}, where=WHERE)
    full_sync(settings, "a")
    renamed = replace(items(), version=2, columns=(*columns[:2], column(3, "gross", INT), column(4, "amount", INT)))
    feed.describe(renamed)
    feed.cut(put(1, "p", 1, table=2))
    with following(settings, "a"):
        wait_until_caught_up(database, feed.broker)

    (held,) = [t for t in read_table_states(settings, "a") if t.state != "ACTIVE"]
    assert (held.source_name, held.state) == ("shop.items", "HALTED")
    assert "names amount, which is another column since version 2" in held.reason
    assert "`venus resync shop.items --target a`" in held.reason
    assert rows_at(database, items(2, "others"))[("1",)] == ("p", "1")

    request_resync(settings, "a", "shop.items")
    with following(settings, "a"):
        eventually(lambda: has_settled(settings), "the resync")
        feed.cut(put(4, "EU", 0, 200), put(5, "EU", 200, 0))
        wait_until_caught_up(database, feed.broker)
    assert set(rows_at(database, renamed)) == {("2",), ("3",), ("4",)}


def test_tasks_of_a_scale_out_apply_use_the_predicate_as_well(
    database: str, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = start(feed, database, WHERE)
    staging = settings.model_copy(update={"spark": SparkSettings(stage_rows_min=1)})
    applies = StagedApply(staging, "a", LocalRunner(1), threading.Event())
    applies.start()
    for seed in range(3):
        keys = range(1, 250)
        rng = random.Random(seed)
        feed.cut(
            *(
                deletion(k) if rng.random() < 0.2 else put(k, rng.choice(REGIONS), rng.choice((None, 0, 100, 500)))
                for k in keys
            )
        )
        applies.apply_up_to(feed.broker.next_offset)
        assert rows_at(database, items()) == rows_inside(feed) != {}
    assert (applies.staged, applies.ordinary) == (3, 0)

    monkeypatch.setattr("venus.adapters.targets.postgresql.apply.staged_task.project_changes", lambda rows, *_: rows)
    feed.cut(put(5000, "US", 100))
    applies.apply_up_to(feed.broker.next_offset)
    applies.close()
    assert rows_at(database, items()) != rows_inside(feed)  # checks that this test can fail


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"itemz": "amount = 1"}, "targets.a.where.itemz: there is no table itemz (did you mean items?)"),
        ({"items": "amounts = 1"}, "targets.a.where.items: amounts = 1: character 1: shop.items has no column amounts"),
        ({"items": "amount = 'x'"}, "targets.a.where.items: amount = 'x': character 10: amount is compared as number"),
        ({"items": "amount = 1", "shop.items": "amount = 2"}, "shop.items has a predicate already"),
    ],
)
def test_an_invalid_predicate_is_refused_at_the_start(
    database: str, feed: Feed, where: dict[str, str], said: str
) -> None:
    settings = start(feed, database, {})
    wrong = with_where(settings, where)

    with pytest.raises(ConfigError) as caught:
        run_apply(wrong, "a", threading.Event())
    assert said in str(caught.value)
    assert rows_at(database, items()) == feed.model[1]
    query(database, "DROP SCHEMA venus CASCADE; DROP SCHEMA shop CASCADE")
    with pytest.raises(ConfigError) as caught:
        full_sync(wrong, "a")
    assert said in str(caught.value)


def test_a_table_that_appears_later_has_its_predicate_from_the_first_row(database: str, feed: Feed) -> None:
    settings = start(feed, database, {})
    feed.describe(items(3, "late"))
    feed.cut(*(put(n, "EU" if n % 2 else "US", n, table=3) for n in range(10)))
    changed = with_where(settings, {"late": "label = 'EU'"})

    with following(changed, "a"):
        wait_until_caught_up(database, feed.broker)

    assert set(rows_at(database, items(3, "late"))) == {(str(n),) for n in range(1, 10, 2)}
    assert has_settled(changed)


def has_row(read: Callable[[str, str], set[str]], key: str) -> bool:
    return key in read("shop", "items")


def check_a_second_table_of_the_name(feed: Feed, settings: Settings, read: Callable[[str, str], set[str]]) -> None:
    """Create a second table with the name in a predicate; the configuration then names both tables."""
    feed.describe(replace(items(3, "items"), namespace="hr"))

    def states() -> dict[str, tuple[str, str]]:
        return {t.source_name: (t.state, t.reason) for t in read_table_states(settings, "a")}

    def write(key: int) -> None:
        feed.cut(
            put(key, "EU", 100), put(key + 1, "US", 100), put(key, "EU", 1, table=3), put(key + 1, "US", 1, table=3)
        )

    for key in (900, 910):  # still the same after a restart
        with following(settings, "a"):
            write(key)
            follows = partial(has_row, read, str(key))
            eventually(follows, "the other table to follow")
        state, reason = states()["hr.items"]
        assert state == "HALTED"
        assert 'targets.a.where.items: more than one table has this name: write "shop.items" or "hr.items"' in reason
        assert "change [targets.a.where] and start `venus sync` again" in reason
        assert states()["shop.items"] == ("ACTIVE", "")
    named = with_where(settings, {"shop.items": WHERE["items"], "hr.items": "label = 'US'"})
    with following(named, "a"):
        write(920)
        eventually(lambda: has_settled(named), "both tables to follow")
        eventually(lambda: "920" in read("shop", "items") and "921" in read("hr", "items"), "the rows")
    assert not {"901", "911", "921"} & read("shop", "items")
    assert read("hr", "items") == {"901", "911", "921"}
    assert read_progress(named, "a").unaccounted == 0


def test_a_second_table_of_the_name_halts_alone(database: str, feed: Feed) -> None:
    settings = start(feed, database, WHERE)
    check_a_second_table_of_the_name(
        feed, settings, lambda schema, name: {str(i) for (i,) in query(database, f"SELECT id FROM {schema}.{name}")}
    )


def test_a_folder_of_parquet_files_reports_that_it_gets_every_row(tmp_path: Any) -> None:
    settings = settings_for("127.0.0.1:1", {"lake": f"parquet:///{tmp_path}"}, where=WHERE)

    with pytest.raises(ConfigError, match="target lake is a folder of Parquet files: it gets every row") as caught:
        open_target(settings, "lake")
    assert caught.value.hint == "take [targets.lake.where] out of the configuration"


def test_a_target_loaded_by_an_older_version_is_upgraded(database: str, feed: Feed) -> None:
    settings = start(feed, database, {})
    query(
        database,
        "ALTER TABLE venus.target_table DROP COLUMN predicate, DROP COLUMN predicate_before, "
        "DROP COLUMN rows_brought, DROP COLUMN rows_removed; ALTER TABLE venus.load_manifest DROP COLUMN outside; "
        "ALTER TABLE venus.applied DROP COLUMN rows_identity, DROP COLUMN compared; "
        f"UPDATE venus.{VERSION_TABLE} SET version_num = 'target_0002' WHERE version_num = 'target_0005'",
    )
    assert {t.state for t in read_table_states(settings, "a")} == {"ACTIVE"}
    changed = with_where(settings, WHERE)

    with following(changed, "a"):
        eventually(lambda: has_settled(changed), "the new predicate")

    assert rows_at(database, items()) == rows_inside(feed)


def test_check_reports_on_predicates(database: str, feed: Feed) -> None:
    settings = start(feed, database, WHERE)
    schemas = [items(), items(2, "others")]
    said = [f.message for f in open_target(settings, "a").check(schemas)]
    assert "shop.items gets the rows where label = 'EU' and amount >= 100" in said

    wrong = with_where(settings, {"items": "amount = 'x'"})
    (finding,) = [f for f in open_target(wrong, "a").check(schemas) if f.blocks]
    assert "character 10: amount is compared as number" in finding.message
    with pytest.raises(ConfigError, match="amount is compared as number"):
        open_target(wrong, "a").require_fit(schemas)


def test_without_the_predicates_verdict_a_row_that_left_stays(
    database: str, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks that the tests of this file can fail: without each mechanism the result is wrong."""
    monkeypatch.setattr("venus.adapters.targets.relational.writer.project_changes", lambda rows, *_: rows)
    monkeypatch.setattr("venus.adapters.targets.postgresql.rows.at_once.project_changes", lambda rows, *_: rows)
    settings = start(feed, database, WHERE)
    with following(settings, "a"):
        feed.cut(put(5000, "US", 100))
        wait_until_caught_up(database, feed.broker)
    assert rows_at(database, items()) != rows_inside(feed)

    monkeypatch.setattr("venus.adapters.targets.relational.resync.project_full_rows", lambda rows, *_: rows)
    changed = with_where(settings, {"items": "label = 'US'"})
    with following(changed, "a"):
        eventually(lambda: has_settled(changed), "the change of the predicate")
    assert rows_at(database, items()) == feed.model[1]
