"""ALTER TABLE changes values without a trigger, keeps InnoDB's table id, and sometimes keeps the definition's text."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.mysql.conftest import Shop
from venus.adapters.dialects.mysql import registry
from venus.adapters.dialects.mysql.installation.installed_objects import MysqlInstalledObjects
from venus.cli.prove.follower import Follower

ITEM = "CREATE TABLE item (id int PRIMARY KEY, a int, twice int AS (a * 2) VIRTUAL, more int AS (a + 1) STORED, b int)"
ROWS = "INSERT INTO item (id, a, b) VALUES (1, 5, 50), (2, 7, 70)"


def follow(shop: Shop, *statements: str) -> Follower:
    """Capture, run statements in a later second than that of the table's creation, and read the dictionary."""
    shop.run(ITEM, ROWS)
    follower = shop.capture()
    shop.source.capture.refresh_schemas()
    shop.wait_for(
        f"SELECT 1 FROM information_schema.tables WHERE table_schema = '{shop.database}'"
        # a file's time lags by some milliseconds: right after a second's end it is still in that second
        " AND table_name IN ('item', 'venus_heartbeat') HAVING max(create_time) < now(6) - INTERVAL 1050000 MICROSECOND"
    )
    shop.run(*statements)
    shop.clock.now += 10
    shop.source.capture.refresh_schemas()
    follower.read_registry()
    return follower


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE item MODIFY twice int AS (a * 3) VIRTUAL",
        "ALTER TABLE item DROP twice, ADD twice int AS (a * 3) VIRTUAL",
        "ALTER TABLE item MODIFY more int AS (a + 2) STORED",  # rebuilds the table
        "ALTER TABLE item DROP b, ADD b int",  # the text of the definition stays the same
        "ALTER TABLE item DROP b, ADD b int DEFAULT 9",
        "ALTER TABLE item DROP b; ALTER TABLE item ADD b int",
        "ALTER TABLE item CHANGE a c int; ALTER TABLE item CHANGE b a int AFTER id, CHANGE c b int",
    ],
)
def test_values_that_alter_table_has_changed_are_read_again(shop: Shop, statement: str) -> None:
    if "CHANGE" in statement:  # a column of a generated column cannot exchange its name
        statement = f"ALTER TABLE item DROP twice, DROP more; {statement}"
    follower = follow(shop, *statement.split("; "))
    follower.drain()
    assert shop.state("item") == ("ACTIVE", "")
    shop.check_same(follower, "item")


def test_changed_values_are_noticed_in_partitions_and_without_the_privilege_to_see_innodbs_ids(shop: Shop) -> None:
    shop.server.execute("CREATE OR REPLACE USER 'venus'@'127.0.0.1' IDENTIFIED BY 'pw'")
    shop.server.execute(f"GRANT ALL ON `{shop.database}`.* TO 'venus'@'127.0.0.1'")
    shop.url = shop.server.url(shop.database, "venus", "pw")
    shop.run(
        "CREATE TABLE part (id int PRIMARY KEY, twice int AS (id * 2) VIRTUAL) PARTITION BY HASH (id) PARTITIONS 2"
    )
    shop.run("INSERT INTO part (id) VALUES (1), (2)")
    follower = follow(shop, "ALTER TABLE part MODIFY twice int AS (id * 3) VIRTUAL")
    follower.drain()
    shop.check_same(follower, "part")


def test_changes_while_capture_was_away_are_noticed(shop: Shop) -> None:
    follower = follow(shop)
    assert follower.due() == []
    shop.restart()
    shop.run("ALTER TABLE item MODIFY twice int AS (a * 3) VIRTUAL")
    later = Follower(shop.source)
    shop.source.capture.refresh_schemas()
    assert [f.table_id for f in later.due()] == [later.table_id("item")]


