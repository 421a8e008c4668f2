"""A table whose key changes at the source halts, and continues by the remedy in its reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import sqlalchemy

from tests.support.brokers.feed import query
from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import Server
from tests.support.pipelines.end_to_end import EndToEnd, end_to_end
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
def e2e(tmp_path: Path, database: str, second_database: str) -> Iterator[EndToEnd]:
    query(database, TABLE)
    with run_pipeline(tmp_path, database, second_database) as made:
        yield made


@pytest.fixture
def another(e2e: EndToEnd, postgres_server: Server) -> Iterator[Settings]:
    """Return the settings of another target that is not loaded yet."""
    url = postgres_server.create_database()
    yield e2e.settings.model_copy(update={"targets": {"another": TargetSettings.model_validate({"url": url})}})
    postgres_server.drop_database(url)


@contextmanager
def run_pipeline(folder: Path, source: str, target: str) -> Iterator[EndToEnd]:
    with end_to_end(folder, source, target) as made:
        made.install()
        made.load()
        made.start()
        made.wait_until_caught_up()
        yield made


def item(e2e: EndToEnd) -> TableState:
    (found,) = [t for t in read_table_states(e2e.settings, "main") if t.name == "item"]
    return found


def until_same(e2e: EndToEnd) -> None:
    e2e.until(lambda: item(e2e).state == "ACTIVE", "the table to follow")
    e2e.wait_until_caught_up()
    e2e.until(lambda: e2e.verify().verdict is ComparisonVerdict.SAME, "both sides to be the same")


def read_again(e2e: EndToEnd) -> None:
    """Follow the reason at the source: `venus install-triggers`, then `venus resync`."""
    e2e.until(lambda: "install-triggers" in registered_state(e2e)[1], "capture to notice it")
    assert registered_state(e2e)[0] == "RESYNC"
    e2e.install()
    with closing(open_source(e2e.settings)) as source:
        (table,) = [t for t in source.registry.read_registered_tables() if t.schema.name == "item"]
        source.capture.restart_fill(table.schema.table_id)
    e2e.until(lambda: registered_state(e2e) == ("ACTIVE", ""), "it to be captured")


def registered_state(e2e: EndToEnd) -> tuple[str, str]:
    with closing(open_source(e2e.settings)) as source:
        (table,) = [t for t in source.registry.read_registered_tables() if t.schema.name == "item"]
    return table.state, table.reason


def is_read(e2e: EndToEnd) -> bool:
    with closing(open_source(e2e.settings)) as source:
        return all(t.fill.done for t in source.registry.read_registered_tables()) and not e2e.log_rows()


def halt_reason(e2e: EndToEnd) -> str:
    e2e.until(lambda: item(e2e).state == "HALTED", "the table to halt")
    return item(e2e).reason


def test_another_key_is_adopted_by_the_remedy_in_the_reason(e2e: EndToEnd) -> None:
    query(e2e.source, OTHER_KEY)
    query(e2e.source, "INSERT INTO item VALUES (NULL, 'x', 'no id')")
    read_again(e2e)
    reason = halt_reason(e2e)
    assert reason.startswith(
        "the key has changed from (id) to (code): when `venus resync public.item` has read the table again at the "
        "source, `venus resync public.item --target main` replaces its rows here"
    )
    (said,) = problems(open_target(e2e.settings, "main").read_view().condition, "main")
    assert said == f"target main: public.item is HALTED ({reason})"
    e2e.until(lambda: is_read(e2e), "the source to be read")
    query(e2e.source, "INSERT INTO item VALUES (1, 'y', 'an id twice'); DELETE FROM item WHERE code = 'c7'")
    request_resync(e2e.settings, "main", "public.item")
    until_same(e2e)
    assert query(e2e.target, KEY) == [(["code"],)]
    assert query(e2e.target, ROWS) == query(e2e.source, ROWS)
    query(e2e.source, "UPDATE item SET code = 'z' WHERE code = 'x'; UPDATE item SET name = 'other' WHERE code = 'c8'")
    until_same(e2e)
    assert query(e2e.target, ROWS) == query(e2e.source, ROWS)


@pytest.mark.slow
def test_resyncs_that_come_too_early_change_nothing(e2e: EndToEnd, another: Settings) -> None:
    before = query(e2e.target, ROWS)
    e2e.stop("apply")
    query(e2e.source, OTHER_KEY)
    e2e.until(lambda: "install-triggers" in registered_state(e2e)[1], "capture to notice it")
    e2e.install()
    query(e2e.source, "UPDATE item SET name = 'new' WHERE code = 'c1'")
    e2e.until(lambda: not e2e.log_rows(), "it to be captured")
    e2e.start("apply")
    halt_reason(e2e)
    request_resync(e2e.settings, "main", "public.item")
    e2e.until(lambda: item(e2e).reason.startswith("resync failed"), "the resync to fail")
    (said,) = problems(open_target(e2e.settings, "main").read_view().condition, "main")
    assert said == (
        "target main: public.item is HALTED (resync failed: the broker still has rows by the former key (id): run "
        "`venus resync public.item`, which reads the table again at the source, and then `venus resync public.item "
        "--target main`)"
    )
    assert query(e2e.target, ROWS) == before
    with pytest.raises(FormerKey, match="has rows by its former key") as refused:
        full_sync(another, "another")
    assert "run `venus migrate` again" in refused.value.hint
    with closing(open_source(e2e.settings)) as source:
        (table,) = [t for t in source.registry.read_registered_tables() if t.schema.name == "item"]
        source.capture.restart_fill(table.schema.table_id)
    e2e.until(lambda: is_read(e2e), "the source to be read")
    assert full_sync(another, "another").rows == {"public.item": 40}
    request_resync(e2e.settings, "main", "public.item")
    until_same(e2e)


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
def test_other_changes_of_a_key_are_adopted(e2e: EndToEnd, change: str, key: list[str]) -> None:
    query(e2e.source, change)
    read_again(e2e)
    halt_reason(e2e)
    e2e.until(lambda: is_read(e2e), "the source to be read")
    request_resync(e2e.settings, "main", "public.item")
    until_same(e2e)
    assert query(e2e.target, KEY) == [(key,)]
    query(e2e.source, "UPDATE item SET name = 'other' WHERE code = 'c8'; DELETE FROM item WHERE code = 'c9'")
    until_same(e2e)


def test_a_wider_key_needs_no_resync(e2e: EndToEnd) -> None:
    query(e2e.source, "ALTER TABLE item ALTER id TYPE bigint")
    query(e2e.source, "INSERT INTO item VALUES (5000000000, 'big', 'big')")
    until_same(e2e)
    assert registered_state(e2e) == ("ACTIVE", "")
    assert query(e2e.target, "SELECT id FROM item WHERE code = 'big'") == [(5000000000,)]
    query(e2e.source, "INSERT INTO item VALUES (5000000001, 'bigger', 'bigger'); DELETE FROM item WHERE id < 20")
    until_same(e2e)


@pytest.mark.slow
def test_a_paused_table_stays_paused(e2e: EndToEnd) -> None:
    pause(e2e.settings, "main", ["public.item"])
    query(e2e.source, OTHER_KEY)
    read_again(e2e)
    e2e.until(lambda: is_read(e2e), "the source to be read")
    request_resync(e2e.settings, "main", "public.item")
    e2e.until(lambda: query(e2e.target, KEY) == [(["code"],)], "the resync to end")
    assert item(e2e).state == "PAUSED"
    query(e2e.source, "UPDATE item SET name = 'other' WHERE code = 'c8'")
    resume(e2e.settings, "main", ["public.item"])
    until_same(e2e)


def make_resync_fail(e2e: EndToEnd) -> None:
    """Follow the instructions of the halt reason up to a resync of the target that is refused."""
    read_again(e2e)
    halt_reason(e2e)
    e2e.until(lambda: is_read(e2e), "the source to be read")
    request_resync(e2e.settings, "main", "public.item")
    e2e.until(lambda: item(e2e).reason.startswith("resync failed"), "the resync to fail")


@pytest.mark.slow
def test_a_foreign_key_that_refers_to_the_former_key_is_named(e2e: EndToEnd) -> None:
    query(e2e.target, "CREATE TABLE mine (item int REFERENCES item); INSERT INTO mine VALUES (3)")
    query(e2e.source, OTHER_KEY)
    make_resync_fail(e2e)
    drop = 'ALTER TABLE mine DROP CONSTRAINT "mine_item_fkey"'
    assert item(e2e).reason.endswith(f"foreign keys at the target refer to the former key of public.item: {drop}")
    query(e2e.target, drop)
    request_resync(e2e.settings, "main", "public.item")
    until_same(e2e)


@pytest.mark.slow
def test_a_table_that_venus_has_not_created_keeps_its_keys(e2e: EndToEnd) -> None:
    e2e.stop("apply")
    query(e2e.target, "UPDATE venus.target_table SET created = false WHERE name = 'item'")
    e2e.start("apply")
    query(e2e.source, OTHER_KEY)
    make_resync_fail(e2e)
    assert item(e2e).reason.endswith(
        "public.item has no primary key or unique index on (code): add one at the target and drop the former key"
    )
    query(e2e.target, "ALTER TABLE item DROP CONSTRAINT item_pkey, ADD UNIQUE (code)")
    request_resync(e2e.settings, "main", "public.item")
    until_same(e2e)


def test_from_mariadb(tmp_path: Path, database: str, mariadb_server: MariaServer, mariadb_database: str) -> None:
    name = str(sqlalchemy.make_url(mariadb_database).database)
    with closing(mariadb_server.connect(name, autocommit=True)) as app:
        cursor = app.cursor()
        cursor.execute(
            "CREATE TABLE item (id int PRIMARY KEY, code varchar(20) COLLATE utf8mb4_bin NOT NULL, name text)"
        )
        cursor.execute("INSERT INTO item SELECT seq, concat('c', seq), concat('name ', seq) FROM seq_1_to_40")
        with run_pipeline(tmp_path, mariadb_database, database) as e2e:
            cursor.execute("ALTER TABLE item DROP PRIMARY KEY, ADD PRIMARY KEY (code)")
            cursor.execute("INSERT INTO item VALUES (1, 'x', 'an id twice')")
            read_again(e2e)
            assert halt_reason(e2e).startswith("the key has changed from (id) to (code): ")
            e2e.until(lambda: is_read(e2e), "the source to be read")
            request_resync(e2e.settings, "main", f"{name}.item")
            until_same(e2e)
            cursor.execute("UPDATE item SET name = 'other' WHERE code = 'c8'")
            until_same(e2e)
