"""States that forbid a cut-over: rows that arrive late or refer to nothing, pending changes; a kill after the mark."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.support.brokers.feed import query
from tests.support.databases.postgres import libpq
from tests.support.pipelines.end_to_end import EndToEnd
from tests.support.waiting import eventually
from venus.adapters.cutover.readiness import Readiness, read_readiness
from venus.adapters.cutover.run import CutoverRequest, run_cutover
from venus.adapters.dialects.registry import open_source
from venus.adapters.targets.postgresql.cutover import guarantees
from venus.adapters.targets.postgresql.cutover.cutover_session import PostgresCutover
from venus.adapters.targets.relational.control import resume
from venus.adapters.targets.relational.full_sync import full_sync
from venus.errors import Refused
from venus.rpc.admin import AdminClient
from venus.rpc.conditions import AdapterCondition, TableCondition
from venus.rpc.subscriber import Subscriber

pytestmark = pytest.mark.integration

HEAD = {"venus": "x", "made_at": "now", "made_by": "me", "source_url": "s", "target_url": "t"}
_TABLES = """
PRAGMA journal_mode = wal;
CREATE TABLE parent (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE child (id INTEGER PRIMARY KEY, parent INT REFERENCES parent (id) ON DELETE CASCADE);
INSERT INTO parent VALUES (1, 'a'), (2, 'b');
INSERT INTO child VALUES (1, 1), (2, 2), (3, NULL);
"""


def cutover_request(**options: Any) -> CutoverRequest:
    usual: dict[str, Any] = {"wait_s": 120.0, "quiet_s": 0.0, "head": HEAD}
    return CutoverRequest(**(usual | options))


@pytest.fixture
def app(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None, check_same_thread=False, timeout=60)
    connection.executescript(_TABLES)
    yield connection
    connection.close()


@pytest.fixture
def e2e(tmp_path: Path, app: sqlite3.Connection, database: str) -> Iterator[EndToEnd]:
    made = EndToEnd(tmp_path, f"sqlite:///{tmp_path / 'shop.db'}", database)
    made.install()
    made.load()
    made.start()
    made.until(partial(is_connected, made), "both adapters to connect")
    yield made
    made.stop()
    made.broker.stop()


def is_connected(e2e: EndToEnd) -> bool:
    """Return whether both adapters are connected: until then a cut-over reports pending changes that nothing captures.

    A pending change may be the first fill's last half message, if the fill ended while its decision was on the way.
    """
    with AdminClient(e2e.broker.address) as admin:
        (found,) = admin.status("main").businesses
    return bool(found.producer) and any(consumer.connected for consumer in found.consumers)


def is_marked(e2e: EndToEnd) -> bool:
    return bool(query(e2e.target, "SELECT 1 FROM venus.cutover"))


def test_rows_with_dangling_references_forbid_a_cutover_unless_accepted(e2e: EndToEnd, app: sqlite3.Connection) -> None:
    app.execute("INSERT INTO child VALUES (4, 99)")  # SQLite does not check references by default
    e2e.wait_until_caught_up()
    ask = "SELECT convalidated, confdeltype::text FROM pg_constraint WHERE contype = 'f'"
    assert query(e2e.target, ask) == [(True, "a")]  # the constraint is VALID, although a row violates it

    with pytest.raises(Refused, match=r"public.child \(parent\) -> public.parent: 1 row refers to nothing"):
        run_cutover(e2e.settings, "main", cutover_request())
    assert not is_marked(e2e)
    found = run_cutover(e2e.settings, "main", cutover_request(leave_invalid=True)).certificate

    assert found["foreign_keys"][0]["orphans"] == 1
    assert query(e2e.target, ask) == [(False, "c")]
    with pytest.raises(psycopg2.errors.ForeignKeyViolation):
        query(e2e.target, "INSERT INTO child VALUES (5, 99)")


def test_another_target_that_has_halted_does_not_forbid_a_cutover(e2e: EndToEnd) -> None:
    halted = TableCondition(table_id=1, name="main.parent", state="HALTED", reason="no")
    with (
        Subscriber(e2e.broker.address, "main", "main/b", credit_bytes=1 << 20) as other,
        AdminClient(e2e.broker.address) as admin,
    ):
        other.open(0, 0)
        other.report(AdapterCondition.of([halted]))
        eventually(lambda: any("target b:" in alarm for b in admin.status("main").businesses for alarm in b.alarms))

        assert run_cutover(e2e.settings, "main", cutover_request()).certificate
    assert is_marked(e2e)


def test_a_row_that_arrives_during_the_comparison_forbids_a_cutover(
    e2e: EndToEnd, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_counters = PostgresCutover.set_counters

    def open_late(self: PostgresCutover, *arguments: Any) -> Any:
        app.execute("INSERT INTO parent VALUES (3, 'late')")
        return set_counters(self, *arguments)

    monkeypatch.setattr(PostgresCutover, "set_counters", open_late)
    with pytest.raises(Refused, match=r"main\.parent: 1 change arrived meanwhile"):
        run_cutover(e2e.settings, "main", cutover_request())
    assert not is_marked(e2e)


def test_a_row_that_arrives_right_before_the_mark_forbids_a_cutover(
    e2e: EndToEnd, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_mark = PostgresCutover.put_mark

    def open_late(self: PostgresCutover, *arguments: Any) -> None:
        app.execute("INSERT INTO parent VALUES (3, 'late')")
        e2e.wait_until_caught_up()
        put_mark(self, *arguments)

    monkeypatch.setattr(PostgresCutover, "put_mark", open_late)
    with pytest.raises(Refused, match=r"main\.parent: 1 change arrived meanwhile"):
        run_cutover(e2e.settings, "main", cutover_request())
    assert not is_marked(e2e)
    monkeypatch.undo()
    assert run_cutover(e2e.settings, "main", cutover_request()).certificate["equal"]


def test_writing_sessions_are_named_and_a_rehearsal_reports_all_findings(
    e2e: EndToEnd, app: sqlite3.Connection
) -> None:
    stop = threading.Event()

    def write() -> None:
        number = 100
        while not stop.wait(0.02):
            number += 1
            app.execute("INSERT INTO parent VALUES (?, 'busy')", (number,))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        e2e.until(lambda: query(e2e.target, "SELECT 1 FROM parent WHERE name = 'busy'"), "people at work")
        with pytest.raises(Refused, match=r"main\.parent"):
            run_cutover(e2e.settings, "main", cutover_request(quiet_s=3.0, wait_s=2.0))
        rehearsal = run_cutover(e2e.settings, "main", cutover_request(quiet_s=3.0, wait_s=2.0, rehearse=True))
    finally:
        stop.set()
        writer.join()
    assert any("main.parent" in block.what for block in rehearsal.blocks)
    assert not is_marked(e2e)


def test_writing_sessions_are_named_also_while_a_half_message_is_undecided(
    e2e: EndToEnd, app: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change is in the source's log, then undecided, then below the broker's end: which state is seen is chance."""

    def read_unlucky(*arguments: Any) -> Readiness:
        app.execute("INSERT INTO parent (name) VALUES ('busy')")
        e2e.wait_until_caught_up()
        return replace(read_readiness(*arguments), halves=1)

    monkeypatch.setattr("venus.adapters.cutover.run.read_readiness", read_unlucky)
    with pytest.raises(Refused, match=r"main\.parent: \d+ changes arrived meanwhile") as refused:
        run_cutover(e2e.settings, "main", cutover_request(wait_s=1.0))
    assert "1 undecided batch at the broker" in str(refused.value)


def test_a_kill_after_the_mark_is_finished_by_the_next_run(e2e: EndToEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(guarantees, "recreate_references", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_cutover(e2e.settings, "main", cutover_request())
    assert query(e2e.target, "SELECT state FROM venus.cutover") == [("CUT",)]
    monkeypatch.undo()

    again = run_cutover(e2e.settings, "main", cutover_request())

    assert again.resumed
    assert query(e2e.target, "SELECT state FROM venus.cutover") == [("DONE",)]
    assert query(e2e.target, "SELECT confdeltype::text FROM pg_constraint WHERE contype = 'f'") == [("c",)]
    assert run_cutover(e2e.settings, "main", cutover_request()).already
    for command in (resume, full_sync):
        with pytest.raises(Refused, match="the application's own"):
            command(e2e.settings, "main")


@pytest.mark.parametrize("dropped", [False, True], ids=["left-there", "dropped-at-the-source"])
def test_a_table_that_left_capture_forbids_a_cutover_until_it_is_dropped(
    e2e: EndToEnd, app: sqlite3.Connection, dropped: bool
) -> None:
    with closing(open_source(e2e.settings)) as source:
        (child,) = [t.schema.table_id for t in source.registry.read_registered_tables() if t.schema.name == "child"]
        source.installer.release([child])
        e2e.wait_until_caught_up()
        source.installer.drop_logs({child: "at noon"})
    if dropped:
        app.execute("DROP TABLE child")
        said, remedy = "main.child was dropped at the source and is still at the target", "drop it at the target"
    else:
        said, remedy = "main.child is not captured any more (at noon)", "venus install-triggers takes it up again"

    outcome = run_cutover(e2e.settings, "main", cutover_request(rehearse=True))
    assert [block.what for block in outcome.blocks] == [said]
    assert remedy in outcome.blocks[0].remedy
    assert [t["table"] for t in outcome.certificate["tables"]] == ["main.parent"]
    with pytest.raises(Refused, match=r"main\.child"):
        run_cutover(e2e.settings, "main", cutover_request())
    assert not is_marked(e2e)

    e2e.at_target("DROP TABLE child")
    run_cutover(e2e.settings, "main", cutover_request())
    assert is_marked(e2e)


def test_a_captured_table_that_was_dropped_at_the_target_forbids_a_cutover(e2e: EndToEnd) -> None:
    e2e.at_target("DROP TABLE child")
    with pytest.raises(Refused, match=r"main\.child is captured and not at the target"):
        run_cutover(e2e.settings, "main", cutover_request())


def test_differences_that_capture_never_saw_are_noticed(tmp_path: Path, database: str, second_database: str) -> None:
    with closing(psycopg2.connect(libpq(database))) as app:
        app.cursor().execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        app.commit()
        e2e = EndToEnd(tmp_path, database, second_database)
        e2e.install()
        e2e.load()
        e2e.start()
        e2e.until(partial(is_connected, e2e), "both adapters to connect")
        app.cursor().execute("SET session_replication_role = replica; UPDATE t SET v = 'bypassed' WHERE id = 1")
        app.commit()
        try:
            with pytest.raises(Refused, match=r"public\.t is not the same everywhere"):
                run_cutover(e2e.settings, "main", cutover_request())
            assert not is_marked(e2e)
        finally:
            e2e.stop()
            e2e.broker.stop()
