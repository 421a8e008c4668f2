"""Comparison of a table whose leading key column has few values: one value may cover most of the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pipelines.end_to_end import difference_keys, end_to_end, run_at

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROWS = 20_000


def test_one_wrong_row_does_not_transfer_all_rows_of_its_tenant(
    tmp_path: Path, database: str, second_database: str
) -> None:
    with end_to_end(tmp_path, database, second_database) as e2e:
        run_at(
            e2e.source,
            "CREATE TABLE item (tenant int, n int, v text, PRIMARY KEY (tenant, n))",
            f"INSERT INTO item SELECT n % 2, n, 'v' || n FROM generate_series(1, {ROWS}) n",
            "ANALYZE item",
        )
        e2e.install()
        e2e.load()
        e2e.at_target("UPDATE item SET v = 'x' WHERE n = 77", "DELETE FROM item WHERE n = 78")

        result = e2e.verify(slice_rows=1_000)

    assert difference_keys(result) == {
        ("item", ("1", "77"), "different", "apply"),
        ("item", ("0", "78"), "missing", "apply"),
    }
    assert result.rows == ROWS
    assert result.moved_rows < ROWS // 10
