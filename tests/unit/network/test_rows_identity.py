"""The identity of a set's rows: equal however predicates are split over levels, different after a standstill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.predicates.predicate_histories import SCHEMA
from venus.model import TableSchema
from venus.network import row_filters
from venus.network.row_filters import (
    NO_ROWS,
    Levels,
    RowFilter,
    RowsIdentity,
    TableRows,
    describe_differences,
    find_differing,
    parse_filters,
    partial_tables,
    with_tables,
)

WITHOUT = replace(SCHEMA, version=2, columns=(SCHEMA.columns[0], *SCHEMA.columns[2:]))
WIDER = replace(SCHEMA, version=2, columns=(*SCHEMA.columns, replace(SCHEMA.columns[2], name="more", number=9)))
BACK = replace(SCHEMA, version=3)


def level_filters(text: str, *at: TableSchema, name: str = "t") -> tuple[RowFilter, ...]:
    """Return the filters of a set that took the full data when the tables had these versions."""
    return with_tables(parse_filters({name: text}), at or [SCHEMA])


def table_rows(levels: Levels, *schemas: TableSchema) -> TableRows:
    return partial_tables(levels, schemas or [SCHEMA])[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["region = 'EU'"], ["REGION  in ('EU')"]),
        (["region = 'EU'", "amount >= 10"], ["amount >= 10 and region = 'EU'"]),
        (["amount >= 10", "amount between 5 and 60"], ["amount between 10 and 60"]),
        (["region = 'EU'", "region in ('EU', 'US')"], ["region = 'EU'"]),
        (["region is null", "region is null"], ["region is null"]),
        (["amount > 5", "amount <= 5"], ["region = 'EU'", "region = 'US'"]),  # no table has a row
    ],
)
def test_the_split_of_ranges_over_levels_does_not_matter(one: Sequence[str], other: Sequence[str]) -> None:
    found = table_rows(tuple(level_filters(text) for text in one))
    assert found.digest == table_rows(tuple(level_filters(text) for text in other)).digest
    assert found.digest != table_rows((level_filters("amount = 77"),)).digest


def test_the_version_at_which_the_full_data_was_taken_does_not_matter() -> None:
    early, late = level_filters("region = 'EU'"), level_filters("region = 'EU'", SCHEMA, WIDER)
    assert early != late
    assert (
        table_rows((early,), SCHEMA, WIDER).digest
        == table_rows((late,), SCHEMA, WIDER).digest
        == table_rows((early,)).digest
    )


def test_a_table_without_changes_differs_from_one_that_was_filled_again() -> None:
    """While the column is missing, no row is selected; once it is back, the rows are selected again."""
    versions = [SCHEMA, WITHOUT, BACK]
    still = table_rows((level_filters("region = 'EU'"),), *versions)
    assert table_rows((level_filters("region = 'EU'"),)) == still  # a follower has read no new version
    dropped = table_rows((level_filters("region = 'EU'", SCHEMA, WITHOUT),), *versions)
    again = table_rows((level_filters("region = 'EU'", *versions),), *versions)
    assert dropped.rows == NO_ROWS
    assert len({still.digest, dropped.digest, again.digest}) == 3
    assert (still.rows, again.rows) == ("region = 'EU'",) * 2


def test_a_set_filled_from_one_without_changes_has_another_identity() -> None:
    versions = [SCHEMA, WITHOUT, BACK]
    still, again = level_filters("region = 'EU'"), level_filters("region = 'EU'", *versions)
    below = table_rows((still, again), *versions)
    assert below.rows == "region = 'EU' and then region = 'EU'"
    assert len({below.digest, table_rows((still,), *versions).digest, table_rows((again,), *versions).digest}) == 3


def test_a_table_that_got_the_name_later_is_complete_until_then() -> None:
    draft = replace(SCHEMA, name="draft")
    named = replace(SCHEMA, version=2)
    found = table_rows((level_filters("region = 'EU'", draft),), draft, named)
    assert found.rows == "every row until version 2"
    assert found.digest != table_rows((level_filters("region = 'EU'", draft, named),), draft, named).digest


def test_tables_without_a_filter_are_not_listed() -> None:
    assert partial_tables((level_filters("region = 'EU'", name="u"),), [SCHEMA]) == {}
    assert partial_tables((), [SCHEMA]) == {}


def test_differences_are_named_table_by_table() -> None:
    one = RowsIdentity(set="a", tables=(table_rows((level_filters("region = 'EU'"),)),))
    other = RowsIdentity(set="b", tables=(table_rows((level_filters("region = 'US'"),)),))
    whole = RowsIdentity(set="c")
    assert find_differing(one, replace(one, set="b")) == ()
    assert find_differing(one, other) == find_differing(one, whole) == find_differing(whole, one) == (1,)
    assert find_differing(one, other, {2}) == ()
    assert describe_differences((1,), one, other) == "public.t (region = 'US'; until now region = 'EU')"
    assert describe_differences((1,), one, whole) == "public.t (every row; until now region = 'EU')"


def test_a_stored_identity_is_read_again() -> None:
    found = RowsIdentity(set="a", tables=(table_rows((level_filters("region = 'EU'"),)),))
    assert row_filters.decode_identity(row_filters.encode_identity(found)) == found
    assert row_filters.decode_identity(row_filters.encode_identity(None)) is None
