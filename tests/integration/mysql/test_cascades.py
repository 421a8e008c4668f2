"""Foreign keys change rows without firing triggers; these changes are captured, or the schema is refused by name."""

from __future__ import annotations

import threading

import pytest

from tests.integration.mysql.conftest import Shop
from venus.errors import Refused

#: author <- book <- chapter <- note, with every action; the key of a chapter contains the book's.
TABLES = (
    "CREATE TABLE author (id int PRIMARY KEY, code varchar(9) NOT NULL UNIQUE)",
    "CREATE TABLE book (id int PRIMARY KEY, author_id int, code varchar(9),"
    " CONSTRAINT by_author FOREIGN KEY (author_id) REFERENCES author (id) ON DELETE CASCADE ON UPDATE CASCADE,"
    " CONSTRAINT by_code FOREIGN KEY (code) REFERENCES author (code) ON DELETE SET NULL ON UPDATE CASCADE)",
    "CREATE TABLE chapter (book_id int, no int, PRIMARY KEY (book_id, no),"
    " CONSTRAINT of_book FOREIGN KEY (book_id) REFERENCES book (id) ON DELETE CASCADE ON UPDATE CASCADE)",
    "CREATE TABLE note (id int PRIMARY KEY, book_id int, no int,"
    " CONSTRAINT of_chapter FOREIGN KEY (book_id, no) REFERENCES chapter (book_id, no)"
    " ON DELETE SET NULL ON UPDATE CASCADE)",
    "INSERT INTO author VALUES (1, 'a'), (2, 'b')",
    "INSERT INTO book VALUES (10, 1, 'b'), (11, 1, 'a'), (20, 2, 'b')",
    "INSERT INTO chapter VALUES (10, 1), (10, 2), (11, 1), (20, 1)",
    "INSERT INTO note VALUES (100, 10, 1), (101, 11, 1), (102, 20, 1)",
)
ALL = ("author", "book", "chapter", "note")


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM author WHERE id = 1",  # deletes books and chapters, notes lose their chapter, three tables down
        "DELETE FROM author",
        "DELETE FROM book WHERE id = 10",
        "DELETE FROM chapter WHERE book_id = 10",
        "UPDATE author SET id = 5 WHERE id = 1",
        "UPDATE author SET code = 'z' WHERE id = 2",
        "UPDATE author SET id = 6, code = 'y' WHERE id = 2",
        "UPDATE book SET id = 12 WHERE id = 10",  # the keys of its chapters change
        "UPDATE chapter SET no = 7 WHERE book_id = 10 AND no = 1",
        "REPLACE INTO author VALUES (1, 'c')",  # deletes the row and its books, and inserts another one
        "UPDATE author SET code = 'A' WHERE id = 1",  # equal under the collation, but another value
    ],
)
def test_the_changes_of_a_cascade_are_captured(shop: Shop, statement: str) -> None:
    shop.run(*TABLES)
    follower = shop.capture()
    shop.run(statement)
    follower.drain()
    shop.check_same(follower, *ALL)


def test_a_cascade_through_tables_that_are_not_captured(shop: Shop) -> None:
    shop.run(*TABLES)
    follower = shop.capture("chapter")
    shop.run("DELETE FROM author WHERE id = 1")
    follower.drain()
    assert set(follower.rows("chapter")) == {("20", "1")}


def test_a_child_that_the_deleting_transaction_cannot_see_is_captured(shop: Shop) -> None:
    """The cascade finds the newest rows, its transaction those of a snapshot: the trigger must read as InnoDB does."""
    shop.run(*TABLES)
    follower = shop.capture()
    deleting = shop.server.connect(shop.database)
    try:
        cursor = deleting.cursor()
        cursor.execute("SELECT count(*) FROM author")  # the transaction sees no newer rows from here on
        shop.run("INSERT INTO book VALUES (30, 1, NULL)")
        follower.drain()  # takes what the insertion logged
        assert ("30",) in follower.rows("book")
        cursor.execute("DELETE FROM author WHERE id = 1")
        deleting.commit()
    finally:
        deleting.close()
    follower.drain()
    shop.check_same(follower, *ALL)


def test_two_cascades_at_once_do_not_fail_each_other(shop: Shop) -> None:
    """A lock on a log table's counter until the end of the statement would be part of a deadlock (error 1467)."""
    shop.run(
        "CREATE TABLE up (id int PRIMARY KEY)",
        "CREATE TABLE down (id int PRIMARY KEY, up_id int, FOREIGN KEY (up_id) REFERENCES up (id) ON DELETE CASCADE)",
        "CREATE TABLE deep (id int PRIMARY KEY, down_id int, v int,"
        " FOREIGN KEY (down_id) REFERENCES down (id) ON DELETE CASCADE)",
        "INSERT INTO up VALUES (1), (2)",
        "INSERT INTO down VALUES (1, 1), (2, 2)",
        "INSERT INTO deep VALUES (1, 1, 0), (2, 2, 0)",
    )
    follower = shop.capture()
    one, two = shop.server.connect(shop.database), shop.server.connect(shop.database)
    try:
        two.cursor().execute("UPDATE deep SET v = 1 WHERE id = 1")
        thread = threading.Thread(target=one.cursor().execute, args=("DELETE FROM up WHERE id = 1",))
        thread.start()
        shop.wait_for("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'")
        two.cursor().execute("DELETE FROM up WHERE id = 2")
        two.commit()
        thread.join(60)
        one.commit()
    finally:
        one.close()
        two.close()
    follower.drain()
    assert follower.rows("up") == follower.rows("down") == follower.rows("deep") == {}


