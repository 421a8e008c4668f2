"""The file of a SQLite target: paths refused before it is opened, its locks, and the statements of a session."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.brokers.feed import items, settings_for
from tests.support.waiting import eventually
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.relational.session import transaction
from venus.adapters.targets.sqlite import session as sessions
from venus.adapters.targets.sqlite.database import SqliteDatabase
from venus.adapters.targets.sqlite.file import parse_writer, version_problem
from venus.adapters.targets.sqlite.session import SqliteSession, split_statements
from venus.errors import ConfigError, DatabaseUnavailable, Refused, VenusError


def open_database(file: Path | str) -> SqliteDatabase:
    return SqliteDatabase(settings_for("127.0.0.1:1", {"s": f"sqlite:///{file}"}), "s")


def open_sessions(file: Path) -> tuple[SqliteSession, sqlite3.Connection]:
    """Return a session of VENUS, and a connection of another program."""
    database = open_database(file)
    database.install()
    return database.connect(), sqlite3.connect(file, isolation_level=None, timeout=0)


def make_link(file: Path) -> None:
    file.with_name("real.db").touch()
    file.symlink_to("real.db")


def make_socket(file: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as opened:
        opened.bind(str(file))


def make_foreign_file(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA application_id = 252006674")


def make_source(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE venus_captured_table (name TEXT)")


def damage_file(file: Path) -> None:
    file.write_bytes(b"SQLite format 3\0" + b"\1" * 4096)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (make_link, "is a symbolic link: name {folder}/real.db itself"),
        (Path.mkdir, "is a directory: name a file in it"),
        (make_socket, "is not a regular file: name another file"),
        (lambda file: file.write_text("id;name\n1;a\n"), "file is not a database: name another file"),
        (damage_file, "file is not a database: name another file"),
        (make_foreign_file, "is the file of another application (application_id 0x0f055112): name another file"),
        (make_source, "is a source of VENUS: name another file"),
    ],
)
def test_a_path_that_cannot_be_a_target_is_refused_with_the_remedy(
    make: Callable[[Path], object], says: str, tmp_path: Path
) -> None:
    file = tmp_path / "copy.db"
    make(file)
    before = file.read_bytes() if file.is_file() else b""

    (finding,) = open_database(file).check([items()])
    with pytest.raises(VenusError, match=r"copy\.db") as refused:
        open_database(file).install()

    assert finding.blocks
    assert f"{finding.message}: {finding.remedy}".endswith(says.format(folder=tmp_path))
    assert str(file) in finding.message
    assert "\n" not in finding.message
    assert str(refused.value) == finding.message
    assert (file.read_bytes() if file.is_file() else b"") == before


def test_a_missing_directory_is_named_with_the_command_that_creates_it(tmp_path: Path) -> None:
    (finding,) = open_database(tmp_path / "none" / "copy.db").check([items()])

    assert finding.message == f"url in [targets.s]: there is no directory {tmp_path}/none"
    assert finding.remedy == f"make it: mkdir -p {tmp_path}/none"
    assert finding.blocks is False, "a disk may be mounted later"


@pytest.mark.parametrize("what", ["file", "directory"])
def test_an_unwritable_path_is_refused(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "copy.db"
    file.touch()
    unwritable = file if what == "file" else tmp_path
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != unwritable and access(path, mode))

    with pytest.raises(ConfigError, match=f"{unwritable} cannot be written") as refused:
        open_database(file).connect()

    assert refused.value.hint in (f"chmod u+rw {file}", "let VENUS's user write there")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///a.db?mode=ro", "sqlite://host/a.db"])
def test_a_url_without_a_file_is_refused(url: str) -> None:
    target = SqliteDatabase(settings_for("127.0.0.1:1", {"s": url}), "s")

    with pytest.raises(ConfigError, match=r"^url in \[targets\.s\]"):
        target.connect()


def test_viewing_a_target_creates_no_file(tmp_path: Path) -> None:
    target = open_target(settings_for("127.0.0.1:1", {"s": f"sqlite:///{tmp_path}/copy.db"}), "s")

    target.check([items()])
    view = target.read_view()
    with pytest.raises(Refused, match="has not been loaded yet"):
        target.pause(None, "a test")

    assert (view.loaded, view.error) == (False, "")
    assert list(tmp_path.iterdir()) == []


def test_the_file_has_a_write_ahead_log_and_every_commit_is_synced(tmp_path: Path) -> None:
    opened, _ = open_sessions(tmp_path / "copy.db")

    assert opened.rows("PRAGMA journal_mode") == [("wal",)]
    assert opened.rows("PRAGMA synchronous") == [(2,)]
    assert opened.rows("PRAGMA foreign_keys") == [(0,)]


def test_an_old_sqlite_is_refused() -> None:
    assert version_problem((3, 36, 0)) == "Python's SQLite is 3.36.0, VENUS needs 3.37"
    assert version_problem((3, 37, 0)) == ""


# -- locks -------------------------------------------------------------------------------------------------------------


def test_one_session_at_a_time_works_on_a_target(tmp_path: Path) -> None:
    database = open_database(tmp_path / "copy.db")
    database.install()
    first, second = database.connect(), database.connect()

    assert (first.try_lock(), first.try_lock(), second.try_lock()) == (True, True, False)
    assert second.find_worker().startswith(f"process {os.getpid()} ")
    first.close()
    assert second.try_lock()


_EXCLUSIVE = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)
"""