def test_a_paused_table_is_read_again_when_it_continues(shop: Shop) -> None:
    follower = follow(shop)
    table_id = follower.table_id("item")
    shop.source.registry.set_table_state(table_id, "PAUSED", "")
    shop.run("ALTER TABLE item MODIFY more int AS (a + 2) STORED")
    shop.source.capture.refresh_schemas()
    shop.source.registry.set_table_state(table_id, "ACTIVE", "")
    shop.source.capture.refresh_schemas()
    follower.drain()
    assert shop.state("item") == ("ACTIVE", "")
    shop.check_same(follower, "item")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX by_b ON item (b)",
        "ALTER TABLE item COMMENT 'x'",
        "ANALYZE TABLE item",
        "CREATE TABLE child (id int PRIMARY KEY, FOREIGN KEY (id) REFERENCES item (id))",
        "CREATE TRIGGER theirs BEFORE INSERT ON item FOR EACH ROW SET NEW.b = 1",
        "FLUSH TABLES",
    ],
)
def test_ddl_that_changes_no_value_causes_no_new_fill(shop: Shop, statement: str) -> None:
    follower = follow(shop, statement)
    assert shop.state("item") == ("ACTIVE", "")
    assert follower.due() == []


def test_files_that_were_copied_or_touched_cause_no_new_fill(shop: Shop) -> None:
    """A container touches all files at its start, when it gives them to its user."""
    follower = follow(shop)
    written = "SELECT group_concat(create_time) FROM information_schema.tables WHERE table_schema = database()"
    before = shop.run(written)
    for file in (shop.server.home / "data" / shop.database).glob("*.frm"):
        file.chmod(0o660)
    shop.run("FLUSH TABLES")
    assert shop.run(written) != before, "this has tested nothing"
    shop.source.capture.refresh_schemas()
    assert follower.due() == []


def test_an_unexplained_rebuild_is_still_a_truncate(shop: Shop) -> None:
    follow(shop, "OPTIMIZE TABLE item")
    assert shop.state("item")[0] == "RESYNC"
    assert all(t.fill.done for t in shop.source.registry.read_registered_tables()), "it waits for its resync"


@pytest.mark.parametrize("where", [(registry, "load_capture_state"), (MysqlInstalledObjects, "read")])
@pytest.mark.parametrize(
    ("statement", "state", "reason"),
    [
        ("ALTER TABLE item DROP PRIMARY KEY, ADD PRIMARY KEY (a)", "RESYNC", "its key was (id) and is (a)"),
        ("ALTER TABLE item ADD added int DEFAULT 4, ALGORITHM=COPY", "ACTIVE", ""),
        ("DROP TABLE item", "RESYNC", "the table is gone"),
        ("TRUNCATE TABLE item", "RESYNC", "TRUNCATE"),
    ],
)
def test_ddl_during_a_comparison_is_found_by_the_next_one(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, where: tuple[Any, str], statement: str, state: str, reason: str
) -> None:
    """DDL just before the dictionary is read, and DDL between that and the comparison with the registry."""
    follower = follow(shop)
    original = getattr(*where)

    def run_ddl_first(*arguments: Any) -> Any:
        monkeypatch.undo()
        shop.run(statement)
        return original(*arguments)

    monkeypatch.setattr(*where, run_ddl_first)
    shop.source.capture.refresh_schemas()
    shop.source.capture.refresh_schemas()
    assert shop.state("item")[0] == state
    assert shop.state("item")[1].startswith(reason)
    if state == "ACTIVE":
        follower.read_registry()
        follower.drain()
        shop.check_same(follower, "item")


def test_an_installation_of_an_older_version_records_the_current_state(shop: Shop) -> None:
    follower = follow(shop)
    shop.run("DELETE FROM venus_innodb_table WHERE table_id < 0")
    shop.source.capture.refresh_schemas()
    assert follower.due() == []
    shop.run("ALTER TABLE item MODIFY twice int AS (a * 3) VIRTUAL")
    shop.source.capture.refresh_schemas()
    follower.drain()
    shop.check_same(follower, "item")
