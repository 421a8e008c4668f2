"""The account loses privileges on a captured table: columns, cascades, and the statements that restore them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.mysql.conftest import Shop
from venus.adapters.dialects.mysql.dictionary.tables import parse_actions, parse_columns
from venus.adapters.dialects.mysql.installation import privileges
from venus.adapters.dialects.mysql.source import MysqlSource
from venus.cli.prove.follower import Follower

pytestmark = pytest.mark.integration

USER = "'narrow'@'127.0.0.1'"


class Account:
    """VENUS's own account, with exactly the privileges that it needs."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        shop.server.execute(f"CREATE USER {USER}")
        shop.server.execute(f"GRANT PROCESS ON *.* TO {USER}")
        shop.server.execute(f"GRANT ALL ON {shop.database}.* TO {USER}")
        self.open()

    def open(self) -> None:
        """Open a session; a grant on a whole database takes effect only for a new one."""
        self.source = MysqlSource(self.shop.server.url(self.shop.database, "narrow"), monotonic=self.shop.clock)

    def capture(self) -> Follower:
        self.source.installer.install(["*"], [])
        self.run("REVOKE ALL ON {}.* FROM {}", "")
        self.run("GRANT CREATE TEMPORARY TABLES ON {}.* TO {}", "")
        for (table,) in self.shop.run("SHOW TABLES"):
            self.run("GRANT SELECT, INSERT, UPDATE, DELETE, TRIGGER ON {}.%s TO {}", f"`{table}`")
        self.source.close()
        self.open()
        follower = Follower(self.source)
        follower.drain()
        return follower

    def run(self, statement: str, table: str) -> None:
        self.shop.server.execute(statement.replace("%s", table).format(self.shop.database, USER))

    def state(self, table: str) -> tuple[str, str]:
        return next(
            (t.state, t.reason) for t in self.source.registry.read_registered_tables() if t.schema.name == table
        )


@pytest.fixture
def account(shop: Shop) -> Iterator[Account]:
    account = Account(shop)
    yield account
    account.source.close()
    shop.server.execute(f"DROP USER {USER}")


def test_a_hidden_column_keeps_its_place_and_its_changes_arrive_later(account: Account) -> None:
    shop = account.shop
    shop.run("CREATE TABLE item (id int PRIMARY KEY, a text, `b c` text)", "INSERT INTO item VALUES (1, 'a', 'b')")
    follower = account.capture()
    account.run("REVOKE SELECT, INSERT, UPDATE, DELETE ON {}.%s FROM {}", "item")
    account.run("GRANT SELECT (id, a) ON {}.%s TO {}", "item")
    account.source.capture.refresh_schemas()
    state, reason = account.state("item")
    assert state == "PAUSED"
    grant = reason.split("after `", 1)[1].removesuffix("`")
    assert grant == f"GRANT SELECT (`b c`) ON {shop.database}.item TO {USER}"
    shop.run("UPDATE item SET `b c` = 'changed'", "INSERT INTO item VALUES (2, 'x', 'y')")
    follower.drain()
    shop.server.execute(grant)
    account.source.capture.refresh_schemas()
    assert account.state("item") == ("ACTIVE", "")
    follower.drain()
    shop.check_same(follower, "item")
    assert shop.schema(follower, "item").version == 1


def test_a_dropped_column_is_followed_while_another_one_is_hidden(account: Account) -> None:
    shop = account.shop
    shop.run(
        "CREATE TABLE item (id int PRIMARY KEY, a text, b text, c text)", "INSERT INTO item VALUES (1, 'a', 'b', 'c')"
    )
    follower = account.capture()
    account.run("REVOKE SELECT ON {}.%s FROM {}", "item")
    account.run("GRANT SELECT (id, a, c) ON {}.%s TO {}", "item")
    shop.run("ALTER TABLE item DROP COLUMN c")
    account.source.capture.refresh_schemas()
    assert "GRANT SELECT (b) ON" in account.state("item")[1]
    account.run("GRANT SELECT ON {}.%s TO {}", "item")
    account.source.capture.refresh_schemas()
    account.source.capture.refresh_schemas()
    follower.read_registry()
    follower.drain()
    assert [c.name for c in shop.schema(follower, "item").columns] == ["id", "a", "b"]
    shop.check_same(follower, "item")


