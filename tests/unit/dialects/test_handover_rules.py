"""How capture continues in another database, and with which version a former owner begins: all pure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from venus.adapters.dialects.handover_rules import (
    can_exchange_values,
    find_handover_obstacles,
    next_version,
    version_to_follow,
)
from venus.adapters.dialects.mysql.installation.installed_objects import MysqlInstalledObjects
from venus.adapters.dialects.mysql.installation.triggers import MysqlTrigger
from venus.adapters.dialects.mysql.sql import is_own_table, is_own_trigger
from venus.model import Column, Kind, LogicalType, TableSchema

INT, TEXT = LogicalType(kind=Kind.INT, length=4), LogicalType(kind=Kind.TEXT, length=8)
MARIA = TableSchema(
    table_id=3,
    version=2,
    namespace="shop",
    name="item",
    columns=(
        Column(name="id", number=1, type=INT, nullable=False, source_type="int(11)"),
        Column(name="code", number=2, type=LogicalType(kind=Kind.BYTES, length=4), nullable=True),
    ),
    key=("id",),
    source_dialect="mysql",
)
POSTGRES = replace(
    MARIA,
    version=1,
    columns=(
        Column(name="id", number=1, type=INT, nullable=False, source_type="integer"),
        Column(name="code", number=2, type=LogicalType(kind=Kind.BYTES), nullable=True),
    ),
    source_dialect="postgresql",
)


def test_a_database_of_another_kind_continues_with_its_own_description() -> None:
    assert list(find_handover_obstacles(MARIA, POSTGRES)) == []
    continued = next_version(MARIA, POSTGRES)
    assert continued == replace(POSTGRES, version=3)
    assert next_version(MARIA, MARIA) == MARIA
    assert version_to_follow(MARIA, continued) == continued


def test_a_change_of_columns_since_the_cut_is_carried_with_the_rows() -> None:
    here = replace(MARIA, source_dialect="postgresql")  # with the names of that database
    more = (*POSTGRES.columns, Column(name="more", number=3, type=TEXT))
    assert version_to_follow(MARIA, replace(POSTGRES, columns=more)) == here
    retyped = (POSTGRES.columns[0], replace(POSTGRES.columns[1], type=TEXT))
    assert version_to_follow(MARIA, replace(POSTGRES, columns=retyped)) == here
    assert version_to_follow(MARIA, None) == MARIA


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (LogicalType(kind=Kind.JSON), LogicalType(kind=Kind.JSON, name="json"), True),
        (LogicalType(kind=Kind.JSON), LogicalType(kind=Kind.JSON, name="jsonb"), False),
        (LogicalType(kind=Kind.INTERVAL), LogicalType(kind=Kind.INTERVAL, precision=6), True),
        (LogicalType(kind=Kind.TEXT, length=3), LogicalType(kind=Kind.TEXT, length=4), False),
        (INT, LogicalType(kind=Kind.INT, length=8), False),
        (INT, TEXT, False),
    ],
)
def test_types_whose_values_can_be_carried_in_both_directions(one: LogicalType, other: LogicalType, same: bool) -> None:
    assert can_exchange_values(one, other, is_other_kind=True) is same
    assert can_exchange_values(other, one, is_other_kind=True) is same
    assert not can_exchange_values(one, other, is_other_kind=False)


def test_obstacles_of_a_handover_are_named() -> None:
    assert "does not exist" in next(find_handover_obstacles(MARIA, None))
    swapped = (replace(POSTGRES.columns[0], number=2), replace(POSTGRES.columns[1], number=1))
    assert len(list(find_handover_obstacles(MARIA, replace(POSTGRES, columns=swapped)))) == 2
    assert "has no column code" in next(find_handover_obstacles(MARIA, replace(POSTGRES, columns=POSTGRES.columns[:1])))
    assert "another key" in next(find_handover_obstacles(MARIA, replace(POSTGRES, key=("code",))))


def test_a_trigger_is_complete_in_both_variants() -> None:
    body = "INSERT INTO `shop`.venus_l_00003 (op, k1) VALUES ('I', NEW.`id`)"
    made = MysqlTrigger(name="venus_i_00003", table="item", timing="AFTER", event="INSERT", body=body, database="shop")
    assert is_own_trigger(made.name, made.quiet.body)
    assert made.is_equal_to(made.definition)
    assert made.is_equal_to(made.quiet.definition)
    assert not made.is_equal_to(None)
    assert not made.is_equal_to((body.replace("'I'", "'U'"), "item", "AFTER", "INSERT"))
    assert (
        MysqlInstalledObjects(logs={}, triggers={}, other_tables=frozenset(), registered={}, released={}).rejecting
        == {}
    )


@pytest.mark.parametrize(
    ("name", "is_own"),
    [
        ("venus_side", True),
        ("venus_target_table", True),
        ("venus_touched_3_0a1b2c3d", True),
        ("venus_side_effects", False),
        ("venus_orders", False),
    ],
)
def test_tables_of_a_following_database_are_not_the_applications(name: str, is_own: bool) -> None:
    assert is_own_table(name, "") is is_own
