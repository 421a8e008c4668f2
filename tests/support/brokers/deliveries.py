"""The broker's delivery side for the tests of adapters, as fixtures: a conftest or a module imports what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed
from tests.support.brokers.real_broker import RealBroker


@pytest.fixture
def broker() -> Iterator[FakeDelivery]:
    """Start a broker that delivers what a test has put into it."""
    fake = FakeDelivery()
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def feed(broker: FakeDelivery) -> Feed:
    """Write cuts, and know what they amount to."""
    return Feed(broker)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealBroker]:
    """Start a broker with a store."""
    started = RealBroker(tmp_path / "data")
    yield started
    started.stop()
