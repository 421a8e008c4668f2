"""Real sources and a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.upper.shop import Shop
from tests.support.brokers.servers import settings
from venus.broker.service.process import RunningBroker, start_in_thread


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    fatal: list[BaseException] = []
    running = start_in_thread(settings(tmp_path / "broker", review_after_s=0.2), on_fatal=fatal.append)
    yield running
    running.stop()
    assert not fatal


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    if request.param == "sqlite":
        return Shop.sqlite(tmp_path)
    return Shop(request.getfixturevalue("database"))
