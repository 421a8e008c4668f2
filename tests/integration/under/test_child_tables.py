"""Tables of a PostgreSQL source with child tables: each has its own rows at the target, and the status shows it."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.support.brokers.feed import query
from tests.support.pipelines.end_to_end import EndToEnd, difference_keys
from venus.adapters.cutover.run import CutoverRequest, run_cutover
from venus.adapters.dialects.registry import open_source
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.relational.control import read_table_states, request_resync
from venus.cli.load import build_ddl

pytestmark = pytest.mark.integration

STEPS = (EndToEnd.install, EndToEnd.load)
TABLES = """
CREATE TABLE parent (id int PRIMARY KEY, v text);
CREATE TABLE other (id int PRIMARY KEY, w text);
CREATE TABLE child (extra int, PRIMARY KEY (id)) INHERITS (parent);
CREATE TABLE both_of (PRIMARY KEY (id)) INHERITS (parent, other);
INSERT INTO parent SELECT i, 'p' FROM generate_series(1, 40) i;
INSERT INTO other VALUES (1, 'o');
INSERT INTO child SELECT i, 'c', i FROM generate_series(21, 60) i;
INSERT INTO both_of VALUES (1, 'b', 'b');
"""
LINKS = (
    "ALTER TABLE child INHERIT parent",
    "ALTER TABLE both_of INHERIT parent",
    "ALTER TABLE both_of INHERIT other",
)


def find_obstacles(e2e: EndToEnd) -> list[str]:
    """Return the child tables that forbid a cut-over."""
    e2e.wait_until_caught_up()
    rehearsal = run_cutover(e2e.settings, "main", CutoverRequest(rehearse=True, quiet_s=0.1))
    return sorted(block.what for block in rehearsal.blocks if "inherit" in block.what or "child table" in block.what)


def query_tables(url: str) -> list[list[tuple[object, ...]]]:
    """Return the results of queries on each table, with and without its child tables."""
    tables = ("parent", "ONLY parent", "other", "ONLY other", "child", "both_of")
    return [query(url, f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables]


def test_each_child_table_is_named_early_and_forbids_the_cutover_until_it_inherits(e2e: EndToEnd) -> None:
    with closing(open_source(e2e.settings)) as source:
        findings = [f for f in source.installer.check(("*",), ()) if "child table" in f.message]
    assert [(f.where, f.message) for f in findings] == [
        ("public.other", "has the child table public.both_of, which is not carried"),
        ("public.parent", "has the child table public.both_of, which is not carried"),
        ("public.parent", "has the child table public.child, which is not carried"),
    ]
    assert "ALTER TABLE public.child INHERIT public.parent" in findings[2].remedy
    head = build_ddl(e2e.settings, open_target(e2e.settings, "main")).text.partition("-- Schemas")[0]
    assert "public.parent: heir public.child INHERITS (public.parent): a query of public.parent does not see" in head
    e2e.start()
    assert find_obstacles(e2e) == [
        "public.both_of does not inherit from public.other, as it does at the source",
        "public.both_of does not inherit from public.parent, as it does at the source",
        "public.child does not inherit from public.parent, as it does at the source",
    ]
    e2e.at_target(*LINKS)
    assert find_obstacles(e2e) == []
    assert query_tables(e2e.source) == query_tables(e2e.target)


@pytest.mark.parametrize("empty_by", ["delete", "truncate"])
@pytest.mark.parametrize("keyed_rows_max", [0, 5000])
def test_no_statement_about_a_table_affects_the_rows_of_its_child_tables(
    e2e: EndToEnd, keyed_rows_max: int, empty_by: str
) -> None:
    apply = e2e.settings.apply.model_copy(update={"keyed_rows_max": keyed_rows_max})
    target = e2e.settings.targets["main"].model_copy(update={"empty_by": empty_by})
    e2e.settings = e2e.settings.model_copy(update={"apply": apply, "targets": {"main": target}})
    e2e.at_target(*LINKS)
    e2e.start()
    query(e2e.source, "DELETE FROM ONLY parent WHERE id BETWEEN 20 AND 30; UPDATE parent SET v = 'all' WHERE id < 50")
    query(e2e.source, "UPDATE ONLY parent SET id = id + 100 WHERE id < 5")
    e2e.wait_until_caught_up()
    assert query_tables(e2e.source) == query_tables(e2e.target)
    request_resync(e2e.settings, "main", "public.parent")
    e2e.until(lambda: query(e2e.target, "SELECT count(*) FROM venus.sweep") == [(0,)], "the resync")
    assert query_tables(e2e.source) == query_tables(e2e.target)
    query(e2e.source, "TRUNCATE ONLY parent")
    e2e.wait_until_caught_up()
    assert query_tables(e2e.source) == query_tables(e2e.target)
    assert difference_keys(e2e.verify()) == set()


def test_a_new_column_of_a_table_and_its_child_tables_halts_none_of_them(e2e: EndToEnd) -> None:
    e2e.at_target(*LINKS)
    e2e.start()
    query(e2e.source, "ALTER TABLE parent ADD more int DEFAULT 7; UPDATE parent SET v = 'new' WHERE id = 1")
    has_column = (
        "SELECT 1 FROM pg_attribute WHERE attname = 'more' AND attnum > 0 AND"
        " attrelid IN ('parent'::regclass, 'child'::regclass)"
    )
    e2e.until(lambda: len(query(e2e.target, has_column)) == 2, "the column")
    e2e.wait_until_caught_up()
    assert {t.state for t in read_table_states(e2e.settings, "main")} == {"ACTIVE"}
    e2e.at_target(*LINKS[:2])
    e2e.wait_until_caught_up()
    e2e.until(lambda: query_tables(e2e.source)[0] == query_tables(e2e.target)[0], "the rows")


def test_a_child_table_that_joins_or_leaves_is_reported_and_separated(e2e: EndToEnd) -> None:
    e2e.at_target(*LINKS)
    e2e.start()
    query(e2e.source, "ALTER TABLE child NO INHERIT parent")
    e2e.until(
        lambda: len(query(e2e.target, "SELECT 1 FROM pg_inherits WHERE inhparent = 'parent'::regclass")) == 0,
        "the heirs to be parted",
    )
    (state,) = [t for t in read_table_states(e2e.settings, "main") if t.name == "parent"]
    assert "public.child has left at the source: no table inherits from it here any more" in state.reason
    assert find_obstacles(e2e) == ["public.both_of does not inherit from public.parent, as it does at the source"]
    query(e2e.source, "CREATE TABLE late (PRIMARY KEY (id)) INHERITS (parent)")
    e2e.until(lambda: "public.late" in str(find_obstacles(e2e)), "the new heir")
    assert "public.parent has the child table public.late at the source, which is not captured" in find_obstacles(e2e)