def test_a_column_that_was_hidden_from_the_start_is_named_and_nothing_halts(account: Account) -> None:
    shop = account.shop
    shop.run("CREATE TABLE item (id int PRIMARY KEY, a text, secret text)", "INSERT INTO item VALUES (1, 'a', 's')")
    follower = account.capture()
    account.run("REVOKE SELECT, INSERT, UPDATE, DELETE ON {}.%s FROM {}", "item")
    account.run("GRANT SELECT (id, a, secret) ON {}.%s TO {}", "item")
    shop.run("ALTER TABLE item ADD COLUMN hidden text")
    account.source.capture.refresh_schemas()
    assert account.state("item") == ("ACTIVE", "")
    shop.run("UPDATE item SET a = 'changed'")
    follower.drain()
    assert [row["a"] for row in follower.rows("item").values()] == ["changed"]
    (found,) = [f for f in account.source.installer.check(["item"], []) if "not captured" in f.message]
    assert found.message == "column hidden may not be read, and is not captured"
    assert not found.blocks
    shop.server.execute(found.remedy.rstrip(";"))
    assert not [f for f in account.source.installer.check(["item"], []) if "not captured" in f.message]


def test_a_name_that_is_a_reserved_word_is_quoted(account: Account) -> None:
    shop = account.shop
    shop.run("CREATE TABLE `order` (id int PRIMARY KEY, `group` text, plain text)")
    account.capture()
    account.run("REVOKE SELECT, INSERT, UPDATE, DELETE ON {}.%s FROM {}", "`order`")
    account.run("GRANT SELECT (id) ON {}.%s TO {}", "`order`")
    account.source.capture.refresh_schemas()
    grant = account.state("order")[1].split("after `", 1)[1].removesuffix("`")
    assert grant == f"GRANT SELECT (`group`, plain) ON {shop.database}.order TO {USER}"
    shop.server.execute(grant)
    account.source.capture.refresh_schemas()
    assert account.state("order") == ("ACTIVE", "")


@pytest.mark.parametrize("table", ["child", "parent"])
def test_a_cascade_without_privileges_fails_no_statement(account: Account, table: str) -> None:
    """The trigger on the parent reads the child and logs the child's keys."""
    shop = account.shop
    shop.run(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
        "INSERT INTO parent VALUES (1), (2), (3)",
        "INSERT INTO child VALUES (1, 1), (2, 2), (3, 3)",
    )
    follower = account.capture()
    account.run("REVOKE SELECT ON {}.%s FROM {}", table)
    account.source.capture.refresh_schemas()
    assert account.state(table)[0] == "PAUSED"
    shop.run("DELETE FROM parent WHERE id = 1", "DELETE FROM child WHERE id = 2")
    account.source.capture.refresh_schemas()
    account.run("GRANT SELECT ON {}.%s TO {}", table)
    account.source.capture.refresh_schemas()
    account.source.capture.refresh_schemas()
    assert account.state("child")[0] == "RESYNC"
    shop.server.execute(f"GRANT ALL ON {shop.database}.* TO {USER}")
    account.source.close()
    account.open()
    account.source.installer.install(["*"], [])
    follower = Follower(account.source)
    for name in ("parent", "child"):
        account.source.capture.restart_fill(follower.table_id(name))
    follower.drain()
    shop.check_same(follower, "parent", "child")


def test_columns_are_read_from_a_definition() -> None:
    lines = [
        "CREATE TABLE `t` (",
        "  `a` int(11) DEFAULT NULL COMMENT 'x\\n  `no` int',",
        "  `b``c` text,",
        "  PRIMARY KEY (`a`),",
        "  KEY `b` (`b``c`)",
        ")",
    ]
    assert parse_columns("\n".join(lines)) == ["a", "b`c"]


