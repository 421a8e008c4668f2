"""Fixtures with the delivery side of a broker for the tests of adapters; a conftest or a module imports them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed
from tests.support.brokers.real_broker import RealBroker


@pytest.fixture
def broker() -> Iterator[FakeDelivery]:
    """Start a fake broker that delivers what a test has put into it."""
    fake = FakeDelivery()
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def feed(broker: FakeDelivery) -> Feed:
    """Write cuts, and keep the rows that result from them."""
    return Feed(broker)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealBroker]:
    """Start a real broker."""
    started = RealBroker(tmp_path / "data")
    yield started
    started.stop()
