"""A SQLite file that was the application's: its record, the rejection of writes, and rows that are carried back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from venus.adapters.cutover.direction import reverse
from venus.adapters.dialects.contract import RegisteredTable
from venus.adapters.dialects.sqlite.source import SqliteSource
from venus.adapters.targets.cutover_contract import FollowStart, SideOpening
from venus.adapters.targets.relational.session import Refusal, transaction
from venus.adapters.targets.sqlite import rowsql
from venus.adapters.targets.sqlite.cutover.side import SqliteSide, open_side
from venus.adapters.targets.switching import OLD, SideRecord, SideState, SwitchPosition
from venus.codec.columns import from_columns
from venus.codec.row_bytes import Layout
from venus.config import Settings
from venus.errors import Fenced, NoSuchDatabase, Refused
from venus.model import Epoch, TableSchema

TABLES = """
CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, v TEXT, at DATETIME, fee DECIMAL(10,2));
CREATE TABLE label (name TEXT COLLATE NOCASE PRIMARY KEY, kind);
INSERT INTO t (v, at, fee) VALUES ('one', '2026-01-01T10:00:00.500Z', 1), ('two', NULL, 0.1);
INSERT INTO label VALUES ('A', 1), ('b', 2);
"""


class OldFile:
    """A file of an application in the state of a switch."""

    def __init__(self, folder: Path, tables: str = TABLES) -> None:
        self.path = folder / "old.db"
        self.run(tables)
        base = Settings.model_validate(
            {
                "business": {"name": "shop"},
                "source": {"url": f"sqlite:///{self.path}"},
                "targets": {"main": {"url": "postgresql://app@localhost/new"}},
            }
        )
        with closing(SqliteSource(self.path)) as source:
            source.installer.install(["*"], [])
            source.registry.raise_epoch(Epoch(3))
        self.side = SqliteSide(reverse(base, "main"), OLD)
        self.side.install()

    def run(self, script: str) -> list[tuple[object, ...]]:
        """Run statements as the application does; return the rows of the last one."""
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=1)) as connection:
            found: list[tuple[object, ...]] = []
            for statement in filter(str.strip, script.split(";")):
                found = connection.execute(statement).fetchall()
            return found

    @property
    def registered_tables(self) -> list[RegisteredTable]:
        with closing(SqliteSource(self.path)) as source:
            return source.registry.read_registered_tables()

    @property
    def schemas(self) -> dict[str, TableSchema]:
        return {t.schema.name: t.schema for t in self.registered_tables}

    def follow(self) -> None:
        """Let the file follow another database from offset 7 on."""
        schemas = list(self.schemas.values())
        self.side.reject_writes(record(SideState.CLOSED), schemas)
        self.side.seal(record(SideState.STOPPED, 7), 3, schemas)
        start = FollowStart(offset=7, epoch=3, last_sequence=9, rows=None, schemas=tuple(schemas))
        self.side.follow(record(SideState.FOLLOWING, 7), start)

    def apply(self, table: str, *rows: tuple[str | None, ...]) -> None:
        """Write rows as the stream does."""
        target, schema = self.side._target, self.schemas[table]
        layout = Layout.of(schema)
        ids, packed = from_columns(list(zip(*rows, strict=True)), layout)
        with closing(target.connect()) as session, transaction(session):
            rowsql.delete_keys(session, target.row_sql(schema), layout, ids)
            rowsql.insert_rows(session, target.row_sql(schema), schema, ids, packed)

    def count_logged(self) -> int:
        """Return how many changes wait in the logs."""
        numbers = self.run("SELECT table_id FROM venus_captured_table WHERE name <> 'venus_heartbeat'")
        return sum(int(str(self.run(f"SELECT count(*) FROM venus_l_{n:05}")[0][0])) for (n,) in numbers)


def record(state: SideState, offset: int = 0) -> SideRecord:
    return SideRecord(business="shop", name=OLD, peer="main", state=state, switch=1, offset=offset)


@pytest.fixture
def old(tmp_path: Path) -> Iterator[OldFile]:
    made = OldFile(tmp_path)
    yield made
    made.side.close()


WRITES = (
    "INSERT INTO t (v) VALUES ('late')",
    "INSERT OR IGNORE INTO t (v) VALUES ('late')",
    "INSERT OR REPLACE INTO t (id, v) VALUES (1, 'late')",
    "UPDATE t SET v = 'late'",
    "UPDATE OR REPLACE t SET id = 2 WHERE id = 1",
    "DELETE FROM t",
)


def test_every_write_of_the_application_is_rejected(old: OldFile) -> None:
    old.side.reject_writes(record(SideState.CLOSED), list(old.schemas.values()))
    for write in WRITES:
        with pytest.raises(sqlite3.IntegrityError, match="`venus status` shows which one accepts writes"):
            old.run(write)
    old.side.reopen(record(SideState.OPEN))
    for write in WRITES:
        old.run(write)
    assert old.run("SELECT count(*) FROM sqlite_master WHERE name LIKE 'venus_reject%'") == [(0,)]


def test_changes_of_venus_pass_and_are_not_captured(old: OldFile) -> None:
    old.follow()
    old.apply("t", ("1", "uno", "2027-02-03 04:05:06.1", "2.50"), ("5", "cinco", None, None))
    assert old.run("SELECT * FROM t ORDER BY id") == [
        (1, "uno", "2027-02-03T04:05:06.100Z", 2.5),
        (2, "two", None, 0.1),
        (5, "cinco", None, None),
    ]
    assert old.count_logged() == 0
    with pytest.raises(sqlite3.IntegrityError, match="VENUS keeps"):  # the mark of the transaction is gone
        old.run("UPDATE t SET v = 'late'")


def test_the_seal_ends_the_capture_of_another_process(old: OldFile) -> None:
    schemas = list(old.schemas.values())
    with closing(SqliteSource(old.path)) as late:
        old.side.reject_writes(record(SideState.CLOSED), schemas)
        with pytest.raises(Fenced):
            old.side.seal(record(SideState.STOPPED, 7), 2, schemas)
        old.side.seal(record(SideState.STOPPED, 7), 3, schemas)
        with pytest.raises(Fenced, match="another database continues it"):
            late.registry.raise_epoch(Epoch(4))
        old.side.reopen(record(SideState.OPEN))
        assert late.registry.raise_epoch(Epoch(4)).epoch == 4


def test_a_waiting_change_refuses_the_seal(old: OldFile) -> None:
    old.run("UPDATE t SET v = 'waits' WHERE id = 1")
    with pytest.raises(Refused, match="changes of main\\.t wait"):
        old.side.seal(record(SideState.STOPPED, 7), 3, list(old.schemas.values()))
    assert old.run("SELECT epoch FROM venus_checkpoint") == [(3,)]


def test_a_handover_captures_from_the_next_write_on(old: OldFile) -> None:
    before = old.schemas
    old.follow()
    old.apply("t", ("9", "nine", None, None))
    handover = old.side.plan_handover(
        [replace(t, schema=replace(t.schema, source_dialect="postgresql")) for t in old.registered_tables], []
    )
    assert handover.obstacles == ()
    opening = SideOpening(
        record=record(SideState.OPEN, 12),
        position=SwitchPosition(offset=12, epoch=5, next_sequence=20, last_batch=4),
        statements=handover.statements,
    )
    session = old.side._session
    with transaction(session):
        open_side(session, opening)
    old.run("INSERT INTO t (v) VALUES ('first')")
    assert old.count_logged() == 1
    assert old.run("SELECT epoch, next_sequence, last_batch FROM venus_checkpoint") == [(5, 20, 4)]
    assert {n: s.version for n, s in old.schemas.items()} == {n: s.version + 1 for n, s in before.items()}
    with closing(SqliteSource(old.path)) as source:
        source.capture.refresh_schemas()
        assert [t.fill.done for t in source.registry.read_registered_tables()] == [True] * len(before)
        assert all(t.state == "ACTIVE" for t in source.registry.read_registered_tables())


def test_keys_that_are_equal_under_a_collation_are_different_rows(old: OldFile) -> None:
    old.follow()
    old.apply("label", ("b", "5"))
    assert old.run("SELECT * FROM label ORDER BY name") == [("A", 1), ("b", 5)]
    with pytest.raises(Refusal, match="UNIQUE"):
        old.apply("label", ("B", "6"))
    assert old.run("SELECT * FROM label ORDER BY name") == [("A", 1), ("b", 5)]


def test_a_value_that_the_file_would_alter_is_refused(tmp_path: Path) -> None:
    table = "CREATE TABLE t (id INTEGER PRIMARY KEY, v STRING, n DECIMAL(30,10), b BOOLEAN)"
    old = OldFile(tmp_path, f"{table}; INSERT INTO t VALUES (1, 'text', 1, 1)")
    with closing(old.side):
        old.follow()
        old.apply("t", ("2", "x", "1.5000000000", "f"))
        for row in (("3", "007", None, None), ("3", None, "12345678901234567.1234567890", None)):
            with pytest.raises(Refusal, match=r"another value in column [vn]"):
                old.apply("t", row)
        assert old.run("SELECT * FROM t") == [(1, "text", 1, 1), (2, "x", 1.5, 0)]


def test_obstacles_are_named_with_their_remedy(tmp_path: Path) -> None:
    old = OldFile(
        tmp_path,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, at DATETIME, twice INT AS (id * 2));"
        "CREATE TABLE u (id INTEGER PRIMARY KEY, at DATETIME, ok BOOLEAN);"
        "INSERT INTO u VALUES (1, '2026-01-01 10:00:00', 't'), (2, '2026-01-01T10:00:00', 'f')",
    )
    with closing(old.side):
        schemas = list(old.schemas.values())
        with closing(sqlite3.connect(old.path)) as connection:
            connection.execute("CREATE TRIGGER mine AFTER INSERT ON t BEGIN SELECT 1; END")
        lines = [one.line for one in old.side.find_obstacles(schemas)]
    said = "\n".join(lines)
    assert "t.twice is generated and cannot be written" in said
    assert 'trigger mine of t would fire for changes of VENUS: DROP TRIGGER "mine"' in said
    assert "u.at has values of several spellings, and '2026-01-01T10:00:00' would come back as" in said
    assert "u.ok" not in said


def test_a_missing_file_is_not_taken_as_an_empty_database(old: OldFile) -> None:
    settings, name = old.side._settings, old.side.name
    old.side.close()
    for file in old.path.parent.glob("old.db*"):
        file.unlink()
    with pytest.raises(NoSuchDatabase, match="does not exist"):
        SqliteSide(settings, name)
    assert not old.path.exists()
