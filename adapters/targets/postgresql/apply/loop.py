"""The under adapter's loop: follows the broker's increments and keeps one target equal (VENUS 3.4).

One process, one connection, one stream for each target. Whatever fails ends the session, and everything begins again
from what the target itself says: its applied offset, its tables' states. That is also what happens after kill -9.
"""

from __future__ import annotations

import threading

import tenacity

from venus.adapters.targets.postgresql.apply.apply_session import ApplySession
from venus.adapters.targets.postgresql.apply.report import ApplyReport, Loop, Report
from venus.adapters.targets.postgresql.database import PostgresTarget
from venus.config import Settings
from venus.errors import VenusError

__all__ = ["ApplyReport", "Report", "run_apply"]


def run_apply(settings: Settings, name: str, stop: threading.Event, report: Report | None = None) -> None:
    """Follow the broker until `stop`; begin again after what passes by itself. Raises what does not."""
    target = PostgresTarget(settings, name)
    loop = Loop(name, stop, report)
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(loop.is_waited_for),
        wait=lambda state: loop.failed(_error(state)),
        stop=tenacity.stop_when_event_set(stop),
        sleep=tenacity.sleep_using_event(stop),
        before=lambda _: loop.begin(),
        before_sleep=lambda state: loop.trying_again(_error(state)),
        reraise=True,
    )
    try:
        retrying(_follow, target, loop)
    except VenusError as error:
        if not (error.retryable and loop.stopped):
            raise


def _error(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _follow(target: PostgresTarget, loop: Loop) -> None:
    """Follow until stop, session by session."""
    again = True
    while again and not loop.stopped:
        with ApplySession(target, loop) as opened:
            again = opened.run()
