"""Progress reports of the upper adapter to its callback and to the log."""

from __future__ import annotations

import logging

import pytest

from venus.adapters.upper.periodic import CaptureReport, Reporter
from venus.errors import VenusError


def test_the_callback_is_called_once_a_second_and_at_once_for_a_new_state() -> None:
    now, heard = 0.0, list[CaptureReport]()
    reporter = Reporter(heard.append, monotonic=lambda: now)
    for n in range(30):
        now = n / 10
        reporter.count(rows=1)
        reporter.tick()
    assert [r.rows for r in heard] == [1, 11, 21]
    reporter.set_state("filling")
    assert (heard[-1].state, heard[-1].rows) == ("filling", 30)


def test_the_log_has_one_line_per_state_change_and_none_per_poll(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reporter = Reporter(None)
    for _ in range(100):
        reporter.set_state("capturing")
        reporter.tick()
    reporter.set_state("waiting to reconnect", error=OSError("refused"))
    reporter.set_state("waiting to reconnect", error=OSError("refused"))
    reporter.set_state("capturing")
    assert [r.getMessage() for r in caplog.records] == [
        "capture: capturing",
        "capture: waiting to reconnect: refused",
        "capture: capturing",
    ]


def test_an_error_with_other_figures_is_not_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    """The free space of a full disk changes all the time; a waiting load logged the error each time."""
    reporter = Reporter(None)
    for free in (76_657, 76_658, 3):
        reporter.set_state("waiting to reconnect", error=VenusError(f"/data has {free:,} MiB free, 512 MiB are needed"))
    reporter.set_state("waiting to reconnect", error=VenusError("the broker cannot be reached"))

    assert [record.getMessage() for record in caplog.records] == [
        "capture: waiting to reconnect: /data has 76,657 MiB free, 512 MiB are needed",
        "capture: waiting to reconnect: the broker cannot be reached",
    ]
