"""Approximate row counts of captured tables, from the database's own statistics, without reading rows."""

from __future__ import annotations

import pytest

from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.proving_contract import Application, Place, run_transaction
from venus.cli.prove.follower import Follower

ROWS = 40


def test_rows_are_known_by_the_number_of_the_table(
    place: Place, app: Application, item: Follower, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1000, 1000 + ROWS):
        app.execute("INSERT INTO item (id, name) VALUES (?, ?)", number, "x")
    app.commit()
    place.analyze(app, "item")
    numbers = {t.schema.table_id for t in source.registry.read_registered_tables()}

    found = source.registry.read_row_counts()
    assert found[item.table_id("item")] == ROWS
    assert set(found) <= numbers
    if place.dialect == "sqlite":
        monkeypatch.setattr("venus.adapters.dialects.sqlite.registry.COUNT_BYTES_MAX", 0)
        app.execute("INSERT INTO item (id, name) VALUES (?, ?)", 5000, "behind the statistics")
        app.commit()
        assert source.registry.read_row_counts()[item.table_id("item")] == ROWS, "a large file is not counted"

    run_transaction(app, "DROP TABLE item")
    assert item.table_id("item") not in source.registry.read_row_counts(), "a table that is gone is left out"
