"""A key's type changes to one that its log can hold: the application continues, and so does capture."""

from __future__ import annotations

import pytest

from tests.integration.mysql.conftest import Shop

pytestmark = pytest.mark.integration

#: Old and new type of a key, a value that is captured at once, and one that needs capture to see the change first.
WIDER = [
    ("int", "bigint", 3_000_000_000, 2**63 - 1),
    ("int", "bigint unsigned", 3_000_000_000, 2**64 - 1),
    ("int unsigned", "bigint", 5_000_000_000, -5),
    ("bigint", "decimal(30)", 2**62, 10**29),
    ("bigint unsigned", "decimal(30)", 2**64 - 1, 10**29),
    ("decimal(4)", "decimal(30)", 10**29, 10**29 + 1),
    ("varchar(3)", "varchar(30)", "'much longer'", "'longer still'"),
]


@pytest.mark.parametrize(("before", "now", "at_once", "behind"), WIDER)
def test_a_key_of_a_wider_type_is_followed(before: str, now: str, at_once: object, behind: object, shop: Shop) -> None:
    shop.run(f"CREATE TABLE item (id {before} NOT NULL PRIMARY KEY, v int) ENGINE=InnoDB")
    shop.run("INSERT INTO item VALUES (1, 1), (2, 2), (3, 3)")
    follower = shop.capture()
    shop.run("UPDATE item SET v = 10 WHERE id = 1", f"ALTER TABLE item MODIFY id {now} NOT NULL")
    shop.run(f"INSERT INTO item VALUES ({at_once}, 4)", "DELETE FROM item WHERE id = 2")
    for value in (behind, None):
        shop.source.capture.refresh_schemas()
        follower.read_registry()
        follower.drain()
        shop.check_same(follower, "item")
        assert shop.state("item") == ("ACTIVE", "")
        assert all(step.exists for step in shop.source.installer.install(["*"], []))
        if value is not None:
            shop.run(f"INSERT INTO item VALUES ({value}, 5)", f"DELETE FROM item WHERE id = {at_once}")


def test_a_log_that_is_in_use_leaves_the_table_to_be_read_again(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int NOT NULL PRIMARY KEY, v int) ENGINE=InnoDB", "INSERT INTO item VALUES (1, 1)")
    shop.capture()
    shop.run("ALTER TABLE item MODIFY id bigint unsigned NOT NULL")
    writer = shop.server.connect(shop.database, autocommit=False)
    try:
        writer.cursor().execute("UPDATE item SET v = 2")
        shop.source.capture.refresh_schemas()
        state, reason = shop.state("item")
    finally:
        writer.close()
    assert state == "RESYNC"
    assert "venus_l_00002 missing or altered: run `venus install-triggers`" in reason
