"""Fixtures of the cases. Their runner, `venus prove` or the tests of VENUS, supplies `place`, an empty database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.proving_contract import Application, NameNotPossible, Place
from venus.cli.prove.follower import Follower


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a case if the database does not support its names."""
    try:
        return (yield)
    except NameNotPossible as error:
        pytest.skip(str(error))


@pytest.fixture
def app(place: Place) -> Iterator[Application]:
    """Open a session of the application."""
    app = place.connect()
    yield app
    app.close()


@pytest.fixture
def source(place: Place) -> Iterator[Source]:
    """Open the source."""
    source = place.open()
    yield source
    source.close()


@pytest.fixture
def item(place: Place, app: Application, source: Source) -> Follower:
    """Capture a small table, item (id, name, price), that has been filled already."""
    t = place.types
    app.execute(f"CREATE TABLE item (id {t['int']} NOT NULL PRIMARY KEY, name {t['text']}, price {t['decimal']})")
    app.commit()
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    return follower
