"""A table whose key changes at the source: it halts, and comes back by the way that its reason says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import sqlalchemy

from tests.support.brokers.feed import query
from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import Server
from tests.support.pipelines.whole_way import WholeWay, whole_way
from venus.adapters.dialects.registry import open_source
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.relational.control import pause, read_table_states, request_resync, resume
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.targets.relational.load_task import FormerKey
from venus.adapters.targets.relational.states import TableState
from venus.adapters.verify.findings import ComparisonVerdict
from venus.config import Settings, TargetSettings
from venus.rpc.conditions import problems

pytestmark = pytest.mark.integration

TABLE = """
CREATE TABLE item (id int PRIMARY KEY, code text NOT NULL, name text);
INSERT INTO item SELECT n, 'c' || n, 'name ' || n FROM generate_series(1, 40) n
"""
OTHER_KEY = "ALTER TABLE item DROP CONSTRAINT item_pkey, ALTER id DROP NOT NULL, ADD PRIMARY KEY (code)"
KEY = "SELECT array_agg(attname::text ORDER BY attname) FROM pg_attribute WHERE attrelid = 'item_pkey'::regclass"
ROWS = "SELECT * FROM item ORDER BY name"


@pytest.fixture
def way(tmp_path: Path, database: str, second_database: str) -> Iterator[WholeWay]:
    query(database, TABLE)
    with running(tmp_path, database, second_database) as made:
        yield made


@pytest.fixture
def another(way: WholeWay, postgres_server: Server) -> Iterator[Settings]:
    """Give the configuration of a target that is not loaded yet."""
    url = postgres_server.create_database()
    yield way.settings.model_copy(update={"targets": {"another": TargetSettings.model_validate({"url": url})}})
    postgres_server.drop_database(url)


@contextmanager
def running(folder: Path, source: str, target: str) -> Iterator[WholeWay]:
    with whole_way(folder, source, target) as made:
        made.install()
        made.load()
        made.start()
        made.caught_up()
        yield made


def item(way: WholeWay) -> TableState:
    (found,) = [t for t in read_table_states(way.settings, "main") if t.name == "item"]
    return found


def until_same(way: WholeWay) -> None:
    way.until(lambda: item(way).state == "ACTIVE", "the table to follow")
    way.caught_up()
    way.until(lambda: way.verify().verdict is ComparisonVerdict.SAME, "both sides to be the same")


def read_again(way: WholeWay) -> None:
    """Do what the state at the source says: `venus install-triggers`, then `venus resync`."""
    way.until(lambda: "install-triggers" in registered_state(way)[1], "capture to notice it")
    assert registered_state(way)[0] == "RESYNC"
    way.install()
    with closing(open_source(way.settings)) as source:
        (table,) = [t for t in source.registry.read_registered_tables() if t.schema.name == "item"]
        source.capture.restart_fill(table.schema.table_id)
    way.until(lambda: registered_state(way) == ("ACTIVE", ""), "it to be captured")


def registered_state(way: WholeWay) -> tuple[str, str]:
    with closing(open_source(way.settings)) as source:
        (table,) = [t for t in source.registry.read_registered_tables() if t.schema.name == "item"]
    return table.state, table.reason


def is_read(way: WholeWay) -> bool:
    with closing(open_source(way.settings)) as source:
        return all(t.fill.done for t in source.registry.read_registered_tables()) and not way.log_rows()


def halt_reason(way: WholeWay) -> str:
    way.until(lambda: item(way).state == "HALTED", "the table to halt")
    return item(way).reason


def test_another_key_is_taken_over_by_the_way_that_is_said(way: WholeWay) -> None:
    query(way.source, OTHER_KEY)
    query(way.source, "INSERT INTO item VALUES (NULL, 'x', 'no id')")
    read_again(way)
    reason = halt_reason(way)
    assert reason.startswith(
        "the key has changed from (id) to (code): when `venus resync public.item` has read the table again at the "
        "source, `venus resync public.item --target main` replaces its rows here"
    )
    (said,) = problems(open_target(way.settings, "main").read_view().condition, "main")
    assert said == f"target main: public.item is HALTED ({reason})"
    way.until(lambda: is_read(way), "the source to be read")
    query(way.source, "INSERT INTO item VALUES (1, 'y', 'an id twice'); DELETE FROM item WHERE code = 'c7'")
    request_resync(way.settings, "main", "public.item")
    until_same(way)
    assert query(way.target, KEY) == [(["code"],)]
    assert query(way.target, ROWS) == query(way.source, ROWS)
    query(way.source, "UPDATE item SET code = 'z' WHERE code = 'x'; UPDATE item SET name = 'other' WHERE code = 'c8'")
    until_same(way)
    assert query(way.target, ROWS) == query(way.source, ROWS)


@pytest.mark.slow
def test_resyncs_that_come_too_early_change_nothing(way: WholeWay, another: Settings) -> None:
    before = query(way.target, ROWS)
    way.stop("apply")
    query(way.source, OTHER_KEY)
    way.until(lambda: "install-triggers" in registered_state(way)[1], "capture to notice it")
    way.install()
    query(way.source, "UPDATE item SET name = 'new' WHERE code = 'c1'")
    way.until(lambda: not way.log_rows(), "it to be captured")
    way.start("apply")
    halt_reason(way)
    request_resync(way.settings, "main", "public.item")
    way.until(lambda: item(way).reason.startswith("resync failed"), "the resync to fail")
    (said,) = problems(open_target(way.settings, "main").read_view().condition, "main")
    assert said == (
        "target main: public.item is HALTED (resync failed: the broker still has rows by the former key (id): run "
        "`venus resync public.item`, which reads the table again at the source, and then `venus resync public.item "
        "--target main`)"
    )
    assert query(way.target, ROWS) == before
    with pytest.raises(FormerKey, match="has rows by its former key") as refused:
        full_sync(another, "another")
    assert "run `venus migrate` again" in refused.value.hint
    with closing(open_source(way.settings)) as source:
        (table,) = [t for t in source.registry.read_registered_tables() if t.schema.name == "item"]
        source.capture.restart_fill(table.schema.table_id)
    way.until(lambda: is_read(way), "the source to be read")
    assert full_sync(another, "another").rows == {"public.item": 40}
    request_resync(way.settings, "main", "public.item")
    until_same(way)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("ALTER TABLE item DROP CONSTRAINT item_pkey, ADD PRIMARY KEY (id, code)", ["code", "id"]),
        ("ALTER TABLE item RENAME id TO number", ["number"]),
        ("ALTER TABLE item DROP id; ALTER TABLE item ADD id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY", ["id"]),
    ],
    ids=["wider", "renamed", "made again"],
)
def test_what_else_may_become_of_a_key(way: WholeWay, change: str, key: list[str]) -> None:
    query(way.source, change)
    read_again(way)
    halt_reason(way)
    way.until(lambda: is_read(way), "the source to be read")
    request_resync(way.settings, "main", "public.item")
    until_same(way)
    assert query(way.target, KEY) == [(key,)]
    query(way.source, "UPDATE item SET name = 'other' WHERE code = 'c8'; DELETE FROM item WHERE code = 'c9'")
    until_same(way)


def test_a_wider_key_needs_no_resync_at_all(way: WholeWay) -> None:
    query(way.source, "ALTER TABLE item ALTER id TYPE bigint")
    query(way.source, "INSERT INTO item VALUES (5000000000, 'big', 'big')")
    until_same(way)
    assert registered_state(way) == ("ACTIVE", "")
    assert query(way.target, "SELECT id FROM item WHERE code = 'big'") == [(5000000000,)]
    query(way.source, "INSERT INTO item VALUES (5000000001, 'bigger', 'bigger'); DELETE FROM item WHERE id < 20")
    until_same(way)


@pytest.mark.slow
def test_a_table_that_is_paused_stays_so(way: WholeWay) -> None:
    pause(way.settings, "main", ["public.item"])
    query(way.source, OTHER_KEY)
    read_again(way)
    way.until(lambda: is_read(way), "the source to be read")
    request_resync(way.settings, "main", "public.item")
    way.until(lambda: query(way.target, KEY) == [(["code"],)], "the resync to end")
    assert item(way).state == "PAUSED"
    query(way.source, "UPDATE item SET name = 'other' WHERE code = 'c8'")
    resume(way.settings, "main", ["public.item"])
    until_same(way)


def resync_fails(way: WholeWay) -> None:
    """Go the way that is said, up to a resync of the target that is refused."""
    read_again(way)
    halt_reason(way)
    way.until(lambda: is_read(way), "the source to be read")
    request_resync(way.settings, "main", "public.item")
    way.until(lambda: item(way).reason.startswith("resync failed"), "the resync to fail")


@pytest.mark.slow
def test_a_foreign_key_that_stands_on_the_former_key_is_named(way: WholeWay) -> None:
    query(way.target, "CREATE TABLE mine (item int REFERENCES item); INSERT INTO mine VALUES (3)")
    query(way.source, OTHER_KEY)
    resync_fails(way)
    drop = 'ALTER TABLE mine DROP CONSTRAINT "mine_item_fkey"'
    assert item(way).reason.endswith(f"foreign keys at the target refer to the former key of public.item: {drop}")
    query(way.target, drop)
    request_resync(way.settings, "main", "public.item")
    until_same(way)


@pytest.mark.slow
def test_a_table_that_venus_has_not_made_keeps_its_keys(way: WholeWay) -> None:
    way.stop("apply")
    query(way.target, "UPDATE venus.target_table SET created = false WHERE name = 'item'")
    way.start("apply")
    query(way.source, OTHER_KEY)
    resync_fails(way)
    assert item(way).reason.endswith(
        "public.item has no primary key or unique index on (code): add one at the target and drop the former key"
    )
    query(way.target, "ALTER TABLE item DROP CONSTRAINT item_pkey, ADD UNIQUE (code)")
    request_resync(way.settings, "main", "public.item")
    until_same(way)


def test_from_mariadb(tmp_path: Path, database: str, mariadb_server: MariaServer, mariadb_database: str) -> None:
    name = str(sqlalchemy.make_url(mariadb_database).database)
    with closing(mariadb_server.connect(name, autocommit=True)) as app:
        cursor = app.cursor()
        cursor.execute(
            "CREATE TABLE item (id int PRIMARY KEY, code varchar(20) COLLATE utf8mb4_bin NOT NULL, name text)"
        )
        cursor.execute("INSERT INTO item SELECT seq, concat('c', seq), concat('name ', seq) FROM seq_1_to_40")
        with running(tmp_path, mariadb_database, database) as way:
            cursor.execute("ALTER TABLE item DROP PRIMARY KEY, ADD PRIMARY KEY (code)")
            cursor.execute("INSERT INTO item VALUES (1, 'x', 'an id twice')")
            read_again(way)
            assert halt_reason(way).startswith("the key has changed from (id) to (code): ")
            way.until(lambda: is_read(way), "the source to be read")
            request_resync(way.settings, "main", f"{name}.item")
            until_same(way)
            cursor.execute("UPDATE item SET name = 'other' WHERE code = 'c8'")
            until_same(way)