def test_a_cascade_is_seen_with_privileges_of_single_tables(account: Account) -> None:
    """MariaDB hides the actions of a foreign key from such an account."""
    shop = account.shop
    shop.run(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
    )
    account.capture()
    assert account.state("child") == ("ACTIVE", "")
    own = f"FROM information_schema.triggers WHERE trigger_schema = '{shop.database}'"
    ((cascade,),) = shop.run(f"SELECT trigger_name {own} AND trigger_name LIKE 'venus_x_%'")
    shop.run(f"DROP TRIGGER {cascade}")
    account.source.capture.refresh_schemas()
    state, reason = account.state("child")
    assert (state, "venus_x_" in reason) == ("RESYNC", True)


def test_rules_are_read_from_a_definition() -> None:
    text = """CREATE TABLE `t` (
  CONSTRAINT `a` FOREIGN KEY (`x ON DELETE CASCADE`) REFERENCES `p` (`id`),
  CONSTRAINT `b``c` FOREIGN KEY (`x`) REFERENCES `o`.`p` (`id`) ON DELETE SET NULL ON UPDATE CASCADE,
  CONSTRAINT `d` FOREIGN KEY (`x`) REFERENCES `p` (`id`) ON DELETE CASCADE ON UPDATE NO ACTION,
  CONSTRAINT `e` FOREIGN KEY (`x`) REFERENCES `p` (`id`) ON UPDATE SET NULL
)"""
    found = {name: parse_actions(text, name) for name in ("a", "b`c", "d", "e", "f")}
    assert found == {
        "a": ("RESTRICT", "RESTRICT"),
        "b`c": ("SET NULL", "CASCADE"),
        "d": ("CASCADE", "NO ACTION"),
        "e": ("RESTRICT", "SET NULL"),
        "f": ("", ""),
    }


@pytest.mark.parametrize("hidden", ["table", "column", "column in another case"])
def test_a_privilege_that_returns_after_the_dictionary_was_read_drops_no_column(
    account: Account, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    """The dictionary shows the table in part or not at all, but the statement that tests the privilege succeeds."""
    shop = account.shop
    shop.run("CREATE TABLE item (id int PRIMARY KEY, a text, b text)", "INSERT INTO item VALUES (1, 'a', 'b')")
    follower = account.capture()
    account.run("REVOKE SELECT, INSERT, UPDATE, DELETE, TRIGGER ON {}.%s FROM {}", "item")
    if hidden != "table":
        account.run("GRANT SELECT (id, a) ON {}.%s TO {}", "item")
    granted = False
    find_missing_privileges = privileges.find_missing_privileges

    def grant_first(*arguments: Any, **more: Any) -> Any:
        nonlocal granted
        if not granted:
            granted = True
            account.run("GRANT SELECT, INSERT, UPDATE, DELETE, TRIGGER ON {}.%s TO {}", "item")
            if hidden == "column in another case":
                shop.run("ALTER TABLE item CHANGE b B text")
        return find_missing_privileges(*arguments, **more)

    monkeypatch.setattr(privileges, "find_missing_privileges", grant_first)
    account.source.capture.refresh_schemas()
    assert granted
    assert account.state("item") == ("ACTIVE", "")
    account.source.capture.refresh_schemas()
    follower.read_registry()
    shop.run("UPDATE item SET a = 'changed'")
    follower.drain()
    assert account.state("item") == ("ACTIVE", "")
    assert shop.schema(follower, "item").version == (2 if "case" in hidden else 1)
    shop.check_same(follower, "item")


def test_a_column_that_is_renamed_to_another_case_makes_a_version(account: Account) -> None:
    shop = account.shop
    shop.run("CREATE TABLE item (id int PRIMARY KEY, a text)", "INSERT INTO item VALUES (1, 'a')")
    follower = account.capture()
    shop.run("ALTER TABLE item CHANGE a A text")
    (schema,) = account.source.capture.refresh_schemas()
    assert [c.name for c in schema.columns] == ["id", "A"]
    follower.read_registry()
    follower.drain()
    shop.check_same(follower, "item")


def test_a_table_replaced_by_a_view_of_its_name_is_gone(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY, a text)")
    shop.capture()
    shop.run("RENAME TABLE item TO other", "CREATE VIEW item AS SELECT * FROM other")
    shop.source.capture.refresh_schemas()
    assert shop.state("item") == ("RESYNC", "the table is gone: dropped or renamed")
