"""The environment in which the tests were started, without VENUS's variables."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def no_venus_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove every option of VENUS from the environment."""
    for name in [n for n in os.environ if n.upper().startswith("VENUS_")]:
        monkeypatch.delenv(name)
