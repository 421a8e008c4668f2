"""Partitions and inheritance in PostgreSQL: to which table a change belongs."""

from __future__ import annotations

import pytest

from tests.integration.postgresql.conftest import Sql, Start, keys, state
from venus.adapters.dialects.contract import UncapturedTable
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.postgresql.installation.installer import PostgresInstalledObjects
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.cli.prove.follower import Follower
from venus.model import ChangeKind


@pytest.fixture
def parted_table(sql: Sql) -> None:
    """Make a table of two partitions, one of which has the columns in another order."""
    sql("CREATE TABLE parted (id int, region text, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region)")
    sql("CREATE TABLE parted_n PARTITION OF parted FOR VALUES IN ('n')")
    sql("CREATE TABLE parted_s (v text, gone int, region text NOT NULL, id int NOT NULL)")
    sql("ALTER TABLE parted_s DROP COLUMN gone")
    sql("ALTER TABLE parted ATTACH PARTITION parted_s FOR VALUES IN ('s')")


@pytest.mark.usefixtures("parted_table")
def test_writes_to_a_partition_itself_are_captured(sql: Sql, capture: Start) -> None:
    follower = capture()
    sql("INSERT INTO parted VALUES (1, 'n', 'a'), (2, 's', 'b')")
    sql("INSERT INTO parted_n VALUES (3, 'n', 'c')")
    sql("INSERT INTO parted_s (id, region, v) VALUES (4, 's', 'd')")
    follower.drain()
    assert keys(follower, "parted") == {"1", "2", "3", "4"}
    sql("UPDATE parted SET region = 's' WHERE id = 1")  # moves the row
    sql("DELETE FROM parted_s WHERE id = 4")
    sql("UPDATE parted_n SET v = 'C' WHERE id = 3")
    follower.drain()
    assert {(k[0], k[1], r["v"]) for k, r in follower.rows("parted").items()} == {
        ("1", "s", "a"),
        ("2", "s", "b"),
        ("3", "n", "C"),
    }
    assert {s.qualified_name for s in follower.schemas.values()} == {"public.parted", "venus.heartbeat"}


@pytest.mark.usefixtures("parted_table")
def test_truncating_one_partition_removes_its_rows_and_no_others(sql: Sql, capture: Start) -> None:
    follower = capture()
    sql("INSERT INTO parted SELECT i, CASE WHEN i % 2 = 0 THEN 'n' ELSE 's' END, 'x' FROM generate_series(1, 10) i")
    follower.drain()
    sql("BEGIN; TRUNCATE parted_n; INSERT INTO parted VALUES (2, 'n', 'again'); COMMIT")
    follower.drain()
    assert keys(follower, "parted") == {"1", "2", "3", "5", "7", "9"}


@pytest.mark.usefixtures("parted_table")
def test_truncating_the_whole_partitioned_table_is_one_marker(sql: Sql, capture: Start) -> None:
    follower = capture()
    sql("INSERT INTO parted SELECT i, CASE WHEN i % 2 = 0 THEN 'n' ELSE 's' END, 'x' FROM generate_series(1, 10) i")
    follower.drain()
    sql("BEGIN; TRUNCATE parted; INSERT INTO parted VALUES (2, 'n', 'again'); TRUNCATE parted_n; COMMIT")
    seen = follower.cut()
    assert seen is not None
    assert [(s.kind, s.count) for s in seen.sections] == [(ChangeKind.TRUNCATE, 1), (ChangeKind.CHANGES, 1)]
    assert keys(follower, "parted") == set()


@pytest.mark.usefixtures("parted_table")
def test_a_partition_that_is_attached_with_rows_adds_them(sql: Sql, capture: Start) -> None:
    follower = capture()
    sql("CREATE TABLE parted_w (LIKE parted INCLUDING ALL)")
    sql("INSERT INTO parted_w VALUES (50, 'w', 'x')")
    sql("ALTER TABLE parted ATTACH PARTITION parted_w FOR VALUES IN ('w')")
    follower.source.capture.refresh_schemas()
    follower.drain()
    assert keys(follower, "parted") == {"50"}
    sql("INSERT INTO parted_w VALUES (51, 'w', 'y')")
    sql("TRUNCATE parted_w")
    follower.drain()
    assert keys(follower, "parted") == set()


@pytest.mark.usefixtures("parted_table")
def test_a_partition_that_is_dropped_removes_its_rows(sql: Sql, capture: Start) -> None:
    follower = capture()
    sql("INSERT INTO parted VALUES (1, 'n', 'a'), (2, 's', 'b')")
    follower.drain()
    sql("DROP TABLE parted_n")
    follower.source.capture.refresh_schemas()
    (table,) = [t for t in follower.source.registry.read_registered_tables() if t.schema.name == "parted"]
    assert table.is_compared
    follower.drain()  # without a broker the table is read again
    assert keys(follower, "parted") == {"2"}
    assert state(follower, "parted") == ("ACTIVE", "")


