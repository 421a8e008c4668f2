from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.delivery import FakeDelivery
from tests.support.feed import Feed


@pytest.fixture
def broker() -> Iterator[FakeDelivery]:
    fake = FakeDelivery()
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def feed(broker: FakeDelivery) -> Feed:
    return Feed(broker)
