"""About how many rows each captured table has: what the database's own statistics say, without reading rows."""

from __future__ import annotations

import pytest

from tests.conformance.place_oracle import StandInPlace
from tests.conformance.places import Application, MariaPlace, Place, PostgresPlace, SqlitePlace, do
from tests.support.databases.follower import Follower
from venus.adapters.dialects.contract import Source

pytestmark = pytest.mark.integration

ROWS = 40


def analyze(place: Place, app: Application) -> None:
    """Have the database gather statistics of the table `item`."""
    if isinstance(place, StandInPlace):
        place.standin.server.execute("ANALYZE TABLE `item`", "APP")
        place.standin.server.execute("INSERT INTO ANALYZED VALUES ('item', NOW())", "DICTIONARY")
        changed = "INSERT INTO ALL_TAB_MODIFICATIONS VALUES ('APP', 'item', NULL, 5, 10, 3)"
        place.standin.server.execute(changed, "DICTIONARY")
    elif isinstance(place, MariaPlace):
        do(app, "ANALYZE TABLE item")
    elif isinstance(place, PostgresPlace | SqlitePlace):
        do(app, "ANALYZE")


def test_rows_are_known_by_the_number_of_the_table(
    place: Place, app: Application, item: Follower, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1000, 1000 + ROWS):
        app.execute("INSERT INTO item (id, name) VALUES (?, ?)", number, "x")
    app.commit()
    analyze(place, app)
    numbers = {t.schema.table_id for t in source.registry.read_registered_tables()}

    expected = ROWS + 2 if isinstance(place, StandInPlace) else ROWS
    found = source.registry.read_row_counts()
    assert found[item.table_id("item")] == expected
    assert set(found) <= numbers
    if isinstance(place, SqlitePlace):
        monkeypatch.setattr("venus.adapters.dialects.sqlite.registry.COUNT_BYTES_MAX", 0)
        app.execute("INSERT INTO item (id, name) VALUES (?, ?)", 5000, "behind the statistics")
        app.commit()
        assert source.registry.read_row_counts()[item.table_id("item")] == expected, "a large file is not counted"

    do(app, "DROP TABLE item")
    assert item.table_id("item") not in source.registry.read_row_counts(), "a table that is gone is left out"
