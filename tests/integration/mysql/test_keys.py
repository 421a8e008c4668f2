"""Keys that are equal under a collation are different keys; keys of every type are found again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.integration.mysql.conftest import Shop

VALUES = ["a", "A", "á", "a ", "A  ", "b"]


@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_bin", "latin1_swedish_ci"])
def test_a_key_that_only_changes_its_case_leaves_no_old_row(shop: Shop, collation: str) -> None:
    shop.run(
        f"CREATE TABLE word (k varchar(9) COLLATE {collation} PRIMARY KEY, v int)", "INSERT INTO word VALUES ('a', 1)"
    )
    follower = shop.capture()
    for before, after in pairwise(VALUES):
        shop.run(f"UPDATE word SET k = '{after}' WHERE k = '{before}'")
        follower.drain()
        assert set(follower.rows("word")) == {(after,)}
    shop.run("UPDATE word SET k = 'A' WHERE k = 'b'", "UPDATE word SET k = 'a' WHERE k = 'A'")
    follower.drain()
    assert set(follower.rows("word")) == {("a",)}
    shop.run("DELETE FROM word", "INSERT INTO word VALUES ('A', 2)")
    follower.drain()
    assert set(follower.rows("word")) == {("A",)}


def test_deletions_come_before_rows_with_an_equal_key(shop: Shop) -> None:
    """At a target with such a collation the new row would be deleted otherwise."""
    shop.run("CREATE TABLE word (k varchar(9) PRIMARY KEY)", "INSERT INTO word VALUES ('a'), ('x')")
    follower = shop.capture()
    shop.run("UPDATE word SET k = 'A' WHERE k = 'a'", "UPDATE word SET k = 'X' WHERE k = 'x'")
    (seen,) = follower.drain(rows_max=1)
    assert [bool(d) for s in seen.sections for d in s.is_deleted] == [True, True, False, False]


KEYS = {
    "tinyint unsigned": ("0", "255"),
    "bigint unsigned": ("9223372036854775807", "9223372036854775808", "18446744073709551615"),
    "int(5) zerofill": ("7", "77"),
    "decimal(30,10)": ("-1.5", "1.5000000001", "12345678901234567890.0000000001"),
    "char(5)": ("'a'", "'b c'", r"'\\'", "'ö'"),
    "varchar(20) character set latin1": ("'é'", "'€'", "'per%cent'"),
    "varchar(36) character set ascii": ("'a?'", "'b'", "'?'"),
    "char(9) character set gbk": ("'生'", "'活'"),
    "varbinary(9)": ("x'00'", "x'0000'", "x'27ff'"),
    "binary(2)": ("x'0000'", "x'0001'"),
    "date": ("'2026-01-01'", "'9999-12-31'"),
    "datetime(3)": ("'2026-01-01 00:00:00.001'", "'2026-01-01 00:00:00.002'"),
    "timestamp(6)": ("'2026-01-01 00:00:00.000001'", "'2026-07-01 12:00:00'"),
    "time": ("'-838:59:59'", "'00:00:00'", "'99:00:00'"),
    "year": ("1999", "2026"),
    "bit(12)": ("b'1'", "b'100000000000'"),
    "enum('z', 'y', 'x')": ("'z'", "'y'", "'x'"),
    "set('p', 'q')": ("''", "'p'", "'p,q'"),
    "uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "'00000000-0000-0000-0000-000000000001'"),
    "inet6": ("'::1'", "'fe80::1'"),
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_of_any_type_is_filled_found_changed_and_removed(shop: Shop, kind: str) -> None:
    shop.run(f"CREATE TABLE keyed (n int, k {kind} NOT NULL, v int, PRIMARY KEY (k, n))")
    for value in KEYS[kind]:
        shop.run(f"INSERT INTO keyed VALUES (1, {value}, 0), (2, {value}, 0)")
    follower = shop.capture()
    shop.source.capture.restart_fill(follower.table_id("keyed"))
    follower.tables[follower.table_id("keyed")].clear()
    follower.drain(fill_rows=1)
    assert len(follower.rows("keyed")) == 2 * len(KEYS[kind])
    shop.run("UPDATE keyed SET v = 1 WHERE n = 1", "DELETE FROM keyed WHERE n = 2")
    follower.drain()
    assert [r["v"] for r in follower.rows("keyed").values()] == ["1"] * len(KEYS[kind])
    shop.run(f"DELETE FROM keyed WHERE k <> {KEYS[kind][0]}", f"UPDATE keyed SET k = {KEYS[kind][-1]}")
    follower.drain()
    assert len(follower.rows("keyed")) == 1


def test_a_key_that_grows_wider_does_not_fail_the_application(shop: Shop) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY, v int)", "INSERT INTO item VALUES (1, 1)")
    follower = shop.capture()
    shop.run("ALTER TABLE item MODIFY id bigint", "INSERT INTO item VALUES (3000000000, 1)")
    follower.drain()
    assert set(follower.rows("item")) == {("1",), ("3000000000",)}


def test_rows_that_leave_a_versioned_table_are_deleted(shop: Shop) -> None:
    """The end of a row's validity is part of every key there, and a trigger sees another end than the row had."""
    shop.run(
        "CREATE TABLE item (id int PRIMARY KEY, v int, since timestamp(6) GENERATED ALWAYS AS ROW START,"
        " till timestamp(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (since, till)) WITH SYSTEM VERSIONING",
        "INSERT INTO item (id, v) VALUES (1, 1), (2, 2)",
    )
    follower = shop.capture()
    assert shop.schema(follower, "item").key == ("id",)
    shop.run("UPDATE item SET v = 3 WHERE id = 1", "DELETE FROM item WHERE id = 2")
    follower.drain()
    assert {k: r["v"] for k, r in follower.rows("item").items()} == {("1",): "3"}
