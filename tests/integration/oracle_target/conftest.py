"""An Oracle target on the stand-in, behind a fake broker that tests control."""

from __future__ import annotations

import pytest

from tests.conformance.targets.places import OracleTargetPlace
from tests.conformance.targets.playing import Stage
from tests.support.brokers.deliveries import broker, feed
from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed
from tests.support.oracle.standin import StandIn

__all__ = ["broker", "feed"]


@pytest.fixture
def stage(oracle_target: StandIn, broker: FakeDelivery, feed: Feed) -> Stage:
    """Make an empty target."""
    return Stage.at(OracleTargetPlace(oracle_target), broker.address, feed)
