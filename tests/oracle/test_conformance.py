"""The conformance suite of all dialects on a real Oracle, unchanged: the tests are those of tests/conformance."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import app, item, source  # noqa: F401
from tests.conformance.places import Place
from tests.conformance.test_changes import *  # noqa: F403
from tests.conformance.test_cuts import *  # noqa: F403
from tests.conformance.test_fills import *  # noqa: F403
from tests.conformance.test_install import *  # noqa: F403
from tests.conformance.test_schema_changes import *  # noqa: F403
from tests.conformance.test_types import *  # noqa: F403
from tests.oracle.place import OraclePlace


@pytest.fixture
def place(schema: str) -> Place:
    """Make an empty schema."""
    return OraclePlace(schema)
