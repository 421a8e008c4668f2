"""A SQLite target behind a fake broker that tests control."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.targets.places import SqlitePlace
from tests.conformance.targets.playing import Stage
from tests.support.brokers.deliveries import broker, feed
from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed

__all__ = ["broker", "feed"]


@pytest.fixture
def stage(tmp_path: Path, broker: FakeDelivery, feed: Feed) -> Stage:
    """Make an empty target."""
    return Stage.at(SqlitePlace(tmp_path / "copy.db"), broker.address, feed)
