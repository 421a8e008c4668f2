"""Rows at a MariaDB target: exchanged unique values, values of every type, large rows, predicates."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance.targets.places import MariaTargetPlace
from tests.conformance.targets.playing import Stage
from tests.support.brokers.feed import INT, TEXT, Row, column, deletion, items, put, table, unique_label
from tests.support.waiting import eventually
from venus.adapters.dialects.verify_contract import Slice, Subject
from venus.adapters.targets.mysql import rowsql
from venus.codec.columns import to_columns
from venus.codec.row_bytes import Layout
from venus.model import Kind, LogicalType, TableSchema

pytestmark = pytest.mark.integration


def kind_of(kind: Kind, **more: Any) -> LogicalType:
    return LogicalType(kind=kind, **more)


#: For each type: values that must arrive, and values that must wait in quarantine.
VALUES: dict[str, tuple[LogicalType, tuple[str | bytes, ...], tuple[str, ...]]] = {
    "small": (kind_of(Kind.INT, length=2), ("-32768", "32767"), ()),
    "big": (kind_of(Kind.INT, length=8), ("-9223372036854775808", "9223372036854775807"), ()),
    "money": (kind_of(Kind.DECIMAL, precision=10, scale=2), ("0.10", "-99999999.99"), ("NaN",)),
    "wide": (kind_of(Kind.DECIMAL), ("1.0", "1.00", "NaN", "-Infinity", "1" * 80 + "." + "0" * 40), ()),
    "real": (kind_of(Kind.FLOAT, length=4), ("0.1", "1e+38"), ("NaN", "Infinity")),
    "double": (kind_of(Kind.FLOAT, length=8), ("0.30000000000000004", "5e-324", "1e+300"), ("-Infinity", "-0")),
    "text": (TEXT, ("", " ", "a ", "\t\n\r\b\f\v\\ \\N", "\\N", "'\"`%s", "größe \U0001f642 é", "x" * 100_000), ()),
    "short": (kind_of(Kind.TEXT, length=3), ("äöü", "ab "), ()),
    "padded": (kind_of(Kind.CHAR, length=5), ("ab   ", "     "), ()),
    "blob": (kind_of(Kind.BYTES), (b"", b"\x00\xff\n\t\\'"), ()),
    "flag": (kind_of(Kind.BOOL), ("t", "f"), ()),
    "day": (
        kind_of(Kind.DATE),
        ("0001-01-01", "9999-12-31", "2024-02-29"),
        ("0044-03-15 BC", "12345-01-02", "infinity"),
    ),
    "hour": (kind_of(Kind.TIME), ("00:00:00", "23:59:59.123456", "24:00:00"), ()),
    "moment": (
        kind_of(Kind.TIMESTAMP),
        ("2026-11-20 23:59:59.1", "1000-01-01 00:00:00", "9999-12-31 23:59:59.999999"),
        ("infinity", "10000-01-01 00:00:00", "0044-03-15 00:00:00 BC"),
    ),
    "instant": (
        kind_of(Kind.TIMESTAMPTZ),
        ("2038-01-19 03:14:08+00", "1900-01-01 00:00:00.000001+00"),
        ("-infinity", "0044-03-15 00:00:00+00 BC"),
    ),
    "key": (kind_of(Kind.UUID), ("0189d1c6-0000-7000-8000-00000000abcd",), ()),
    "span": (kind_of(Kind.INTERVAL), ("1 year 2 mons -3 days 04:05:06.789", "838:59:59"), ()),
    "json": (kind_of(Kind.JSON), ('{"a":  1.0, "a": 2}', "null"), ()),
    "zoned": (kind_of(Kind.TIMETZ), ("23:59:59.123456+02",), ()),
    "list": (LogicalType(kind=Kind.ARRAY, element=INT), ("{1,NULL,3}",), ()),
}


def make_table(number: int, name: str) -> TableSchema:
    return table(number, name, column(1, "id", INT), column(2, "value", VALUES[name][0]))


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


@pytest.mark.parametrize("statement", ["INSERT", "LOAD DATA"])
@pytest.mark.parametrize("way", ["load", "stream"])
def test_every_value_arrives_exactly_or_waits_in_quarantine(
    way: str, statement: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rowsql, "LOAD_ROWS_MIN", 1 if statement == "LOAD DATA" else 1 << 30)
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
    waiting = {(q.table.partition(".")[2], q.key) for q in stage.target.open_quarantine().list()}

    wanted: dict[str, dict[tuple[str, ...], Row]]
    wanted = {name: {(str(n),): (value,) for n, value in enumerate(VALUES[name][1], 1)} for name in VALUES}
    if way == "stream":
        for rows in wanted.values():
            rows["0",] = (None,)
    assert {name: read(stage, schema) for name, schema in schemas.items()} == wanted
    assert waiting == {
        (name, f'{{"id": "{n}"}}')
        for name, (_, fine, unfit) in VALUES.items()
        for n in range(len(fine) + 1, len(fine) + len(unfit) + 1)
    }
    assert stage.target.read_view().unaccounted_rows == 0


def test_keys_that_differ_only_in_case_or_blanks_are_different_rows(stage: Stage) -> None:
    keyed = table(1, "keyed", column(1, "id", TEXT), column(2, "v"))
    stage.feed.describe(keyed)
    stage.feed.cut(*(put(key, key) for key in ("a", "A", "a ", "ä", "")))
    stage.target.load()
    with stage.follow_in_thread():
        stage.feed.cut(put("A", "changed"), deletion("a"))
        stage.wait_until_applied(stage.feed.broker.next_offset)

    stage.compare_tables()


def test_a_target_gets_the_rows_of_its_predicate(stage: Stage) -> None:
    stage = stage.configure(where={"items": "amount < 10"})
    stage.feed.describe(items())
    stage.feed.cut(*(put(i, "x", i) for i in range(20)))
    stage.target.load()
    loaded = set(stage.place.rows(stage.settings, items()))
    with stage.follow_in_thread():
        stage.feed.cut(put(1, "leaves", 100), put(15, "enters", 5), put(16, "stays out", 99))
        stage.wait_until_applied(stage.feed.broker.next_offset)
    found = set(stage.place.rows(stage.settings, items()))

    assert loaded == {(str(i),) for i in range(10)}
    assert found == loaded - {("1",)} | {("15",)}


def test_a_cut_larger_than_memory_is_written_as_a_whole(stage: Stage) -> None:
    stage.feed.describe(unique_label(items()))
    stage.feed.cut(*(put(i, f"label {i}", i) for i in range(400)))
    stage = stage.configure(apply={"cut_group_rows_max": 50})
    stage.target.load()
    with stage.follow_in_thread():
        moved = [put(i, f"label {(i + 1) % 300}", i) for i in range(300)]
        stage.feed.cut(*moved, *(deletion(i) for i in range(300, 400)), put(999, "new", 1), batch_rows=40)
        eventually(lambda: stage.target.read_view().offset >= stage.feed.broker.next_offset, "the large cut")

    stage.compare_tables()


def test_a_resync_repairs_rows_that_differ_only_in_case(stage: Stage) -> None:
    place = stage.place
    assert isinstance(place, MariaTargetPlace)
    stage.feed.describe(items())
    stage.feed.cut(put(1, "Label", 1), put(2, "b", 2))
    stage.target.load()
    place.server.execute("UPDATE items SET label = 'label' WHERE id = 1", place.database)
    stage.target.resync("items")
    with stage.follow_in_thread():
        eventually(lambda: stage.table("shop.items").state == "ACTIVE", "the resync")

    stage.compare_tables()


def test_a_key_that_is_too_long_is_refused_by_name_before_any_row_is_written(stage: Stage) -> None:
    long = table(1, "long", column(1, "id", kind_of(Kind.TEXT, length=1000)), column(2, "v"))
    both = replace(items(2, "two"), columns=(*items().columns, column(4, "LABEL", TEXT)))
    found = stage.target.check([long, both])

    lines = [f.message for f in found if f.blocks]
    assert "shop.long: the key is 4,000 bytes long, InnoDB allows 3,072" in lines
    assert "shop.two: two columns would be called label: MariaDB and MySQL ignore their case" in lines
