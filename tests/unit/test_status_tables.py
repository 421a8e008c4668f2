"""Very many tables in `venus status`: tables with problems are listed, the others counted."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from tests.unit.test_overview import HEALTHY
from venus.adapters.targets.views import TargetTable
from venus.cli.overview import BrokerView, Overview, SourceTableView
from venus.cli.status_tables import ALL_SHOWN_MAX, LISTED_MAX, format_tables

MANY = 10_000


def overview(count: int, *, broken: int = 0) -> Overview:
    """Return a view of this many tables, the last `broken` of which have halted at the target."""
    numbers = range(1, count + 1)
    halting = range(count - broken + 1, count + 1)
    source = tuple(SourceTableView(table_id=n, name=f"shop.t{n}", state="ACTIVE") for n in numbers)
    target = tuple(
        TargetTable(table_id=n, name=f"shop.t{n}", state="HALTED" if n in halting else "ACTIVE", rows_applied=n)
        for n in numbers
    )
    return replace(
        HEALTHY,
        source=replace(HEALTHY.source, tables=source),
        broker=replace(HEALTHY.broker, committed_changes={n: n for n in numbers}),
        targets=(replace(HEALTHY.targets[0], tables=target),),
    )


def lines(found: Overview) -> list[str]:
    """Return the lines on a terminal."""
    console = Console(file=StringIO(), width=160)
    for part in format_tables(found):
        console.print(part)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def test_a_readable_number_of_tables_is_listed_completely() -> None:
    assert sum("shop.t" in line for line in lines(overview(ALL_SHOWN_MAX))) == ALL_SHOWN_MAX


def test_of_many_tables_the_halted_ones_are_listed_and_the_rest_counted() -> None:
    found = lines(overview(MANY, broken=3))

    assert [line.split()[0] for line in found if "shop.t" in line] == ["shop.t9998", "shop.t9999", "shop.t10000"]
    assert found[-1] == "9,997 tables simply follow: `venus status --json` lists all"
    assert len(found) < 10


@pytest.mark.parametrize(
    "odd",
    [
        SourceTableView(table_id=7, name="shop.odd", state="PAUSED"),
        SourceTableView(table_id=7, name="shop.odd", state="ACTIVE", fill_done=False),
        SourceTableView(table_id=7, name="shop.odd", state="RELEASED"),
        SourceTableView(table_id=999_999, name="shop.odd", state="ACTIVE"),  # not at the target
    ],
)
def test_a_table_that_differs_from_the_others_is_listed(odd: SourceTableView) -> None:
    many = overview(MANY)
    tables = (*many.source.tables[:6], odd, *many.source.tables[7:])

    found = lines(replace(many, source=replace(many.source, tables=tables)))

    assert [line.split()[0] for line in found if "shop." in line] == ["shop.odd"]


def test_a_table_with_rows_in_quarantine_is_listed() -> None:
    many = overview(MANY)
    at_target = many.targets[0].tables
    tables = (replace(at_target[0], quarantined=2), *at_target[1:])

    found = lines(replace(many, targets=(replace(many.targets[0], tables=tables),)))

    assert [line.split()[0] for line in found if "shop." in line] == ["shop.t1"]


def test_a_list_of_very_many_halted_tables_is_cut_off_and_says_so() -> None:
    found = lines(overview(MANY, broken=MANY))

    assert sum("shop.t" in line for line in found) == LISTED_MAX
    assert found[-1] == "9,000 more tables like these: `venus status --json` lists all"


def test_without_its_source_the_tables_of_the_targets_are_shown() -> None:
    many = overview(MANY, broken=1)
    alone = replace(many, source=replace(many.source, tables=()), broker=BrokerView(error="gone"))

    found = lines(alone)

    assert [line.split()[0] for line in found if "shop." in line] == ["shop.t10000"]


def test_row_counts_are_shown_as_estimates_and_only_on_request() -> None:
    found = overview(2)
    name = found.targets[0].name
    tables = (replace(found.source.tables[0], rows_about=3_000_000), found.source.tables[1])
    asked = replace(found, source=replace(found.source, tables=tables), rows_about={name: {1: 2_999_999}})

    head, *rows = lines(asked)
    assert f"rows, about  rows at {name}, about" in head
    assert "~3,000,000" in rows[0]
    assert "~2,999,999" in rows[0]
    assert "~" not in rows[1], "what the database does not know is not made up"
    plain = lines(found)
    assert "about" not in plain[0]
    assert f"changes applied by {name}" in plain[0], "rows of a load are no changes"
    assert f"rows at {name}, about" in lines(replace(asked, source=replace(found.source, tables=())))[0]
