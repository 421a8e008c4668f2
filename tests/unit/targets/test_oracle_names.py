"""Names of tables that are carried back to an Oracle: the recorded ones, if the naming rule leads to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.brokers.feed import INT, column, table
from venus.adapters.dialects.contract import Numbering
from venus.adapters.targets.oracle.application import OwnNames, find_own_names
from venus.adapters.targets.postgresql.cutover.cutover_session import name_free_sequences
from venus.adapters.targets.postgresql.naming import PlacedTable
from venus.adapters.targets.relational.names import PostgresNames
from venus.errors import Refused
from venus.model import TableSchema

AUTO, KEEP = PostgresNames(), PostgresNames(names="keep")


def describe(dialect: str, namespace: str, name: str, *columns: str) -> TableSchema:
    made = table(1, name, *(column(n, c, INT) for n, c in enumerate(columns, 1)), key=columns[:1])
    return replace(made, namespace=namespace, source_dialect=dialect)


CAPTURED = describe("oracle", "APP", "CUSTOMER", "ID", "Nick", "nAME")


def find(rule: PostgresNames, namespace: str, name: str, *columns: str) -> OwnNames:
    return find_own_names(describe("postgresql", namespace, name, *columns), CAPTURED, "APP", rule)


@pytest.mark.parametrize(
    ("rule", "namespace", "name", "columns"),
    [
        (AUTO, "app", "customer", ("id", "Nick", "nAME")),
        (PostgresNames(names="lower"), "app", "customer", ("id", "nick", "name")),
        (KEEP, "APP", "CUSTOMER", ("ID", "Nick", "nAME")),
        (PostgresNames(schema_of_all="shop"), "shop", "customer", ("id", "Nick", "nAME")),
    ],
)
def test_recorded_names_are_used_again(
    rule: PostgresNames, namespace: str, name: str, columns: tuple[str, ...]
) -> None:
    found = find(rule, namespace, name, *columns)
    assert (found.table, tuple(found.columns.values()), found.lost) == ("CUSTOMER", ("ID", "Nick", "nAME"), ())


def test_a_new_column_gets_a_name_that_the_rule_reverses() -> None:
    found = find(AUTO, "app", "customer", "id", "Nick", "nAME", "weight", "Mixed")
    assert (found.columns["weight"], found.columns["Mixed"], found.lost) == ("WEIGHT", "Mixed", ())


@pytest.mark.parametrize(
    ("changed", "lost"),
    [
        (("app", "customer", "id", "Nick", "nAME", "WEIGHT"), (("WEIGHT", "weight"),)),
        (("public", "customer", "id", "Nick", "nAME"), (("public.customer", "app.customer"),)),
        (("app", "CLIENT", "id", "Nick", "nAME"), (("app.CLIENT", "app.client"),)),
    ],
)
def test_a_name_that_the_rule_cannot_reverse_is_lost(
    changed: tuple[str, ...], lost: tuple[tuple[str, str], ...]
) -> None:
    assert find(AUTO, *changed).lost == lost


def test_a_renamed_column_is_not_the_recorded_one() -> None:
    assert find(AUTO, "app", "customer", "id", "nick_name", "nAME").columns["nick_name"] == "NICK_NAME"


def test_a_version_of_this_database_keeps_its_names() -> None:
    before = describe("oracle", "APP", "OLD_NAME", "ID", "NICK", "nAME")
    found = find_own_names(before, CAPTURED, "APP", AUTO)
    assert (found.table, found.columns) == ("CUSTOMER", {"ID": "ID", "NICK": "Nick", "nAME": "nAME"})


def test_two_sequences_with_one_name_are_refused() -> None:
    placed = PlacedTable(schema=CAPTURED, namespace="app", name="customer")
    one, other = (Numbering(namespace="APP", name=name, next_value=1) for name in ("SEQ", "seq"))
    assert list(name_free_sequences([one], placed)) == ['"app"."seq"']
    with pytest.raises(Refused, match=r"sequences APP\.seq and APP\.SEQ would both become"):
        name_free_sequences([one, other], placed)


def test_keys_are_compared_by_the_column_numbers_of_another_database() -> None:
    there = describe("postgresql", "app", "customer", "id", "Nick", "nAME")
    assert CAPTURED.has_same_key(there)
    assert not CAPTURED.has_same_key(replace(there, key=("Nick",)))
    assert not CAPTURED.has_same_key(replace(there, source_dialect="oracle"))
