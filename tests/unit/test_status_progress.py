"""Loads in progress and the last comparison in `venus status`, and database addresses without passwords."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.test_overview import BROKER, HEALTHY
from venus.adapters.dialects.registry import describe_database
from venus.cli.overview import LeaseView
from venus.cli.status_tables import format_comparison, format_comparisons, format_loads
from venus.rpc.conditions import LastComparison, TableFillFigures

COMPARED = LastComparison(ended_at_us=1_000_000, verdict="same", leg="ends", tables=2, rows=3_000)


@pytest.mark.parametrize(
    ("compared", "shown"),
    [
        (COMPARED, "last verified 60 s ago: same (3,000 rows of 2 tables)"),
        (
            replace(COMPARED, verdict="different", different=1, undecided=2, partial=True),
            "last verified 60 s ago: different (3,000 rows of 2 tables, 1 different row, 2 undecided rows, "
            "not everything was compared)",
        ),
    ],
)
def test_a_comparison_is_shown_with_its_age_and_verdict(compared: LastComparison, shown: str) -> None:
    assert format_comparison(compared, 61_000_000) == shown


def test_each_target_that_follows_has_its_last_comparison() -> None:
    target = replace(HEALTHY.targets[0], compared=COMPARED)
    cut_over = replace(target, name="old", cut_over="2026-11-26 01:00:00 UTC")
    (line,) = format_comparisons(replace(HEALTHY, targets=(target, cut_over, replace(target, compared=None))))
    assert line.startswith(f"target {target.name}: last verified ")


def test_a_load_shows_rows_and_the_time_left() -> None:
    fill = TableFillFigures(table_id=1, name="shop.item", rows=500, rows_expected=400)
    leases = (
        LeaseView(holder="shop/main", offset=1, left_s=9.0, rows_read=250, rows_expected=1_000, reading_s=10.0),
        LeaseView(holder="shop/eu", offset=1, left_s=9.0, rows_expected=1_000),
        LeaseView(holder="", offset=1, left_s=9.0, rows_read=1_200, rows_expected=1_000, reading_s=10.0),
    )
    assert format_loads(replace(BROKER, fills=(fill,), leases=leases)) == [
        "shop.item is read: 500 of about 500 rows",
        "shop/main loads: 250 of about 1,000 rows, about 30 s left",
        "a load loads: 1,200 of about 1,200 rows",
    ]


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://me:secret@db.example:5432/shop", "shop at db.example:5432"),
        ("postgresql+psycopg2://me:secret@/shop?host=/run/postgresql", "shop at /run/postgresql"),
        ("mariadb://me:secret@[::1]:3306/shop", "shop at [::1]:3306"),
        ("oracle+oracledb://me:secret@ora/?service_name=PDB1", "PDB1 at ora"),
        ("sqlite:////srv/shop.db", "/srv/shop.db"),
        ("", ""),
    ],
)
def test_a_database_is_described_without_user_and_password(url: str, place: str) -> None:
    assert describe_database(url) == place