def test_a_statement_may_use_the_child_that_its_cascade_changes(shop: Shop) -> None:
    shop.run(*TABLES)
    follower = shop.capture()
    shop.run("DELETE FROM author WHERE id IN (SELECT author_id FROM book WHERE id = 10)")
    follower.drain()
    shop.check_same(follower, *ALL)


@pytest.mark.parametrize(
    ("tables", "name"),
    [
        (
            [
                "CREATE TABLE tree (id int PRIMARY KEY, up int, CONSTRAINT parent FOREIGN KEY (up) REFERENCES tree (id)"
                " ON DELETE CASCADE)"
            ],
            "parent",
        ),
        (
            [
                "CREATE TABLE a (id int PRIMARY KEY, b int)",
                "CREATE TABLE b (id int PRIMARY KEY, a int, CONSTRAINT to_a FOREIGN KEY (a) REFERENCES a (id)"
                " ON DELETE CASCADE)",
                "ALTER TABLE a ADD CONSTRAINT to_b FOREIGN KEY (b) REFERENCES b (id) ON DELETE CASCADE",
            ],
            "to_",
        ),
    ],
)
def test_a_cascade_in_a_circle_is_refused_by_name(shop: Shop, tables: list[str], name: str) -> None:
    shop.run(*tables)
    with pytest.raises(Refused, match=f"foreign key {name}") as refused:
        shop.source.installer.install(["*"], [])
    assert "RESTRICT" in refused.value.hint


def test_a_tree_whose_links_are_set_to_null_is_captured(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE tree (id int PRIMARY KEY, up int, FOREIGN KEY (up) REFERENCES tree (id) ON DELETE SET NULL)",
        "INSERT INTO tree VALUES (1, NULL), (2, 1), (3, 1), (4, 2)",
    )
    follower = shop.capture()
    shop.run("DELETE FROM tree WHERE id = 1")
    follower.drain()
    shop.check_same(follower, "tree")


def test_a_cascade_that_is_added_later_is_reported_and_repaired(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE up (id int PRIMARY KEY)",
        "CREATE TABLE down (id int PRIMARY KEY, up_id int)",
        "INSERT INTO up VALUES (1), (2)",
        "INSERT INTO down VALUES (1, 1), (2, 2)",
    )
    follower = shop.capture()
    shop.run("ALTER TABLE down ADD FOREIGN KEY (up_id) REFERENCES up (id) ON DELETE CASCADE")
    shop.source.capture.refresh_schemas()
    state, reason = shop.state("down")
    assert state == "RESYNC"
    assert "venus_x_" in reason
    shop.source.installer.install(["*"], [])
    shop.source.capture.restart_fill(follower.table_id("down"))
    assert shop.state("down") == ("ACTIVE", "")
    shop.run("DELETE FROM up WHERE id = 1")
    follower.read_registry()
    follower.drain()
    shop.check_same(follower, "up", "down")


def test_a_child_leaves_capture_and_its_parent_continues(shop: Shop) -> None:
    shop.run(*TABLES)
    follower = shop.capture()
    number = follower.table_id("book")
    shop.source.installer.release([number])
    shop.source.installer.drop_logs({number: "gone"})
    assert not [r for r in shop.run("SHOW TRIGGERS") if f"_{number:05}" in str(r[0])]
    shop.run("DELETE FROM author WHERE id = 1")
    shop.source.capture.refresh_schemas()
    follower.drain()
    shop.check_same(follower, "author", "chapter", "note")
    assert len(follower.rows("book")) == 3

    shop.source.installer.install(["*"], [])
    shop.run("UPDATE author SET id = 7 WHERE id = 2")
    for _ in range(2):
        shop.source.capture.refresh_schemas()
        follower.drain()
    shop.check_same(follower, *ALL)


def test_a_parent_leaves_capture_and_its_children_continue(shop: Shop) -> None:
    shop.run(*TABLES)
    follower = shop.capture()
    number = follower.table_id("author")
    shop.source.installer.release([number])
    shop.source.installer.drop_logs({number: "gone"})
    shop.run("DELETE FROM author WHERE id = 1")
    shop.source.capture.refresh_schemas()
    follower.drain()
    shop.check_same(follower, "book", "chapter", "note")
    assert shop.state("book") == ("ACTIVE", "")
