"""Indexes, checks and foreign keys change at the source: a later target gets them, status lists the differences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.brokers.feed import query
from tests.support.databases.postgres import Server
from tests.support.pipelines.end_to_end import EndToEnd, difference_keys
from venus.adapters.targets.relational.control import pause, read_progress, read_table_states, request_resync, resume
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.verify.findings import ComparisonVerdict
from venus.cli.probes import read_overview
from venus.cli.status import format_different_objects
from venus.config import Settings, TargetSettings

pytestmark = pytest.mark.integration

STEPS = (EndToEnd.install, EndToEnd.load, EndToEnd.start)
TABLES = """
CREATE DOMAIN code AS text CONSTRAINT not_empty CHECK (VALUE <> '');
CREATE TABLE maker (id int PRIMARY KEY, name text);
CREATE TABLE item (
    id int PRIMARY KEY, maker int CONSTRAINT item_maker REFERENCES maker, name text CONSTRAINT item_name UNIQUE,
    code code,
    price int CONSTRAINT item_price CHECK (price > 0), amount int CONSTRAINT item_amount CHECK (amount < 100));
CREATE INDEX item_by_price ON item (price);
CREATE INDEX item_by_amount ON item (amount);
INSERT INTO maker VALUES (1, 'a'); INSERT INTO item VALUES (1, 1, 'x', 'c', 5, 5);
"""
CHANGES = (
    "ALTER TABLE item DROP CONSTRAINT item_price, DROP CONSTRAINT item_name, DROP CONSTRAINT item_maker",
    "DROP INDEX item_by_price",
    "ALTER TABLE item DROP CONSTRAINT item_amount, ADD CONSTRAINT item_amount CHECK (amount < 1000)",
    "DROP INDEX item_by_amount",
    "CREATE INDEX item_by_amount ON item (amount DESC) WHERE name <> 'a USING b (c)'",
    "ALTER TABLE item ADD CONSTRAINT item_code UNIQUE (code), ADD CONSTRAINT named CHECK (name <> '')",
    "ALTER TABLE item ADD CONSTRAINT item_of FOREIGN KEY (maker) REFERENCES maker ON DELETE CASCADE",
    "ALTER TABLE item ALTER name SET NOT NULL",
    "ALTER DOMAIN code DROP CONSTRAINT not_empty",
)
BESIDES = (
    "SELECT conname, contype::text, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE contype IN ('c', 'u', 'f') AND (conrelid = 'item'::regclass OR contypid = 'code'::regtype) ORDER BY 1",
    "SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'item'::regclass"
    " ORDER BY 1",
)


@pytest.fixture
def later(e2e: EndToEnd, postgres_server: Server) -> Iterator[Settings]:
    """Return the settings of another target that is not loaded yet."""
    url = postgres_server.create_database()
    yield e2e.settings.model_copy(update={"targets": {"later": TargetSettings.model_validate({"url": url})}})
    postgres_server.drop_database(url)


def read_secondary_objects(url: str) -> list[list[tuple[Any, ...]]]:
    return [query(url, text) for text in BESIDES]


def expected_objects(e2e: EndToEnd) -> list[list[tuple[Any, ...]]]:
    """Return the source's constraints and indexes, with foreign keys as a target has them while VENUS applies."""
    constraints, indexes = read_secondary_objects(e2e.source)
    here = [
        (name, kind, f"{text.removesuffix(' ON DELETE CASCADE')} DEFERRABLE" if kind == "f" else text)
        for name, kind, text in constraints
    ]
    return [here, indexes]


def find_differences(e2e: EndToEnd) -> tuple[str, ...]:
    return read_progress(e2e.settings, "main").differing.get("public.item", ())


def until_version(e2e: EndToEnd, version: int) -> None:
    def has_version() -> bool:
        return [t.schema_version for t in read_table_states(e2e.settings, "main") if t.name == "item"] == [version]

    e2e.until(has_version, f"version {version} to arrive")


def test_a_target_that_is_loaded_later_gets_the_current_objects(e2e: EndToEnd, later: Settings) -> None:
    for change in CHANGES:
        query(e2e.source, change)
    query(e2e.source, "INSERT INTO item VALUES (2, NULL, 'x', '', -5, 500)")  # the dropped check would refuse it
    e2e.until(lambda: any("domain" in line for line in find_differences(e2e)), "the last version to arrive")
    e2e.stop("apply")  # the row halts the table at the first target
    report = full_sync(later, "later")
    url = later.targets["later"].url.get_secret_value()
    assert report.warnings == ()
    assert read_secondary_objects(url) == expected_objects(e2e)
    assert read_progress(later, "later").differing == {}


