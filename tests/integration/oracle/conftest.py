"""The Oracle stand-in with a small shop, and the Oracle dialect on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.databases.mariadb import MariaServer
from tests.support.oracle.standin import SCHEMA, StandIn
from venus.adapters.dialects.oracle.source import OracleSource


@pytest.fixture
def standin(mariadb_oracle_server: MariaServer) -> StandIn:
    """Make an empty schema."""
    standin = StandIn(mariadb_oracle_server)
    standin.prepare()
    return standin


@pytest.fixture
def application(standin: StandIn) -> Iterator[Any]:
    """Open an autocommit session of the application."""
    connection = standin.server.connect(SCHEMA, autocommit=True)
    yield connection.cursor()
    connection.close()


@pytest.fixture
def source(standin: StandIn) -> Iterator[OracleSource]:
    """Open the source."""
    source = OracleSource(standin)
    yield source
    source.close()
