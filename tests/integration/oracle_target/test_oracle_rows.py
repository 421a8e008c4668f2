"""Rows at an Oracle target on the stand-in: each value arrives exactly or waits, and no other row is ever changed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Any

import pymysql
import pytest

from tests.conformance.targets.places import OracleTargetPlace
from tests.conformance.targets.playing import Stage
from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import INT, TEXT, Row, column, deletion, items, put, table, unique_label
from tests.support.oracle.standin import SCHEMA
from tests.support.processes.forks import ForkedModule
from tests.support.waiting import eventually
from venus.adapters.dialects.verify_contract import Slice, Subject
from venus.adapters.targets.relational.database import RelationalDatabase, open_database
from venus.adapters.targets.relational.session import RelationalSession
from venus.codec.columns import to_columns
from venus.codec.row_bytes import Layout
from venus.model import Kind, LogicalType, TableSchema

pytestmark = pytest.mark.integration


def kind_of(kind: Kind, **more: Any) -> LogicalType:
    return LogicalType(kind=kind, **more)


#: For each kind: the type, values that arrive exactly, values that Oracle would change.
VALUES: dict[str, tuple[LogicalType, tuple[str | bytes, ...], tuple[str | bytes, ...]]] = {
    "number": (INT, ("9223372036854775807", "-9223372036854775808", "0"), ()),
    "short": (kind_of(Kind.INT, length=2), ("32767",), ()),
    "money": (kind_of(Kind.DECIMAL, precision=12, scale=2), ("-1234567890.50", "0.00"), ("NaN",)),
    "exact": (kind_of(Kind.DECIMAL), ("12345678901234567890123456789.12345678", "-0.000001"), ("1" * 39, "Infinity")),
    "wide": (kind_of(Kind.DECIMAL, precision=60, scale=2), ("1" * 58 + ".25",), ()),
    "real": (kind_of(Kind.FLOAT, length=8), ("1.5", "-2.2250738585072014e-308"), ("NaN", "-0", "-Infinity")),
    "single": (kind_of(Kind.FLOAT, length=4), ("0.1",), ()),
    "words": (TEXT, ("", "\u00e4\U0001f600\u4e2d ", "tab\t\n\\ '", "x" * 100_000, "NULL"), ()),
    "few": (kind_of(Kind.TEXT, length=4), ("four", "\U0001f600" * 4), ("", "fiver")),
    "padded": (kind_of(Kind.CHAR, length=4), ("a   ",), ()),
    "octets": (kind_of(Kind.BYTES), (b"", b"\x00\xff\x27\x5c", b"\x00" * 100_000), ()),
    "truth": (kind_of(Kind.BOOL), ("t", "f"), ()),
    "day": (kind_of(Kind.DATE), ("0001-01-01", "9999-12-31"), ("0044-03-15 BC", "1582-10-10", "infinity")),
    "hour": (kind_of(Kind.TIME), ("24:00:00", "23:59:59.123456"), ()),
    "moment": (
        kind_of(Kind.TIMESTAMP, precision=6),
        ("2026-11-20 23:59:59.000001", "2026-11-20 00:00:00"),
        ("12026-01-01 00:00:00",),
    ),
    "instant": (kind_of(Kind.TIMESTAMPTZ, precision=6), ("2026-11-20 23:59:59.5+00",), ("infinity",)),
    "span": (kind_of(Kind.INTERVAL), ("1 year 2 mons -3 days",), ()),
    "uuid": (kind_of(Kind.UUID), ("00010203-0405-0607-0809-0a0b0c0d0e0f",), ()),
    "json": (kind_of(Kind.JSON), ('{"a":  1.0, "a": 2}', "null"), ()),
    "zoned": (kind_of(Kind.TIMETZ), ("23:59:59.123456+02",), ()),
    "list": (LogicalType(kind=Kind.ARRAY, element=INT), ("{1,NULL,3}", "{}"), ()),
}


def place_of(stage: Stage) -> OracleTargetPlace:
    assert isinstance(stage.place, OracleTargetPlace)
    return stage.place


def make_table(number: int, name: str) -> TableSchema:
    return table(number, f"of_{name}", column(1, "id", INT), column(2, "value", VALUES[name][0]))


def read(stage: Stage, schema: TableSchema) -> dict[tuple[str, ...], Row]:
    """Read a table as `venus verify` does."""
    subject = Subject(schema=schema)
    with closing(stage.target.open_reader()) as reader:
        reader.begin(subject)
        sections = list(reader.scan(subject, Slice(), None))
        reader.end()
    found: dict[tuple[str, ...], Row] = {}
    for section in sections:
        columns = to_columns(section.record_ids, section.rows, Layout.of(schema))
        found |= {(str(key),): tuple(rest) for key, *rest in zip(*columns, strict=True)}
    return found


@pytest.mark.parametrize("way", ["load", "stream"])
def test_every_value_arrives_exactly_or_waits_in_quarantine(way: str, stage: Stage) -> None:
    schemas = {name: make_table(number, name) for number, name in enumerate(VALUES, 1)}
    stage = stage.configure(on_error="quarantine")
    stage.feed.describe(*schemas.values())
    if way == "stream":
        stage.feed.cut(*(put(0, None, table=s.table_id) for s in schemas.values()))
        stage.target.load()
    for name, schema in schemas.items():
        _, fine, unfit = VALUES[name]
        stage.feed.cut(*(put(n, value, table=schema.table_id) for n, value in enumerate((*fine, *unfit), 1)))
    if way == "load":
        stage.target.load()
    else:
        stage.follow_to_end()
    waiting = {(q.table.partition(".of_")[2], q.key): q.message for q in stage.target.open_quarantine().list()}

    wanted: dict[str, dict[tuple[str, ...], Row]]
    wanted = {name: {(str(n),): (value,) for n, value in enumerate(VALUES[name][1], 1)} for name in VALUES}
    if way == "stream":
        for rows in wanted.values():
            rows["0",] = (None,)
    assert {name: read(stage, schema) for name, schema in schemas.items()} == wanted
    assert set(waiting) == {
        (name, f'{{"id": "{n}"}}')
        for name, (_, fine, unfit) in VALUES.items()
        for n in range(len(fine) + 1, len(fine) + len(unfit) + 1)
    }
    assert all("column VALUE cannot hold a value of it: " in message for message in waiting.values())
    assert stage.target.read_view().unaccounted_rows == 0


def test_only_the_refused_row_waits_whatever_was_written_before_it(stage: Stage) -> None:
    """Rows with empty LOBs are written first; they are rolled back before the refused row is searched."""
    stage.feed.describe(items())
    stage.feed.cut(put(9, "old", 9))
    stage = stage.configure(on_error="quarantine")
    stage.target.load()
    stage.place.refuse(items(), "bad")
    with stage.follow_in_thread():
        stage.feed.cut(put(1, "", 1), put(2, "bad", 2), put(3, "", 3), put(4, "fine", 4))
        stage.wait_until_applied(stage.feed.broker.next_offset)

    assert [row.key for row in stage.target.open_quarantine().list()] == ['{"id": "2"}']
    assert read(stage, items()) == {("1",): ("", "1"), ("3",): ("", "3"), ("4",): ("fine", "4"), ("9",): ("old", "9")}


def test_an_empty_key_and_an_empty_short_text_wait_and_an_empty_clob_is_stored(stage: Stage) -> None:
    short = column(3, "short", kind_of(Kind.TEXT, length=9))
    schema = table(1, "texts", column(1, "id", TEXT), column(2, "long"), short)
    stage = stage.configure(on_error="quarantine")
    stage.feed.describe(schema)
    stage.feed.cut(put("a", "", "x"), put("b", None, "x"))
    stage.target.load()
    with stage.follow_in_thread():
        stage.feed.cut(put("", "x", "x"), put("c", "", "y"), put("d", "x", ""), put("a", None, "z"), put("b", "", None))
        stage.wait_until_applied(stage.feed.broker.next_offset)
        waiting = {q.key: q for q in stage.target.open_quarantine().list()}
        stage.target.open_quarantine().skip([waiting['{"id": ""}'].id], reason="a test")
        stage.feed.cut(deletion(""), put("e", "x", "x"))  # the deleted row does not exist
        stage.wait_until_applied(stage.feed.broker.next_offset)

    assert set(waiting) == {'{"id": ""}', '{"id": "d"}'}
    assert {q.message.partition(": ")[2] for q in waiting.values()} == {"Oracle stores NULL for an empty text"}
    rows = {("a",): (None, "z"), ("b",): ("", None), ("c",): ("", "y"), ("e",): ("x", "x")}
    assert read(stage, schema) == rows
    assert stage.table("shop.texts").state == "ACTIVE"
    assert {q.key: q.state for q in stage.target.open_quarantine().list(everything=True)}['{"id": ""}'] == "SKIPPED"


def test_a_cut_larger_than_memory_is_written_as_a_whole(stage: Stage) -> None:
    stage.feed.describe(unique_label(items()))
    stage.feed.cut(*(put(i, f"label {i}", i) for i in range(400)))
    stage = stage.configure(apply={"cut_group_rows_max": 50})
    stage.target.load()
    with stage.follow_in_thread():
        for shift in (1, 2):
            moved = [put(i, f"label {(i + shift) % 300}", i) for i in range(300)]
            stage.feed.cut(
                *moved,
                *(deletion(i) for i in range(300, 400)),
                put(999, "new", 1),
                put(0, f"last {shift}", 1),
                batch_rows=40,
            )
        eventually(lambda: stage.target.read_view().offset >= stage.feed.broker.next_offset, "the large cuts")

    stage.compare_tables()
    staged = "table_schema = 'APP' AND table_name LIKE 'venus\\_s\\_%'"
    left = place_of(stage).query(f"SELECT table_name FROM information_schema.tables WHERE {staged}")
    assert [place_of(stage).query(f'SELECT COUNT(*) FROM "{name}"') for (name,) in left] == [[(0,)]]


def test_a_target_gets_the_rows_of_its_predicate(stage: Stage) -> None:
    stage = stage.configure(where={"items": "amount < 10"})
    stage.feed.describe(items())
    stage.feed.cut(*(put(i, "x", i) for i in range(20)))
    stage.target.load()
    loaded = set(stage.place.rows(stage.settings, items()))
    with stage.follow_in_thread():
        stage.feed.cut(put(1, "leaves", 100), put(15, "enters", 5), put(16, "stays out", 99))
        stage.wait_until_applied(stage.feed.broker.next_offset)
    assert loaded == {(str(i),) for i in range(10)}
    assert set(stage.place.rows(stage.settings, items())) == loaded - {("1",)} | {("15",)}
    changed = stage.configure(where={"items": "amount < 12"})
    with changed.follow_in_thread():
        eventually(lambda: {("10",), ("11",)} <= set(changed.place.rows(changed.settings, items())), "more rows")
    state = changed.table("shop.items")
    assert (state.predicate, state.rows_brought) == ("amount < 12", 2)


def test_a_resync_notices_a_lob_that_differs(stage: Stage) -> None:
    stage.feed.describe(items())
    stage.feed.cut(put(1, "Label", 1), put(2, "b", 2), put(3, None, 3), put(4, "", 4))
    stage.target.load()
    place_of(stage).query("""UPDATE "ITEMS" SET "LABEL" = CASE "ID" WHEN 1 THEN 'label' WHEN 3 THEN 'x' END""")
    stage.target.resync("items")
    with stage.follow_in_thread():
        eventually(lambda: stage.table("shop.items").state == "ACTIVE", "the resync")

    assert read(stage, items()) == {("1",): ("Label", "1"), ("2",): ("b", "2"), ("3",): (None, "3"), ("4",): ("", "4")}


@contextmanager
def watched_labels(place: OracleTargetPlace) -> Iterator[set[tuple[int, int, int]]]:
    """Collect (rows, different labels, whether the labels match the offset) repeatedly, each from one snapshot."""
    seen: set[tuple[int, int, int]] = set()
    ended = threading.Event()
    text = """SELECT COUNT(*), COUNT(DISTINCT "LABEL"),
        MAX("AMOUNT") = (SELECT APPLIED_OFFSET FROM VENUS_APPLIED) FROM "ITEMS" """

    def read_statement() -> None:
        with closing(place.standin.server.connect(SCHEMA, autocommit=True)) as connection:
            while not (seen and ended.is_set()):
                cursor = connection.cursor()
                cursor.execute(text)
                seen.add(cursor.fetchall()[0])

    reader = threading.Thread(target=read_statement)
    reader.start()
    try:
        yield seen
    finally:
        ended.set()
        reader.join()


def test_rows_and_their_offset_become_visible_together(stage: Stage, broker: FakeDelivery) -> None:
    """Every row has the offset after its cut; another session never sees one without the other."""
    stage.feed.describe(items())
    stage.feed.cut(*(put(i, 0, 50) for i in range(50)))
    stage.target.load()
    with watched_labels(place_of(stage)) as seen, stage.follow_in_thread():
        for n in range(1, 25):
            stage.feed.cut(*(put(i, n, broker.next_offset + 50) for i in range(50)), batch_rows=20)
            stage.wait_until_applied(broker.next_offset)

    assert seen == {(50, 1, 1)}
    stage.compare_tables()


def test_a_killed_load_and_a_killed_stream_leave_whole_cuts(stage: Stage, broker: FakeDelivery) -> None:
    stage.feed.describe(items())
    stage.feed.cut(*(put(i, "0", i) for i in range(100)))
    place = place_of(stage)
    with ForkedModule("tests.support.faults.killed_session", broker.address, place.name, place.url) as victim:
        killed = sum(victim.run("load", step, "before", 0) for step in (1, 2, 3))
        stage.target.load()
        for n, (step, moment) in enumerate(place.kills, 1):
            stage.feed.cut(*(put(i, n, i) for i in range(100)), batch_rows=30)
            killed += victim.run("apply", step, moment, broker.next_offset)
            assert place.query('SELECT COUNT(DISTINCT "LABEL") FROM "ITEMS"') == [(1,)]
    stage.follow_to_end()

    assert killed >= 6
    stage.compare_tables()


def test_a_lost_session_is_reopened(stage: Stage) -> None:
    stage.feed.describe(items())
    stage.feed.cut(put(1, "a", 1))
    stage.target.load()
    place = place_of(stage)
    with stage.follow_in_thread() as reports:
        eventually(lambda: bool(reports), "the loop")
        for (session,) in place.query("SELECT id FROM information_schema.processlist WHERE db = 'APP'"):
            with suppress(pymysql.OperationalError):  # the session has ended by itself, or is the one that asks
                place.query(f"KILL {session}")
        stage.feed.cut(put(2, "b", 2))
        stage.wait_until_applied(stage.feed.broker.next_offset)

    stage.compare_tables()


def test_a_split_is_loaded_once(stage: Stage) -> None:
    """A second attempt at a split has nothing to do, and raises no error."""
    stage.feed.describe(items())
    stage.target.load()
    target = open_database(stage.settings, stage.target.name)
    claim = {"load_id": "of a test", "split": 1, "table_id": 1, "attempt": "first"}
    with closing(target.connect("load")) as session:
        assert [target.run_own(session, "claim_split", **claim) for _ in range(2)] == [1, 0]


def test_a_second_writer_waits_for_the_position_and_reads_the_new_one(stage: Stage) -> None:
    """Two processes that both believe they hold the target's lock never apply from the same position."""
    stage.feed.describe(items())
    stage.feed.cut(put(1, "a", 1))
    stage.target.load()
    target = open_database(stage.settings, stage.target.name)
    waits = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    with closing(target.connect("first")) as first, closing(target.connect("second")) as second:
        (offset, control) = hold_position(target, first)
        with ThreadPoolExecutor(1) as pool:
            later = pool.submit(hold_position, target, second)
            # a query within 0.1 s gets InnoDB's last answer again
            eventually(lambda: later.done() or place_of(stage).query(waits), "the second writer", every_s=0.2)
            first.run(f"{target.own_text(first, 'raise_control')}; COMMIT")
            assert later.result(60) == (offset, control + 1)


def hold_position(target: RelationalDatabase, session: RelationalSession) -> tuple[Any, ...]:
    """Begin a transaction that locks the position, as the apply loop does."""
    found = session.row(f"BEGIN; {target.own_text(session, 'hold_position')}")
    assert found is not None
    return found
