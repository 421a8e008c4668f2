"""Two engines: a home, and its mirror."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines.engines import make
from venus.broker.core import Core


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Core]:
    engine = make(tmp_path / "home")
    yield engine
    engine.stop()


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Core]:
    engine = make(tmp_path / "mirror")
    yield engine
    engine.stop()
