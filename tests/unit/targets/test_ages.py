"""The age of the newest change that a target has applied, by the clock that recorded it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from venus.adapters.targets.relational.control import TargetProgress, build_view, moment_us
from venus.adapters.targets.relational.states import TargetPosition
from venus.model import Offset

THEN = datetime(2001, 1, 1, tzinfo=UTC)


def test_the_age_is_measured_by_the_targets_own_clock() -> None:
    """The clock of the target's machine may be years off; that difference is no lag."""
    position = TargetPosition(
        offset=Offset(1), epoch=1, last_sequence=1, control=0, paused=False, applied_at=THEN, heartbeat_at=THEN
    )
    now_us = moment_us(THEN + timedelta(seconds=7))
    found = build_view(
        TargetProgress(target="a", group="main/a", position=position, tables=(), refused={}, now_us=now_us)
    )
    assert (found.applied_age_s, found.heartbeat_at_us) == (7.0, moment_us(THEN))
