"""Which rows a set has: the same however the predicates are shared out over the levels, another after a standstill."""

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


def level(text: str, *at: TableSchema, name: str = "t") -> tuple[RowFilter, ...]:
    """Return the filters of a set that took the full data when these were the versions."""
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
        (["amount > 5", "amount <= 5"], ["region = 'EU'", "region = 'US'"]),  # nothing is in either
    ],
)
def test_how_ranges_are_shared_out_over_levels_does_not_matter(one: Sequence[str], other: Sequence[str]) -> None:
    found = table_rows(tuple(level(text) for text in one))
    assert found.digest == table_rows(tuple(level(text) for text in other)).digest
    assert found.digest != table_rows((level("amount = 77"),)).digest


def test_when_in_a_run_of_versions_the_full_data_was_taken_does_not_matter() -> None:
    early, late = level("region = 'EU'"), level("region = 'EU'", SCHEMA, WIDER)
    assert early != late
    assert (
        table_rows((early,), SCHEMA, WIDER).digest
        == table_rows((late,), SCHEMA, WIDER).digest
        == table_rows((early,)).digest
    )


def test_a_table_that_stands_still_is_not_one_that_was_filled_again() -> None:
    """While the column is dropped, no row is selected; once it is back, the rows are selected again."""
    versions = [SCHEMA, WITHOUT, BACK]
    still = table_rows((level("region = 'EU'"),), *versions)
    assert table_rows((level("region = 'EU'"),)) == still  # a follower has learned nothing new
    dropped = table_rows((level("region = 'EU'", SCHEMA, WITHOUT),), *versions)
    again = table_rows((level("region = 'EU'", *versions),), *versions)
    assert dropped.rows == NO_ROWS
    assert len({still.digest, dropped.digest, again.digest}) == 3
    assert (still.rows, again.rows) == ("region = 'EU'",) * 2


def test_a_set_that_was_filled_from_one_that_stood_still_is_another() -> None:
    versions = [SCHEMA, WITHOUT, BACK]
    still, again = level("region = 'EU'"), level("region = 'EU'", *versions)
    below = table_rows((still, again), *versions)
    assert below.rows == "region = 'EU' and then region = 'EU'"
    assert len({below.digest, table_rows((still,), *versions).digest, table_rows((again,), *versions).digest}) == 3


def test_a_table_that_got_the_name_later_is_whole_up_to_then() -> None:
    draft = replace(SCHEMA, name="draft")
    named = replace(SCHEMA, version=2)
    found = table_rows((level("region = 'EU'", draft),), draft, named)
    assert found.rows == "every row until version 2"
    assert found.digest != table_rows((level("region = 'EU'", draft, named),), draft, named).digest


def test_tables_without_a_filter_are_not_named() -> None:
    assert partial_tables((level("region = 'EU'", name="u"),), [SCHEMA]) == {}
    assert partial_tables((), [SCHEMA]) == {}


def test_what_differs_is_named_table_by_table() -> None:
    one = RowsIdentity(set="a", tables=(table_rows((level("region = 'EU'"),)),))
    other = RowsIdentity(set="b", tables=(table_rows((level("region = 'US'"),)),))
    whole = RowsIdentity(set="c")
    assert find_differing(one, replace(one, set="b")) == ()
    assert find_differing(one, other) == find_differing(one, whole) == find_differing(whole, one) == (1,)
    assert find_differing(one, other, {2}) == ()
    assert describe_differences((1,), one, other) == "public.t (region = 'US'; until now region = 'EU')"
    assert describe_differences((1,), one, whole) == "public.t (every row; until now region = 'EU')"


def test_what_is_stored_is_read_again() -> None:
    found = RowsIdentity(set="a", tables=(table_rows((level("region = 'EU'"),)),))
    assert row_filters.decode_identity(row_filters.encode_identity(found)) == found
    assert row_filters.decode_identity(row_filters.encode_identity(None)) is None
