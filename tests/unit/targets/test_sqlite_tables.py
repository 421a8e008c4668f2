"""Values, existing tables and new versions at a SQLite target: every value arrives exactly or is refused by name."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.feed import INT, TEXT, column, items, settings_for, table
from venus.adapters.dialects.verify_contract import Slice, Subject, key_forms
from venus.adapters.targets.relational.session import Refusal, transaction
from venus.adapters.targets.sqlite import ddl, rowsql
from venus.adapters.targets.sqlite.database import SqliteDatabase
from venus.adapters.targets.sqlite.ddl import plan_step
from venus.adapters.targets.sqlite.session import SqliteSession
from venus.adapters.targets.sqlite.tables import read_columns
from venus.adapters.targets.sqlite.types import RULES
from venus.adapters.targets.sqlite.verify import SqliteTargetReader
from venus.codec.columns import Value, from_columns, to_columns
from venus.codec.row_bytes import Layout
from venus.errors import Refused
from venus.model import Column, ForeignKey, Index, Kind, LogicalType, TableSchema


def kind_of(kind: Kind, **more: Any) -> LogicalType:
    return LogicalType(kind=kind, **more)


MONEY = kind_of(Kind.DECIMAL, precision=10, scale=2)
#: For each type: values that must arrive, and values that must be refused.
VALUES: dict[str, tuple[LogicalType, tuple[Value, ...], tuple[str, ...]]] = {
    "small": (kind_of(Kind.INT, length=2), ("-32768", "32767"), ()),
    "big": (INT, ("-9223372036854775808", "9223372036854775807"), ("9223372036854775808",)),
    "money": (MONEY, ("0.10", "-99999999.99", "NaN"), ()),
    "wide": (
        kind_of(Kind.DECIMAL),
        ("1.0", "1.00", "-0.0", "NaN", "-Infinity", "18446744073709551615", "1" * 80 + "." + "0" * 40),
        (),
    ),
    "real": (kind_of(Kind.FLOAT, length=4), ("0.1", "1e+38", "Infinity"), ("NaN", "-0")),
    "double": (
        kind_of(Kind.FLOAT, length=8),
        ("0.30000000000000004", "5e-324", "1.7976931348623157e+308", "9.007199254740992e+15", "-Infinity", "0"),
        ("NaN", "-0"),
    ),
    "text": (TEXT, ("", " ", "a ", "1e5", "0x10", "1.0", "NULL", "nul\0inside", "größe \U0001f642", "x" * 100_000), ()),
    "padded": (kind_of(Kind.CHAR, length=5), ("ab   ", "     "), ()),
    "blob": (kind_of(Kind.BYTES), (b"", b"\x00\xff\n\t\\'", bytes(range(256))), ()),
    "flag": (kind_of(Kind.BOOL), ("t", "f"), ()),
    "day": (kind_of(Kind.DATE), ("0001-01-01", "0044-03-15 BC", "12345-01-02", "infinity"), ()),
    "hour": (kind_of(Kind.TIME), ("00:00:00", "23:59:59.123456", "24:00:00"), ()),
    "moment": (kind_of(Kind.TIMESTAMP), ("2026-11-20 23:59:59.1", "0044-03-15 00:00:00 BC", "-infinity"), ()),
    "instant": (
        kind_of(Kind.TIMESTAMPTZ),
        ("2038-01-19 03:14:08+00", "0001-01-01 00:00:00.000001+00", "0044-03-15 00:00:00+00 BC", "infinity"),
        (),
    ),
    "zoned": (kind_of(Kind.TIMETZ), ("23:59:59.123456+02",), ()),
    "span": (kind_of(Kind.INTERVAL), ("1 year 2 mons -3 days 04:05:06.789", "838:59:59"), ()),
    "json": (kind_of(Kind.JSON), ('{"a":  1.0, "a": 2}', "null", "1e5"), ()),
    "key": (kind_of(Kind.UUID), ("0189d1c6-0000-7000-8000-00000000abcd",), ()),
    "list": (LogicalType(kind=Kind.ARRAY, element=INT), ("{1,NULL,3}",), ()),
    "other": (kind_of(Kind.NATIVE), ("(1,2)",), ()),
}


class Target:
    """A file with tables created by VENUS."""

    def __init__(self, folder: Path) -> None:
        settings = settings_for("127.0.0.1:1", {"s": f"sqlite:///{folder}/copy.db"})
        self.database = SqliteDatabase(settings, "s")
        self.database.install()
        self.session: SqliteSession = self.database.connect()

    def create(self, schema: TableSchema) -> None:
        self.session.run(ddl.create_table(self.database.place(schema)))

    def insert(self, schema: TableSchema, rows: list[tuple[Value, ...]], *, into: TableSchema | None = None) -> None:
        record_ids, packed = from_columns([*zip(*rows, strict=True)], Layout.of(schema))
        with transaction(self.session):
            rowsql.insert_rows(self.session, self.database.row_sql(into or schema), schema, record_ids, packed)

    def read(self, schema: TableSchema, keys: list[tuple[str, ...]] | None = None) -> list[tuple[Value, ...]]:
        """Read a table as `venus verify` does."""
        subject, layout = Subject(schema=schema), Layout.of(schema)
        found: list[tuple[Value, ...]] = []
        with closing(SqliteTargetReader(self.database)) as reader:
            reader.begin(subject)
            sections = reader.scan(subject, Slice(), None) if keys is None else reader.find_rows(subject, keys)
            for section in sections:
                found += zip(*to_columns(section.record_ids, section.rows, layout), strict=True)
        return found


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)


def schema_of(kind: LogicalType) -> TableSchema:
    return table(1, "things", column(1, "id", INT), column(2, "value", kind))


@pytest.mark.parametrize("name", VALUES)
def test_every_value_arrives_exactly_or_is_refused(name: str, target: Target) -> None:
    kind, fine, unfit = VALUES[name]
    schema = schema_of(kind)
    target.create(schema)
    rows: list[tuple[Value, ...]] = [(str(n), value) for n, value in enumerate((None, *fine))]
    target.insert(schema, rows)

    assert target.read(schema) == rows
    for value in unfit:
        with pytest.raises(Refusal):
            target.insert(schema, [("100", value)])
    assert target.read(schema) == rows


def test_every_kind_has_a_rule_and_a_value_in_this_test() -> None:
    assert set(RULES) == set(Kind) == {kind.kind for kind, _, _ in VALUES.values()}


@pytest.mark.parametrize("name", [name for name in VALUES if name not in ("real", "double")])
def test_rows_are_found_and_deleted_by_keys_of_every_type(name: str, target: Target) -> None:
    kind, fine, _ = VALUES[name]
    schema = table(1, "things", column(1, "value", kind), column(2, "number", INT), key=("value",))
    target.create(schema)
    rows: list[tuple[Value, ...]] = [(value, str(n)) for n, value in enumerate(fine)]
    target.insert(schema, rows)
    layout, sql = Layout.of(schema), target.database.row_sql(schema)
    record_ids, _ = from_columns([*zip(*rows, strict=True)], layout)
    forms = key_forms([*zip(*rows, strict=True)], schema)

    assert sorted(target.read(schema, forms), key=str) == sorted(rows, key=str)
    with transaction(target.session):
        rowsql.delete_keys(target.session, sql, layout, record_ids)
    assert target.read(schema) == []


def test_a_decimal_key_is_found_by_its_number(target: Target) -> None:
    schema = table(1, "things", column(1, "value", kind_of(Kind.DECIMAL)), key=("value",))
    target.create(schema)
    target.insert(schema, [("1.50",), ("150",)])

    assert target.read(schema, [("1.5",), ("150",)]) == [("1.50",), ("150",)]


# -- existing tables ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("(id INTEGER PRIMARY KEY, label TEXT, amount INTEGER)", []),
        ("(id INTEGER PRIMARY KEY, label VARCHAR(20), amount BIGINT, more)", []),
        ("(id INT UNIQUE NOT NULL, label TEXT, amount INTEGER) STRICT", []),
        (
            "(id INTEGER PRIMARY KEY, label NUMERIC, amount INTEGER)",
            ["items.label is NUMERIC, which has NUMERIC affinity: the source needs TEXT, so that no value is altered"],
        ),
        (
            "(id INTEGER PRIMARY KEY, label, amount DECIMAL(10,2))",
            [
                "items.label is without a type, which has BLOB affinity: the source needs TEXT, so that no value is "
                "altered",
                "items.amount is DECIMAL(10,2), which has NUMERIC affinity: the source needs INTEGER, so that no value "
                "is altered",
            ],
        ),
        ("(id INTEGER PRIMARY KEY, label TEXT NOT NULL)", ["items.label is NOT NULL, the source allows NULL"]),
        (
            "(id INTEGER PRIMARY KEY, label TEXT, amount INT, x INT NOT NULL)",
            ["items.x is NOT NULL without a default, and the source does not have it"],
        ),
        ("(id INTEGER, label TEXT, amount INT)", ["items has no primary key or unique index on (id)"]),
        (
            "(id INTEGER COLLATE NOCASE UNIQUE, label TEXT, amount INT)",
            ["the key of items has a collation in which keys that differ at the source are equal"],
        ),
    ],
)
def test_an_existing_table_is_used_or_refused_by_name(made: str, says: list[str], target: Target) -> None:
    target.session.run(f"CREATE TABLE items {made}")

    found = target.database.table_problems(target.session, target.database.place(items()))

    assert found is not None
    assert [line for line in found if "is missing" not in line] == says


def test_triggers_views_and_rows_are_refused(target: Target) -> None:
    target.session.run("CREATE TABLE items (id INTEGER PRIMARY KEY, label TEXT, amount INT)")
    target.session.run("CREATE TRIGGER twice AFTER INSERT ON items BEGIN SELECT 1; END")
    target.session.run(
        "CREATE VIEW others AS SELECT 1 AS id; CREATE TABLE full (id INTEGER PRIMARY KEY, label, amount)"
    )
    places = target.database.place_all([items(), items(2, "others")])

    with pytest.raises(Refused) as refused:
        target.database.refuse_existing(target.session, places)
    assert str(refused.value).split("\n") == [
        "items has trigger twice, which would repeat what the source's triggers have done",
        "others exists already and is a view",
    ]
    target.session.run("DROP TRIGGER twice; INSERT INTO items (id) VALUES (1)")
    with pytest.raises(Refused, match="items has rows already: empty it"):
        target.database.refuse_existing(target.session, places[:1])


def test_impossible_names_are_refused(target: Target) -> None:
    found = [items(), items(2, "ITEMS"), items(3, "sqlite_stat1"), items(4, "venus_applied")]
    found.append(table(5, "columns", column(1, "id", INT), column(2, "a"), column(3, "A")))

    with pytest.raises(Refused) as refused:
        target.database.place_all(found)

    assert str(refused.value).split("\n") == [
        "shop.sqlite_stat1: names that begin with sqlite_ belong to SQLite",
        "shop.venus_applied: names that begin with venus_ belong to VENUS",
        "shop.columns: two columns would be called a: SQLite's names ignore their case",
        "shop.ITEMS and shop.items would both become items",
    ]


# -- DDL ---------------------------------------------------------------------------------------------------------------


def test_a_table_has_its_keys_defaults_and_indexes(target: Target) -> None:
    parent = items()
    key = ForeignKey(
        name="fk", columns=("item",), referred_namespace="shop", referred_table="items", referred_columns=("id",)
    )
    child = table(
        2,
        "lines",
        column(1, "item", INT),
        column(2, "part", TEXT),
        column(3, "price", MONEY, default_sql="1.5"),
        column(4, "flag", kind_of(Kind.BOOL), default_sql="true"),
        column(5, "made", kind_of(Kind.TIMESTAMP), default_sql="CURRENT_TIMESTAMP"),
        column(6, "note", TEXT, default_sql="'it''s'", nullable=False),
        key=("item", "part"),
        foreign_keys=(replace(key, on_delete="CASCADE"),),
        indexes=(Index(name="by price", columns=("price", "part"), unique=True),),
    )
    places = target.database.place_all([parent, child])
    for one in places:
        target.session.run(ddl.create_table(one, places))
        for text in ddl.index_statements(one):
            target.session.run(text)
    target.session.run("INSERT INTO lines (item, part) VALUES (1, 'a')")

    assert target.session.rows("SELECT price, flag, made, note FROM lines") == [("1.50", 1, None, "it's")]
    assert target.session.row("SELECT \"table\", on_delete FROM pragma_foreign_key_list('lines')") == (
        "items",
        "CASCADE",
    )
    assert target.session.rows("SELECT name FROM pragma_index_list('lines') WHERE origin = 'c'") == [
        ("lines.by price",)
    ]
    with pytest.raises(Refusal, match="UNIQUE constraint failed") as refusal:
        target.session.run("INSERT INTO lines (item, part, price) VALUES (1, 'a', '2.00')")
    with pytest.raises(Refusal, match="cannot store TEXT value in INTEGER column"):  # another program cannot either
        target.session.run("INSERT INTO lines (item, part, price) VALUES ('x', 'b', '3.00')")
    assert (refusal.value.table, refusal.value.sqlstate) == (("main", "lines"), "SQLITE_CONSTRAINT_PRIMARYKEY")


def evolve(target: Target, old: TableSchema, new: TableSchema) -> str:
    """Change a table to another version; return the reason if that is refused."""
    before, after = target.database.place(old), target.database.place(new)
    present = {c.name.lower(): c for c in read_columns(target.session, before)}
    step = plan_step(before, after, present, "s")
    for text in step.statements:
        target.session.run(text)
    return step.refused


def version(schema: TableSchema, *columns: Column, **more: Any) -> TableSchema:
    return replace(schema, version=schema.version + 1, columns=columns, **more)


def test_columns_are_added_dropped_and_exchange_their_names(target: Target) -> None:
    old = table(1, "t", column(1, "id", INT), column(2, "a"), column(3, "b", INT), column(4, "c", nullable=False))
    new = version(
        old, column(1, "id", INT), column(2, "b"), column(3, "a", INT), column(5, "n", MONEY, default_sql="7")
    )
    target.create(old)
    target.insert(old, [("1", "x", "5", "z")])

    assert evolve(target, old, new) == ""
    target.insert(new, [("2", "y", None, "8.00")])
    target.insert(old, [("3", "older", "6", "lost")], into=new)

    assert target.read(new) == [
        ("1", "x", "5", "7.00"),
        ("2", "y", None, "8.00"),
        ("3", "older", "6", "7.00"),
    ]


def test_a_larger_scale_pads_every_value(target: Target) -> None:
    old = schema_of(kind_of(Kind.DECIMAL, precision=5, scale=0))
    new = replace(schema_of(kind_of(Kind.DECIMAL, precision=8, scale=3)), version=2)
    target.create(old)
    target.insert(old, [("1", "5"), ("2", "NaN"), ("3", None)])

    assert evolve(target, old, new) == ""
    target.insert(old, [("4", "-7"), ("5", "NaN")], into=new)

    assert [value for _, value in target.read(new)] == ["5.000", "NaN", None, "-7.000", "NaN"]


@pytest.mark.parametrize(
    ("was", "now", "refused"),
    [
        (kind_of(Kind.INT, length=2), INT, False),
        (TEXT, kind_of(Kind.CHAR, length=9), False),
        (MONEY, kind_of(Kind.DECIMAL), False),
        (INT, MONEY, True),
        (MONEY, kind_of(Kind.DECIMAL, precision=10, scale=1), True),
        (kind_of(Kind.DECIMAL), MONEY, True),
        (kind_of(Kind.FLOAT, length=4), kind_of(Kind.FLOAT, length=8), True),
        (kind_of(Kind.DATE), kind_of(Kind.TIMESTAMP), True),
        (kind_of(Kind.BOOL), INT, True),
    ],
)
def test_a_type_changes_only_if_every_stored_value_stays_right(
    was: LogicalType, now: LogicalType, refused: bool, target: Target
) -> None:
    old, new = schema_of(was), replace(schema_of(now), version=2)
    target.create(old)

    found = evolve(target, old, new)

    assert bool(found) is refused
    assert not refused or "`venus migrate --target s --empty-meanwhile` loads it again" in found


def test_another_key_or_name_is_refused(target: Target) -> None:
    old = items()
    target.create(old)

    assert "the key has changed to (label)" in evolve(target, old, replace(old, version=2, key=("label",)))
    assert "the table was renamed" in evolve(target, old, replace(old, version=2, name="other"))
    again = version(old, column(1, "id", INT), column(4, "label"), column(3, "amount", INT))
    assert "has a column label already" in evolve(target, old, again)
