"""Constraints that older rows of the source violate (NOT VALID) are NOT VALID at the target too."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import psycopg2
import pytest

from tests.integration.cutover.test_sources import WISH
from tests.support.brokers.feed import query
from tests.support.pipelines.end_to_end import EndToEnd, difference_keys
from venus.adapters.cutover.run import run_cutover, undo_target_cutover
from venus.adapters.dialects.registry import open_source
from venus.adapters.targets.relational.control import read_progress, read_table_states, request_resync

pytestmark = pytest.mark.integration

STEPS = (EndToEnd.install, EndToEnd.load, EndToEnd.start, EndToEnd.wait_until_caught_up)
TABLES = """
CREATE DOMAIN code AS text CONSTRAINT short CHECK (length(VALUE) < 9);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE t (id int PRIMARY KEY, v int, parent int, code code);
INSERT INTO parent VALUES (1);
INSERT INTO t VALUES (1, -1, 99, 'UPPER'), (2, 5, 1, 'lower');
ALTER TABLE t ADD CONSTRAINT positive CHECK (v > 0) NOT VALID, ADD CONSTRAINT small CHECK (v < 100);
ALTER TABLE t ADD CONSTRAINT of FOREIGN KEY (parent) REFERENCES parent NOT VALID;
ALTER DOMAIN code ADD CONSTRAINT folded CHECK (VALUE = lower(VALUE)) NOT VALID;
"""
VALID = (
    "SELECT conname::text, convalidated FROM pg_constraint"
    " WHERE conrelid = 't'::regclass AND contype IN ('c', 'f') ORDER BY 1"
)
AS_AT_SOURCE = [("of", False), ("positive", False), ("small", True)]


def is_settled(e2e: EndToEnd) -> bool:
    return not read_progress(e2e.settings, "main").resyncing and all(
        t.state == "ACTIVE" for t in read_table_states(e2e.settings, "main")
    )


def read_again(e2e: EndToEnd) -> None:
    with closing(open_source(e2e.settings)) as source:
        (table,) = [t for t in source.registry.read_registered_tables() if t.schema.name == "t"]
        source.capture.restart_fill(table.schema.table_id)
        e2e.until(lambda: all(t.fill.done for t in source.registry.read_registered_tables()), "the source to be read")


def test_a_target_has_the_constraints_as_not_valid(e2e: EndToEnd) -> None:
    assert query(e2e.source, VALID) == AS_AT_SOURCE
    assert query(e2e.target, VALID) == AS_AT_SOURCE
    with pytest.raises(psycopg2.errors.CheckViolation):
        query(e2e.target, "INSERT INTO t VALUES (3, -9)")


def test_rows_that_violate_the_constraints_may_arrive_again(e2e: EndToEnd) -> None:
    read_again(e2e)
    query(e2e.source, "INSERT INTO t VALUES (3, 7, 1, 'c')")
    e2e.wait_until_caught_up()
    e2e.until(partial(is_settled, e2e), "the table to be read again")
    assert difference_keys(e2e.verify()) == set()

    query(e2e.target, "DELETE FROM t WHERE id = 1")
    request_resync(e2e.settings, "main", "public.t")
    e2e.until(partial(is_settled, e2e), "the resync to end")
    assert difference_keys(e2e.verify()) == set()
    assert query(e2e.target, VALID) == AS_AT_SOURCE


def test_such_constraints_do_not_forbid_the_cutover_and_are_enforced_after_it(e2e: EndToEnd) -> None:
    found_ = run_cutover(e2e.settings, "main", WISH).certificate
    assert [(k["name"], k["orphans"], k["not_valid"]) for k in found_["foreign_keys"]] == [("of", 1, True)]
    assert found_["warnings"] == ["check positive of t is NOT VALID: older rows may violate it"]
    assert query(e2e.target, VALID) == AS_AT_SOURCE
    for values, why in (
        ("(3, -9)", psycopg2.errors.CheckViolation),
        ("(3, 9, 98)", psycopg2.errors.ForeignKeyViolation),
        ("(3, 9, 1, 'UPPER')", psycopg2.errors.CheckViolation),
    ):
        with pytest.raises(why):
            query(e2e.target, f"INSERT INTO t VALUES {values}")

    undo_target_cutover(e2e.settings, "main")
    read_again(e2e)
    e2e.wait_until_caught_up()
    e2e.until(partial(is_settled, e2e), "the table to be read again")
    assert difference_keys(e2e.verify()) == set()