def test_status_lists_the_differences_until_the_statements_were_executed(e2e: EndToEnd) -> None:
    assert find_differences(e2e) == ()
    for change in CHANGES:
        query(e2e.source, change)
    e2e.until(lambda: any("domain" in line for line in find_differences(e2e)), "status to say it")
    lines = find_differences(e2e)
    item = 'ALTER TABLE "public"."item"'
    assert f'check item_price was dropped at the source: {item} DROP CONSTRAINT "item_price"' in lines
    assert f'unique constraint item_name was dropped at the source: {item} DROP CONSTRAINT "item_name"' in lines
    assert f'foreign key item_maker was dropped at the source: {item} DROP CONSTRAINT "item_maker"' in lines
    assert 'index item_by_price was dropped at the source: DROP INDEX "public"."item_by_price"' in lines
    assert (
        f'unique constraint item_code was added at the source: {item} ADD CONSTRAINT "item_code" UNIQUE ("code")'
        in lines
    )
    kinds = sorted(line.split(" was ")[0] for line in lines if " was " in line)
    assert kinds == [
        "NOT NULL of column name",
        "check item_amount",
        "check item_price",
        "check named",
        "foreign key item_maker",
        "foreign key item_of",
        "index item_by_amount",
        "index item_by_price",
        "unique constraint item_code",
        "unique constraint item_name",
    ]
    assert [line for line in lines if " was " not in line] == [
        "type public.code is domain over text CHECK ((VALUE <> ''::text)) here, domain over text at the source"
        ': ALTER DOMAIN "public"."code" DROP CONSTRAINT "not_empty"'
    ]
    shown = read_overview(e2e.settings)
    assert [f"target main: public.item: {line}" for line in lines] == format_different_objects(shown)
    assert shown.is_healthy
    for line in lines:
        if " at the source: " in line:
            query(e2e.target, line.partition(" at the source: ")[2])
    assert find_differences(e2e) == ()
    assert read_secondary_objects(e2e.target) == expected_objects(e2e)
    query(e2e.source, "INSERT INTO item VALUES (2, NULL, 'x', '', -5, 500)")
    e2e.wait_until_caught_up()
    assert difference_keys(e2e.verify()) == set()


def test_a_row_refused_by_an_old_domain_arrives_after_the_statement_in_the_status(e2e: EndToEnd) -> None:
    e2e.wait_until_caught_up()
    query(e2e.source, "ALTER DOMAIN code DROP CONSTRAINT not_empty")
    query(e2e.source, "ALTER DOMAIN code ADD CONSTRAINT short CHECK (length(VALUE) < 9)")
    query(e2e.source, "ALTER DOMAIN code SET NOT NULL")
    query(e2e.source, "INSERT INTO item VALUES (2, 1, 'y', '', 5, 5)")
    e2e.until(
        lambda: [t.state for t in read_table_states(e2e.settings, "main") if t.name == "item"] == ["HALTED"], "halt"
    )
    e2e.until(lambda: any("SET NOT NULL" in line for line in find_differences(e2e)), "the last version to arrive")
    (line,) = find_differences(e2e)
    query(e2e.target, line.partition(" at the source: ")[2])
    assert find_differences(e2e) == ()
    request_resync(e2e.settings, "main", "public.item")
    e2e.until(
        lambda: {t.state for t in read_table_states(e2e.settings, "main")} == {"ACTIVE"}, "the table to come back"
    )
    e2e.wait_until_caught_up()
    assert difference_keys(e2e.verify()) == set()
    assert read_secondary_objects(e2e.target) == expected_objects(e2e)


def test_a_table_that_was_held_continues_with_the_newest_version(e2e: EndToEnd) -> None:
    e2e.wait_until_caught_up()
    pause(e2e.settings, "main", ["public.item"])
    query(e2e.source, "CREATE INDEX item_named ON item (name)")
    versions = (
        "SELECT max(version) FROM venus.target_schema JOIN venus.target_table USING (group_name, table_id)"
        " WHERE name = 'item'"
    )
    e2e.until(lambda: query(e2e.target, versions) == [(2,)], "the version to arrive")
    resume(e2e.settings, "main", ["public.item"])
    until_version(e2e, 2)
    e2e.until(lambda: e2e.verify().verdict is ComparisonVerdict.SAME, "the table to be compared, and the same")
