"""Runs every test here once for each kind of target."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.targets.places import (
    ORACLE,
    MariaTargetPlace,
    OracleTargetPlace,
    ParquetPlace,
    PostgresPlace,
    SqlitePlace,
    TargetPlace,
)
from tests.conformance.targets.playing import Stage
from tests.support.brokers.deliveries import broker, feed, real
from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed
from tests.support.brokers.real_broker import RealBroker

__all__ = ["broker", "feed", "real"]

PLACES = ("postgresql", "parquet", "mariadb", "sqlite", ORACLE)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> TargetPlace:
    """Make an empty target of one kind."""
    if request.param == "parquet":
        return ParquetPlace(tmp_path / "lake")
    if request.param == "mariadb":
        return MariaTargetPlace(request.getfixturevalue("mariadb_server"), request.getfixturevalue("mariadb_database"))
    if request.param == "oracle":
        return OracleTargetPlace(request.getfixturevalue("oracle_target"))
    if request.param == "sqlite":
        return SqlitePlace(tmp_path / "copy.db")
    return PostgresPlace(request.getfixturevalue("database"))


@pytest.fixture
def stage(place: TargetPlace, broker: FakeDelivery, feed: Feed) -> Stage:
    """Put the target behind a fake broker that the test controls."""
    return Stage.at(place, broker.address, feed)


@pytest.fixture
def real_stage(place: TargetPlace, real: RealBroker) -> Stage:
    """Put the target behind a real broker."""
    return Stage.at(place, real.address, Feed(real))
