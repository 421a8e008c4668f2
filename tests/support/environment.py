"""The environment in which the tests were started, without what VENUS would read of it."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def no_venus_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every option out of it."""
    for name in [n for n in os.environ if n.upper().startswith("VENUS_")]:
        monkeypatch.delenv(name)
