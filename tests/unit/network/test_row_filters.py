"""Filters fitted to tables that are renamed, created later and changed; and which predicate contains another."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.support.predicates.predicate_histories import SCHEMA, predicate_of, random_text, where
from venus.network.row_filters import RowFilter, decode_filters, fit_filters, is_same, parse_filters, with_tables
from venus.predicates.ranges import contains

(EU,) = parse_filters({"t": "region = 'EU'"})


def test_a_filter_applies_to_tables_of_its_name_at_the_cut_and_later() -> None:
    other = replace(SCHEMA, table_id=2, namespace="crm")
    away = replace(SCHEMA, table_id=3, name="u")
    (found,) = with_tables([EU], [SCHEMA, replace(SCHEMA, version=2), other, away])
    assert found.tables == ((1, 2), (2, 1))
    later = replace(SCHEMA, table_id=4)
    assert fit_filters([found], [SCHEMA, other, away, later]).keys() == {1, 2, 4}
    qualified = RowFilter(table="CRM.T", predicate=EU.predicate)
    assert fit_filters([qualified], [SCHEMA, other]).keys() == {2}


def test_a_table_that_is_renamed_stays_filtered() -> None:
    (found,) = with_tables([EU], [SCHEMA])
    renamed = replace(SCHEMA, version=2, name="archive")
    one = fit_filters([found], [SCHEMA, renamed])[1]
    assert one.predicate_at(2) is not None
    assert one.predicate_at(2).canonical == one.predicate_at(1).canonical  # type: ignore[union-attr]


def test_a_table_that_gets_the_name_later_is_not_sent_on() -> None:
    (found,) = with_tables([EU], [replace(SCHEMA, name="draft")])
    one = fit_filters([found], [replace(SCHEMA, name="draft"), replace(SCHEMA, version=2)])[1]
    assert (one.has_version(1), one.predicate_at(1), one.has_version(2)) == (True, None, False)
    assert one.refused == "it has the name t since version 2, and its rows came whole before"


def test_a_version_that_fits_again_is_not_accepted() -> None:
    without = replace(SCHEMA, version=2, columns=(SCHEMA.columns[0], *SCHEMA.columns[2:]))
    (found,) = with_tables([EU], [SCHEMA])
    one = fit_filters([found], [SCHEMA, without, replace(SCHEMA, version=3)])[1]
    assert [one.has_version(version) for version in (1, 2, 3)] == [True, False, False]
    (found,) = with_tables([EU], [SCHEMA, without])
    unfit = fit_filters([found], [SCHEMA, without])[1]
    assert [unfit.has_version(version) for version in (1, 2)] == [False, False]
    assert unfit.refused.startswith(
        "its predicate (region = 'EU') does not fit version 2: character 1: public.t has no"
    )


def test_stored_filters_are_read_again_and_blanks_are_no_change() -> None:
    (found,) = with_tables([EU], [SCHEMA])
    stored = {"table": "t", "predicate": EU.predicate, "tables": [[1, 1]]}
    assert decode_filters([stored]) == (found,)
    assert is_same([found], parse_filters({"T": "REGION  = 'EU'"}))
    assert not is_same([found], parse_filters({"t": "region = 'eu'"}))
    assert not is_same([found], ())


@pytest.mark.parametrize("seed", range(4))
def test_a_predicate_inside_another_admits_no_further_row(seed: int) -> None:
    rng = random.Random(seed)
    inside = 0
    for _ in range(400):
        wide, narrow = random_text(rng), random_text(rng)
        if rng.random() < 0.5:
            narrow += f" and {wide}"
        one, other = predicate_of(wide), predicate_of(narrow)
        if one is None or other is None:
            continue
        if contains(one, other):
            inside += 1
            assert where(narrow) <= where(wide), (wide, narrow)
        elif narrow.endswith(f" and {wide}"):
            raise AssertionError((wide, narrow))
    assert inside > 50
