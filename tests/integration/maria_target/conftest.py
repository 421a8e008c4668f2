"""A MariaDB target behind a fake broker that tests control."""

from __future__ import annotations

import pytest

from tests.conformance.targets.places import MariaTargetPlace
from tests.conformance.targets.playing import Stage
from tests.support.brokers.deliveries import broker, feed
from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed
from tests.support.databases.mariadb import MariaServer

__all__ = ["broker", "feed"]


@pytest.fixture
def stage(mariadb_server: MariaServer, mariadb_database: str, broker: FakeDelivery, feed: Feed) -> Stage:
    """Make an empty target."""
    return Stage.at(MariaTargetPlace(mariadb_server, mariadb_database), broker.address, feed)
