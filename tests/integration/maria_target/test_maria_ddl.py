"""DDL at a MariaDB target ends its transaction: the process and the server are killed between any two steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from tests.conformance.targets.places import MariaTargetPlace
from tests.conformance.targets.playing import Stage
from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import INT, TEXT, Feed, column, items, make_referring_schema, put, table, unique_label
from tests.support.databases.mariadb import MariaServer, running_mariadb
from tests.support.processes.forks import ForkedModule
from tests.support.waiting import eventually
from venus.adapters.targets.relational.database import open_database
from venus.adapters.targets.relational.states import TableState
from venus.model import Kind, LogicalType, TableSchema

pytestmark = [pytest.mark.integration, pytest.mark.fault]

MOMENTS = ("before", "after")
#: More than the number of steps: a run with this number is not killed.
NEVER = 99


def place_of(stage: Stage) -> MariaTargetPlace:
    assert isinstance(stage.place, MariaTargetPlace)
    return stage.place


def states(stage: Stage) -> dict[str, TableState]:
    target = open_database(stage.settings, stage.target.name)
    with closing(target.connect("test")) as session:
        return {t.source_name: t for t in target.read_tables(session)}


def intents(stage: Stage) -> list[tuple[object, ...]]:
    return place_of(stage).server.execute("SELECT * FROM venus_intent", place_of(stage).database)


def next_version(schema: TableSchema, version: int) -> TableSchema:
    """Return a version with two more columns, one of which has a default."""
    more = (
        column(2 * version + 10, f"a{version}", TEXT),
        column(2 * version + 11, f"b{version}", INT, default_sql="7"),
    )
    return replace(schema, version=version, columns=(*schema.columns, *more))


def test_ddl_continues_after_a_kill_between_any_two_steps(stage: Stage, broker: FakeDelivery) -> None:
    feed, schema, killed = stage.feed, items(), 0
    feed.describe(schema)
    feed.cut(put(1, "a", 1), put(2, "b", 2))
    stage.target.load()
    with ForkedModule("tests.support.faults.killed_session", broker.address, "m", place_of(stage).url) as victim:
        for version, (step, moment) in enumerate(((s, m) for s in range(1, 6) for m in MOMENTS), 2):
            schema, late = next_version(schema, version), unique_label(items(version + 10, f"late{version}"))
            feed.describe(schema, late)
            feed.model[1] = {key: (*row, None, "7") for key, row in feed.model[1].items()}
            width = len(schema.columns) - 1
            feed.cut(
                put(version, *("x" if n % 2 == 0 else n for n in range(width))), put(1, "n", 1, table=version + 10)
            )
            killed += victim.run("ddl-apply", step, moment, broker.next_offset)
            assert not victim.run("ddl-apply", NEVER, moment, broker.next_offset)

    assert killed >= 8
    stage.compare_tables()
    assert {t.state for t in states(stage).values()} == {"ACTIVE"}
    assert all(t.created for t in states(stage).values()), "VENUS knows its own tables, and gives them their indexes"
    assert intents(stage) == []
    assert stage.target.read_view().unaccounted_rows == 0


def test_a_load_continues_after_a_kill_between_two_steps_of_ddl(stage: Stage, broker: FakeDelivery) -> None:
    feed = stage.feed
    feed.describe(unique_label(items()), make_referring_schema(items(2, "others"), "amount", items()))
    feed.cut(*(put(i, f"label {i}", i) for i in range(20)), put(1, "other", 1, table=2))
    place = place_of(stage)
    with ForkedModule("tests.support.faults.killed_session", broker.address, "m", place.url) as victim:
        runs = [victim.run("ddl-load", step, moment, 0) for step in range(1, 8) for moment in MOMENTS]
        assert not victim.run("load", NEVER, "after", 0)

    assert sum(runs) >= 4
    stage.compare_tables()
    assert all(t.created for t in states(stage).values())
    assert intents(stage) == []
    indexes = {row[2] for row in place.server.execute("SHOW INDEX FROM items", place.database)}
    assert indexes == {"PRIMARY", "items_label"}
    assert place.server.execute(
        f"SELECT constraint_name FROM information_schema.referential_constraints "
        f"WHERE constraint_schema = '{place.database}'"
    ) == [("others_fk",)]


@pytest.fixture
def own_server() -> Iterator[MariaServer]:
    """Start a server that a test may kill."""
    with running_mariadb() as server:
        yield server


def test_a_killed_server_has_whole_cuts_and_the_target_waits_for_it(
    own_server: MariaServer, broker: FakeDelivery, feed: Feed
) -> None:
    url = own_server.create_database()
    stage = Stage.at(MariaTargetPlace(own_server, url), broker.address, feed)
    feed.describe(items())
    feed.cut(*(put(i, "first", i) for i in range(50)))
    stage.target.load()
    schema = items()
    with stage.follow_in_thread() as reports:
        for version in range(2, 5):
            schema = next_version(schema, version)
            feed.describe(schema)
            feed.model[1] = {key: (*row, None, "7") for key, row in feed.model[1].items()}
            row = [version, version, *("x" if n % 2 == 0 else n for n in range(2 * (version - 1)))]
            feed.cut(*(put(i, *row) for i in range(25)))
            own_server.kill()
            eventually(lambda: bool(reports) and bool(reports[-1].error), "the loss of the server")
            own_server.start_again()
            stage.wait_until_applied(broker.next_offset)

    stage.compare_tables()
    assert stage.target.read_view().unaccounted_rows == 0


def test_columns_are_dropped_renamed_widened_and_made_nullable(stage: Stage) -> None:
    """Each statement is executed once: a change that the dictionary shows is not repeated."""
    small, wide = LogicalType(kind=Kind.INT, length=4), LogicalType(kind=Kind.TEXT, length=10)
    first = table(1, "items", column(1, "id", INT), column(2, "a", wide, nullable=False), column(3, "b", small))
    stage.feed.describe(first)
    stage.feed.cut(put(1, "one", 1), put(2, "two", 2))
    stage.target.load()
    renamed = (column(1, "id", INT), column(2, "label", TEXT, nullable=True), column(3, "b", INT))
    dropped = (column(1, "id", INT), column(3, "b", INT), column(4, "c", TEXT))
    with stage.follow_in_thread():
        stage.feed.describe(replace(first, version=2, columns=renamed))
        stage.feed.cut(put(1, "x" * 100, 5_000_000_000), put(3, None, 3))
        stage.wait_until_applied(stage.feed.broker.next_offset)
        stage.compare_tables()
        stage.feed.describe(replace(first, version=3, columns=dropped))
        stage.feed.model[1] = {key: (b, None) for key, (_, b) in stage.feed.model[1].items()}
        stage.feed.cut(put(4, 4, "four"))
        stage.wait_until_applied(stage.feed.broker.next_offset)

    stage.compare_tables()
    assert stage.table("shop.items").state == "ACTIVE"
    kept = place_of(stage).server.execute("SELECT label FROM items WHERE id = 1", place_of(stage).database)
    assert kept == [("x" * 100,)]


def test_earlier_cuts_of_a_backlog_are_applied_before_a_rename(stage: Stage) -> None:
    stage.feed.describe(items())
    stage.feed.cut(put(1, "a", 1))
    stage.target.load()
    stage.feed.cut(put(1, "by the old name", 1), put(2, "b", 2))
    columns = (column(1, "id", INT), column(2, "title"), column(3, "amount", INT))
    stage.feed.describe(replace(items(), version=2, columns=columns))
    stage.feed.cut(put(3, "by the new name", 3))
    stage.follow_to_end()

    stage.compare_tables()


def test_a_column_that_the_target_added_itself_is_not_taken_as_a_new_one(stage: Stage) -> None:
    stage.feed.describe(items(), items(2, "others"))
    stage.feed.cut(put(1, "a", 1), put(1, "other", 1, table=2))
    stage.target.load()
    place = place_of(stage)
    place.server.execute("ALTER TABLE items ADD COLUMN extra text", place.database)
    stage.feed.describe(replace(items(), version=2, columns=(*items().columns, column(4, "extra", TEXT))))
    with stage.follow_in_thread():
        stage.feed.cut(put(1, "b", 1, "theirs"), put(1, "moves", 1, table=2))
        stage.wait_until_applied(stage.feed.broker.next_offset)
        halted = stage.table("shop.items")

    assert halted.state == "HALTED"
    assert "rename or drop the one at the target" in halted.reason
    assert stage.table("shop.others").state == "ACTIVE"


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("CREATE TABLE items (id bigint PRIMARY KEY, label longtext, amount bigint) ENGINE = MyISAM", "only InnoDB"),
        ("CREATE TABLE items (id bigint, label longtext, amount bigint)", "has no primary key"),
        ("CREATE TABLE items (id bigint PRIMARY KEY, label varchar(5), amount bigint)", "label is varchar(5)"),
        (
            "CREATE TABLE items (id bigint PRIMARY KEY, label longtext CHARACTER SET latin1, amount bigint)",
            "character set latin1",
        ),
    ],
)
def test_an_existing_table_that_differs_is_refused_by_name(statement: str, says: str, stage: Stage) -> None:
    place = place_of(stage)
    place.server.execute(statement, place.database)

    found = [f.message for f in stage.target.check([items()]) if f.blocks]
    assert any(says in line for line in found), found


def test_a_trigger_of_an_existing_table_is_refused(stage: Stage) -> None:
    place = place_of(stage)
    place.server.execute("CREATE TABLE items (id bigint PRIMARY KEY, label longtext, amount bigint)", place.database)
    place.server.execute(
        "CREATE TRIGGER counts BEFORE INSERT ON items FOR EACH ROW SET NEW.amount = NEW.amount + 1", place.database
    )

    found = [f.message for f in stage.target.check([items()]) if f.blocks]
    assert any("trigger counts" in line for line in found), found
