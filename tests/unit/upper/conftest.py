"""Short pauses, because scripted sources and brokers recover at once."""

from __future__ import annotations

import pytest

from venus.adapters.upper import capture


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "BACKOFF_MIN_S", 0.001)
    monkeypatch.setattr(capture, "QUICK_MAX_S", 0.001)