def test_a_second_session_keeps_the_locks_of_the_first(tmp_path: Path) -> None:
    """Another process that got SQLite's exclusive lock would remove the log that the first session still writes."""
    opened, _ = open_sessions(tmp_path / "copy.db")
    opened.run("CREATE TABLE t (a INTEGER) STRICT")
    open_database(tmp_path / "copy.db").check([items()])
    command = [sys.executable, "-c", _EXCLUSIVE, str(tmp_path / "copy.db")]

    refused = subprocess.run(command, capture_output=True, text=True, check=False)

    assert "BlockingIOError" in refused.stderr or "PermissionError" in refused.stderr


def test_a_lock_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    opened, _ = open_sessions(tmp_path / "copy.db")
    opened._lock._path.symlink_to("elsewhere")

    with pytest.raises(DatabaseUnavailable, match=r"copy\.db-venus-") as refused:
        opened.try_lock()

    assert "let VENUS's user write it" in refused.value.hint


def test_a_reader_sees_a_whole_cut_and_never_waits(tmp_path: Path) -> None:
    opened, other = open_sessions(tmp_path / "copy.db")
    opened.run("CREATE TABLE t (a INTEGER) STRICT")
    with transaction(opened):
        opened.write_many("INSERT INTO t VALUES (?)", [(n,) for n in range(10)])
        halfway = other.execute("SELECT count(*) FROM t").fetchall()

    assert halfway == [(0,)]
    assert other.execute("SELECT count(*) FROM t").fetchall() == [(10,)]


def test_one_statement_inserts_many_rows(tmp_path: Path) -> None:
    opened, other = open_sessions(tmp_path / "copy.db")
    opened.run("CREATE TABLE t (a INTEGER, b TEXT, c INTEGER) STRICT")
    rows, statements = [(n, str(n), 7) for n in range(2_000)], list[str]()
    numbers, texts, _ = zip(*rows, strict=True)
    opened.connection.set_trace_callback(statements.append)
    with transaction(opened):
        written = opened.insert_columns(lambda marks: f"INSERT INTO t VALUES {marks}", "(?, ?, 7)", [numbers, texts])

    assert written == len(rows)
    assert other.execute("SELECT * FROM t ORDER BY a").fetchall() == rows
    inserts = [one for one in statements if one.startswith("INSERT")]
    assert len(inserts) == 4 + 2_000 % 499, "499 rows have 998 values; those left over have a statement each"


def test_a_wait_for_another_writer_is_reported_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SHOW_S", 0.01)
    opened, other = open_sessions(tmp_path / "copy.db")
    reports: list[str] = []
    opened.on_wait = reports.append
    other.execute("BEGIN IMMEDIATE")
    waiting = threading.Thread(target=lambda: opened.run("BEGIN"))
    waiting.start()
    eventually(lambda: bool(reports), "a report")
    other.execute("COMMIT")
    waiting.join()

    assert reports[0].startswith(f"process {os.getpid()} (")
    assert reports[-1] == ""


