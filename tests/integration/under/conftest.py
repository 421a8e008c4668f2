from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers.deliveries import broker, feed, real
from tests.support.brokers.feed import query
from tests.support.pipelines.whole_way import WholeWay, whole_way

__all__ = ["broker", "feed", "real"]


@pytest.fixture
def way(request: pytest.FixtureRequest, tmp_path: Path, database: str, second_database: str) -> Iterator[WholeWay]:
    """Make a module's TABLES in one database, and take its STEPS towards the other."""
    query(database, request.module.TABLES)
    with whole_way(tmp_path, database, second_database) as made:
        for step in request.module.STEPS:
            step(made)
        yield made