@pytest.mark.usefixtures("parted_table")
def test_a_table_that_is_still_being_read_is_not_compared(sql: Sql, source: PostgresSource) -> None:
    sql("INSERT INTO parted VALUES (1, 'n', 'a'), (2, 's', 'b'), (3, 's', 'c')")
    source.installer.install(["*"], [])
    follower = Follower(source)
    assert follower.cut(fill_rows=1) is not None
    sql("DROP TABLE parted_n")
    source.capture.refresh_schemas()
    (table,) = [t for t in source.registry.read_registered_tables() if t.schema.name == "parted"]
    assert (table.fill.done, table.is_compared) == (False, False)
    follower.drain()
    assert keys(follower, "parted") == {"2", "3"}


def test_child_tables_keep_their_rows_separate(sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE parent (id int PRIMARY KEY, v text)")
    sql("CREATE TABLE child (extra int, PRIMARY KEY (id)) INHERITS (parent)")
    sql("INSERT INTO parent VALUES (1, 'p'); INSERT INTO child VALUES (2, 'c', 0)")
    follower = capture()
    assert (keys(follower, "parent"), keys(follower, "child")) == ({"1"}, {"2"})
    sql("UPDATE parent SET v = 'both'")  # the statement changes the child's row as well
    sql("INSERT INTO child VALUES (1, 'same key', 0)")
    follower.drain()
    assert follower.rows("parent") == {("1",): {"id": "1", "v": "both"}}
    assert [r["v"] for r in follower.rows("child").values()] == ["same key", "both"]
    sql("DELETE FROM parent WHERE id = 1")
    follower.drain()
    assert (keys(follower, "parent"), keys(follower, "child")) == (set(), {"2"})


@pytest.mark.usefixtures("parted_table")
def test_a_trigger_that_is_disabled_on_one_partition_is_noticed_and_recreated(sql: Sql, capture: Start) -> None:
    """Each partition has its own copy of the row trigger, which a load of the partition disables."""
    follower = capture()
    follower.source.capture.refresh_schemas()
    sql("ALTER TABLE parted_n DISABLE TRIGGER USER")
    sql("INSERT INTO parted VALUES (1, 'n', 'a')")
    follower.source.capture.refresh_schemas()
    assert state(follower, "parted")[0] == "RESYNC"

    follower.source.installer.install(["*"], [])
    assert all(step.exists for step in follower.source.installer.install(["*"], []))
    table_id = follower.table_id("parted")
    follower.source.capture.restart_fill(table_id)
    follower.source.registry.set_table_state(table_id, "ACTIVE", "")
    follower.source.capture.refresh_schemas()
    sql("INSERT INTO parted VALUES (2, 'n', 'b')")
    follower.drain()
    assert keys(follower, "parted") == {"1", "2"}
    sql("DELETE FROM parted WHERE id = 2")
    follower.drain()
    assert keys(follower, "parted") == {"1"}


@pytest.mark.usefixtures("parted_table")
def test_a_trigger_that_was_disabled_on_one_partition_between_two_looks_is_noticed(sql: Sql, capture: Start) -> None:
    follower = capture()
    follower.source.capture.refresh_schemas()
    sql("ALTER TABLE parted_n DISABLE TRIGGER USER")
    sql("INSERT INTO parted VALUES (1, 'n', 'a')")
    sql("ALTER TABLE parted_n ENABLE TRIGGER USER")
    follower.source.capture.refresh_schemas()
    found, reason = state(follower, "parted")
    assert found == "RESYNC"
    assert "on public.parted_n" in reason


@pytest.mark.usefixtures("parted_table")
def test_a_partition_that_is_attached_again_needs_no_resync(sql: Sql, capture: Start) -> None:
    """It has kept its own trigger, which is replaced when it is attached: only VENUS has altered it."""
    follower = capture()
    follower.source.capture.refresh_schemas()
    sql("INSERT INTO parted VALUES (1, 'n', 'a')")
    follower.drain()
    bound = sql("SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = 'parted_n'")[0][0]
    sql("ALTER TABLE parted DETACH PARTITION parted_n")
    follower.source.capture.refresh_schemas()
    sql("INSERT INTO parted_n SELECT 2, 'n', 'b'")
    sql(f"ALTER TABLE parted ATTACH PARTITION parted_n {bound}")
    for _ in range(3):
        follower.source.capture.refresh_schemas()
        follower.drain()
    assert state(follower, "parted") == ("ACTIVE", "")
    assert keys(follower, "parted") == {"1", "2"}


@pytest.mark.usefixtures("parted_table")
def test_a_partition_that_is_detached_is_named_until_it_is_captured_by_itself(sql: Sql, capture: Start) -> None:
    follower = capture()
    source = follower.source
    sql("INSERT INTO parted VALUES (1, 'n', 'a'), (2, 's', 'b')")
    follower.drain()
    assert source.dictionary.find_uncaptured_tables(["*"], []) == []
    sql("ALTER TABLE parted DETACH PARTITION parted_n")
    source.capture.refresh_schemas()
    assert source.dictionary.find_uncaptured_tables(["*"], []) == [UncapturedTable(name="public.parted_n")]

    source.installer.install(["*"], [])
    sql("INSERT INTO parted_n VALUES (3, 'n', 'c')")
    for _ in range(2):
        source.capture.refresh_schemas()
        follower.read_registry()
        follower.drain()

    assert source.dictionary.find_uncaptured_tables(["*"], []) == []
    assert keys(follower, "parted_n") == {"1", "3"}
    assert keys(follower, "parted") == {"2"}


@pytest.mark.usefixtures("parted_table")
def test_a_trigger_that_is_disabled_on_the_parent_alone_is_recreated(sql: Sql, capture: Start) -> None:
    """The copies continue, but the next new partition would get a disabled one."""
    follower = capture()
    follower.source.capture.refresh_schemas()
    sql("ALTER TABLE ONLY parted DISABLE TRIGGER USER")
    follower.source.capture.refresh_schemas()
    assert "venus_r_" in state(follower, "parted")[1]
    follower.source.installer.install(["*"], [])
    assert sql("SELECT DISTINCT tgenabled::text FROM pg_trigger WHERE tgname LIKE 'venus_%'") == [("O",)]


@pytest.mark.usefixtures("parted_table")
def test_a_partitioned_table_leaves_capture_and_returns(sql: Sql, capture: Start) -> None:
    follower = capture()
    sql("INSERT INTO parted VALUES (1, 'n', 'a'), (2, 's', 'b')")
    follower.drain()
    number = follower.table_id("parted")
    follower.source.installer.release([number])
    assert sql("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'venus%%' AND tgname LIKE '%%2'") == [(0,)]
    sql("CREATE TABLE parted_e PARTITION OF parted FOR VALUES IN ('e')")  # leaving capture is not reported as an error
    follower.source.capture.refresh_schemas()
    assert state(follower, "parted")[0] == "RELEASING"
    follower.source.installer.drop_logs({number: "gone"})
    assert sql(f"SELECT count(*) FROM venus.captured_leaf WHERE table_id = {number}") == [(0,)]
    sql("TRUNCATE parted_n")
    sql("INSERT INTO parted VALUES (3, 's', 'c'), (4, 'e', 'd')")
    sql("DROP TABLE parted_n")

    follower.source.installer.install(["*"], [])
    for _ in range(2):
        follower.source.capture.refresh_schemas()
        follower.read_registry()
        follower.drain()
    assert keys(follower, "parted") == {"2", "3", "4"}
    sql("TRUNCATE parted_e")
    follower.drain()
    assert keys(follower, "parted") == {"2", "3"}
    assert state(follower, "parted") == ("ACTIVE", "")


@pytest.mark.usefixtures("parted_table")
def test_a_partition_attached_while_the_dictionary_is_compared_causes_no_new_fill(
    sql: Sql, capture: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = capture()
    capturing = follower.source.capture
    capturing.refresh_schemas()
    original = PostgresInstalledObjects.read

    def join_first(connection: PostgresConnection) -> PostgresInstalledObjects:
        """Attach a partition by an installation in another process, right after the tables were read."""
        monkeypatch.undo()
        sql("CREATE TABLE parted_w PARTITION OF parted FOR VALUES IN ('w')")
        sql(f"INSERT INTO venus.captured_leaf VALUES ({follower.table_id('parted')}, 'parted_w'::regclass)")
        return original(connection)

    monkeypatch.setattr(PostgresInstalledObjects, "read", join_first)
    sql("COMMENT ON TABLE parted IS 'another one'")
    capturing.refresh_schemas()
    assert all(table.fill.done for table in follower.source.registry.read_registered_tables())
    capturing.refresh_schemas()
    sql("INSERT INTO parted VALUES (1, 'w', 'a'); TRUNCATE parted_w; INSERT INTO parted VALUES (2, 'w', 'b')")
    follower.drain()
    assert keys(follower, "parted") == {"2"}
