"""Names, tables and steps to another version at an Oracle target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.brokers.feed import INT, TEXT, column, items, make_referring_schema, table
from venus.adapters.targets.oracle.ddl import (
    OracleTargetColumn,
    can_widen,
    comment_statements,
    create_table,
    find_long_names,
    foreign_key_statements,
    place_all,
    place_table,
    plan_step,
    side_definitions,
)
from venus.adapters.targets.oracle.rowsql import row_sql
from venus.adapters.targets.oracle.session import split_statements
from venus.adapters.targets.oracle.tables import OracleTableFacts, format_type, table_differences
from venus.adapters.targets.relational.place import VersionStep
from venus.errors import Refused
from venus.model import LogicalType, TableSchema


def step(
    before: TableSchema, after: TableSchema, *, has_begun: bool = False, **present: OracleTargetColumn
) -> VersionStep:
    old, new = place_table(before, "APP", "auto"), place_table(after, "APP", "auto")
    there = {old.fold(c.name): target_column(old.fold(c.name), old.types[c.name]) for c in before.columns}
    return plan_step(old, new, there | present, "o", has_begun=has_begun)


def target_column(name: str, declared: str, **more: bool) -> OracleTargetColumn:
    return OracleTargetColumn(name=name, declared=declared, not_null=more.get("not_null", False))


def test_plain_names_are_unquoted_and_others_are_kept() -> None:
    schema = table(1, "orders", column(1, "id", INT), column(2, "mixedCase"))
    assert [place_table(schema, "APP", n).sql for n in ("auto", "keep", "lower")] == [
        '"ORDERS"',
        '"orders"',
        '"orders"',
    ]
    assert '"mixedCase" CLOB' in create_table(place_table(schema, "APP", "auto"))


def test_impossible_names_are_refused() -> None:
    quoted, clash = table(1, 'a"b', column(1, "id", INT)), table(2, "c", column(1, "id", INT), column(2, "ID"))
    with pytest.raises(Refused, match="no name with a quote") as refused:
        place_all([quoted, clash], "APP", "auto", "o")
    assert "two columns would be called id" in str(refused.value)
    with pytest.raises(Refused, match="an Oracle table cannot have a column named ROWID"):
        place_all([table(1, "c", column(1, "id", INT), column(2, "rowid"))], "APP", "auto", "o")
    long = table(1, "a" * 31, column(1, "id", INT))
    assert find_long_names(place_table(long, "APP", "auto"), 30) == ["A" * 31]


def test_own_tables_have_the_defaults_of_the_columns() -> None:
    """At the target, older rows of the full data get the column's default."""
    schema = table(1, "items", column(1, "id", INT), column(2, "n", INT, default_sql="7"), column(3, "label"))
    placed = place_table(schema, "APP", "auto")
    assert side_definitions(placed, ("id", "n", "label")) == (
        '"ID" NUMBER(19) NOT NULL, "N" NUMBER(19) DEFAULT 7, "LABEL" CLOB'
    )


def test_a_temporary_table_is_named_after_its_columns() -> None:
    """The table stays in the schema, where another column rule for the same version would find it."""
    schema = items()
    fewer = replace(schema, columns=schema.columns[:2])
    stages = {row_sql(place_table(s, "APP", "auto"), g).stage for s in (schema, fewer) for g in ("main/o", "main/p")}
    assert len(stages) == 4


def test_a_long_comment_is_shortened() -> None:
    schema = replace(items(), comment="\u00e4" * 5000)
    (text,) = comment_statements(place_table(schema, "APP", "auto"))
    assert len(text.encode()) < 4000


def test_foreign_keys_are_disabled() -> None:
    parent = items(2, "parents")
    placed = [place_table(s, "APP", "auto") for s in (make_referring_schema(items(), "amount", parent), parent)]
    (text,) = foreign_key_statements(placed[0], placed)
    assert text.endswith('REFERENCES "PARENTS" ("ID") DISABLE')


