from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers.deliveries import broker, feed, real
from tests.support.brokers.feed import query
from tests.support.pipelines.end_to_end import EndToEnd, end_to_end

__all__ = ["broker", "feed", "real"]


@pytest.fixture
def e2e(request: pytest.FixtureRequest, tmp_path: Path, database: str, second_database: str) -> Iterator[EndToEnd]:
    """Make a module's TABLES in one database, and carry out its STEPS towards the other one."""
    query(database, request.module.TABLES)
    with end_to_end(tmp_path, database, second_database) as made:
        for step in request.module.STEPS:
            step(made)
        yield made