def test_a_writer_that_keeps_its_lock_is_named_after_a_limited_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "LOCK_WAIT_S", 0.05)
    opened, other = open_sessions(tmp_path / "copy.db")
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(DatabaseUnavailable, match=f"process {os.getpid()} .* has held the file") as unavailable:
        opened.run("BEGIN")

    assert "end the transaction of process" in unavailable.value.hint
    other.execute("COMMIT")
    opened.run("BEGIN; COMMIT")


def test_status_names_a_writer_other_than_venus(tmp_path: Path) -> None:
    database = open_database(tmp_path / "copy.db")
    opened, other = open_sessions(tmp_path / "copy.db")
    other.execute("BEGIN IMMEDIATE")
    (waiting,) = database.find_lock_waits(opened, {})
    opened.try_lock()
    own = database.find_lock_waits(opened, {})

    assert (waiting.name, waiting.state) == ("copy.db", "WAITING")
    assert f"copy.db, which process {os.getpid()} (" in waiting.reason
    assert own == [], "the process that works on the target is VENUS"


@pytest.mark.parametrize(
    ("line", "process"),
    [
        ("1: POSIX  ADVISORY  WRITE 4711 fe:01:77 120 120", "4711"),
        ("1: POSIX  ADVISORY  WRITE 4711 fe:01:77 0 EOF", "4711"),
        ("1: POSIX  ADVISORY  READ 4711 fe:01:77 120 120", ""),
        ("1: POSIX  ADVISORY  WRITE 4711 fe:01:78 120 120", ""),
        ("1: POSIX  ADVISORY  WRITE 4711 fe:01:77 123 123", ""),
        ("1: POSIX  ADVISORY  WRITE -1 fe:01:77 120 120", ""),
        ("1: FLOCK  ADVISORY  WRITE 4711 fe:01:77 0 EOF", ""),
        ("1: -> POSIX  ADVISORY  WRITE 4711 fe:01:77 120 120", ""),
        ("", ""),
    ],
)
def test_the_holder_of_the_write_lock_is_read_from_the_kernel(line: str, process: str) -> None:
    assert parse_writer(line, "77") == process


def test_a_file_that_was_replaced_gets_no_rows(tmp_path: Path) -> None:
    opened, _ = open_sessions(tmp_path / "copy.db")
    (tmp_path / "copy.db").rename(tmp_path / "moved.db")

    with pytest.raises(DatabaseUnavailable, match="was removed or replaced"):
        opened.run("BEGIN")


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    opened, _ = open_sessions(tmp_path / "copy.db")
    opened.run("CREATE TABLE t (a BLOB) STRICT; PRAGMA max_page_count = 40")

    with pytest.raises(DatabaseUnavailable, match="database or disk is full") as full, transaction(opened):
        opened.write_many("INSERT INTO t VALUES (?)", [(bytes(400_000),)])

    assert full.value.hint == "make room on its disk"
    opened.run("PRAGMA max_page_count = 4000")
    with transaction(opened):
        opened.write_many("INSERT INTO t VALUES (?)", [(bytes(400_000),)])


# -- statements --------------------------------------------------------------------------------------------------------


def test_statements_are_split_at_their_ends() -> None:
    text = "BEGIN; INSERT INTO t VALUES ('a;b', x'3b'); SELECT 1"

    assert list(split_statements(text)) == ["BEGIN;", "INSERT INTO t VALUES ('a;b', x'3b');", "SELECT 1;"]
    assert list(split_statements("SELECT 1")) == ["SELECT 1"]
    assert list(split_statements("SELECT 1;; ")) == ["SELECT 1;"]


def test_values_become_literals_with_the_same_meaning(tmp_path: Path) -> None:
    opened, _ = open_sessions(tmp_path / "copy.db")
    values = {"a": "it's; :b", "b": b"\0\xff", "c": "nul\0inside", "d": None, "e": True, "f": -7}

    assert opened.row(opened.literal("SELECT :a, :b, :c, :d, :e, :f", values)) == tuple(values.values())
    assert opened.row("SELECT :a, :b, :c, :d, :e, :f", values) == tuple(values.values())
