"""Pauses of capture between retries: short while another broker begins to lead, then growing."""

from __future__ import annotations

import pytest

from venus.adapters.upper import capture


@pytest.fixture(autouse=True)
def as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "BACKOFF_MIN_S", 0.1)
    monkeypatch.setattr(capture, "QUICK_MAX_S", 0.25)


def test_retries_during_a_failover_add_no_delay() -> None:
    longest = [capture.pause_s(failures, 1.0) for failures in range(1, capture.QUICK_TRIES + 1)]
    assert max(longest) <= 0.25
    assert sum(longest) >= 5.0  # as long as a lease and an election


def test_then_pauses_grow_to_ten_seconds() -> None:
    longest = [capture.pause_s(capture.QUICK_TRIES + n, 1.0) for n in range(1, 12)]
    assert longest[:3] == [0.2, 0.4, 0.8]
    assert longest[-1] == capture.pause_s(10_000, 1.0) == 10.0
    assert capture.pause_s(10_000, 0.0) == 0.0