def test_a_step_executes_missing_statements_and_none_twice() -> None:
    first = items()
    second = replace(first, version=2, columns=(*first.columns, column(4, "extra", TEXT)))
    assert step(first, second).statements == ('ALTER TABLE "ITEMS" ADD ("EXTRA" CLOB)',)
    there = target_column("EXTRA", "CLOB")
    assert step(first, second, has_begun=True, EXTRA=there) == VersionStep()
    assert "rename or drop the one at the target" in step(first, second, EXTRA=there).refused


def test_types_are_widened_and_never_narrowed() -> None:
    first = items()
    short = replace(first, columns=(*first.columns[:2], column(3, "amount", LogicalType(kind=INT.kind, length=4))))
    assert step(short, first).statements == ('ALTER TABLE "ITEMS" MODIFY ("AMOUNT" NUMBER(19))',)
    assert "does not widen it" in step(first, short).refused
    assert can_widen("NUMBER(10,2)", "NUMBER(12,3)")
    assert not can_widen("NUMBER(10,2)", "NUMBER(10,3)")
    assert not can_widen("VARCHAR2(10 CHAR)", "CLOB")
    assert not can_widen("TIMESTAMP(6)", "TIMESTAMP(6) WITH TIME ZONE")


def test_a_renamed_and_a_now_nullable_column_are_followed() -> None:
    first = table(1, "items", column(1, "id", INT), column(2, "label", nullable=False))
    renamed = replace(first, columns=(first.columns[0], column(2, "title")))
    assert step(first, renamed, LABEL=target_column("LABEL", "CLOB", not_null=True)).statements == (
        'ALTER TABLE "ITEMS" RENAME COLUMN "LABEL" TO "TITLE"',
        'ALTER TABLE "ITEMS" MODIFY ("TITLE" NULL)',
    )


def test_a_dropped_column_stays_and_becomes_nullable() -> None:
    first = table(1, "items", column(1, "id", INT), column(2, "label", nullable=False), column(3, "n", INT))
    fewer = replace(first, columns=first.columns[:1])
    found = step(first, fewer, LABEL=target_column("LABEL", "CLOB", not_null=True))
    assert found.statements == ('ALTER TABLE "ITEMS" MODIFY ("LABEL" NULL)',)
    assert [text.split()[1] for text in found.remarks] == ["label", "n"]


def test_an_existing_table_is_compared() -> None:
    placed = place_table(items(), "APP", "auto")
    columns = (
        target_column("ID", "NUMBER(19)"),
        target_column("LABEL", "VARCHAR2(20 CHAR)"),
        target_column("AMOUNT", "NUMBER"),
    )
    there = OracleTableFacts(
        kind="TABLE", columns=columns, unique_keys=(frozenset({"LABEL"}),), triggers=("T1",), foreign_keys=("FK1",)
    )
    assert table_differences(placed, there) == [
        "ITEMS has trigger T1, which would repeat what the source's triggers have done",
        'ITEMS has the foreign key FK1, which acts while VENUS applies: ALTER TABLE "ITEMS" DISABLE CONSTRAINT FK1',
        "ITEMS.LABEL is VARCHAR2(20 CHAR), the source needs CLOB",
        "ITEMS has no primary key or unique index on (ID)",
    ]


def test_types_have_the_dictionarys_spelling() -> None:
    assert format_type("NUMBER", 22, 0, None, None, None) == "NUMBER"
    assert format_type("NUMBER", 22, 0, None, 10, 2) == "NUMBER(10,2)"
    assert format_type("VARCHAR2", 80, 20, "C", None, None) == "VARCHAR2(20 CHAR)"
    assert format_type("VARCHAR2", 80, 80, "B", None, None) == "VARCHAR2(80 BYTE)"
    assert format_type("TIMESTAMP(6)", 11, 0, None, None, 6) == "TIMESTAMP(6)"


def test_statements_are_split_outside_of_quotes() -> None:
    assert list(split_statements("""BEGIN; UPDATE "a;b" SET x = 'c;''d' ;COMMIT;""")) == [
        "BEGIN",
        """UPDATE "a;b" SET x = 'c;''d'""",
        "COMMIT",
    ]
