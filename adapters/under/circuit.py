"""The circuit breaker of a target: a failing or slow target is isolated for a while and then probed once.

VENUS cannot use another target instead. The breaker takes load off a struggling server or file system, and status shows
since when and why the target is isolated.
"""

from __future__ import annotations

import logging
import threading
import time

import tenacity

from venus.flow.breaker import REMIND_S, Breaker, Circuit, Classes, should_retry

logger = logging.getLogger(__name__)

#: (latency for a few rows, isolation) in seconds. The classes are coarse: a lock that an application holds for a second
#: is not an overload.
SLOW_CLASSES: Classes = ((5.0, 5.0), (15.0, 15.0))


class TargetCircuit:
    """Circuit breaker of one target, which outlives its sessions."""

    def __init__(self, target: str) -> None:
        self.breaker = Breaker(errors_max=5, wait_first_s=0.1, wait_max_s=10.0, classes=SLOW_CLASSES)
        self._target = target
        #: Whether this process has ever had its connections to broker and target open.
        self.has_worked = False
        self._said = ""
        self._said_at = 0.0

    @property
    def is_isolated(self) -> bool:
        """Whether the target is isolated now."""
        return self.breaker.state is Circuit.OPEN and self.left_s > 0

    @property
    def left_s(self) -> float:
        """Seconds until the isolation of the target ends."""
        return self.breaker.remaining_s(time.monotonic())

    def record_latency(self, latency_s: float) -> str:
        """Record how long the target took for a few rows; return the error text if that isolates the target."""
        if self.is_isolated:
            return ""  # the reply to an earlier call is not the probe
        self.breaker.record_success(latency_s, time.monotonic())
        if not self.is_isolated:
            return ""
        error = f"{self.breaker.reason}; isolated for {self.left_s:.0f} s, then probed"
        logger.warning("target %s: %s", self._target, error)
        return error

    def is_probe(self) -> bool:
        """Return whether the next call is the probe that an open circuit lets through."""
        return self.breaker.start_probe(time.monotonic())

    def begin_attempt(self) -> None:
        """Begin an attempt, which is the probe if the circuit is open."""
        self.is_probe()

    def record_failure(self, error: BaseException | None) -> float:
        """Record a failed attempt; return the seconds to wait before the next one."""
        return self.breaker.record_failure(time.monotonic(), str(error or ""))

    def on_retry(self, error: BaseException | None) -> None:
        """Log the error before the next try if it is new, and again from time to time while it lasts."""
        now = time.monotonic()
        if str(error) == self._said and now < self._said_at + REMIND_S:
            return
        self._said, self._said_at = str(error), now
        logger.warning("target %s: %s; trying again", self._target, error)

    def is_waited_for(self, error: BaseException | None) -> bool:
        """Return whether the loop waits and tries again after this error."""
        return should_retry(error, has_worked=self.has_worked)

    def retrying(self, stop: threading.Event) -> tenacity.Retrying:
        """Return the retries of a loop, which tries again after transient errors until `stop`."""
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(self.is_waited_for),
            wait=lambda state: self.record_failure(_error_of(state)),
            stop=tenacity.stop_when_event_set(stop),
            sleep=tenacity.sleep_using_event(stop),
            before=lambda _: self.begin_attempt(),
            before_sleep=lambda state: self.on_retry(_error_of(state)),
            reraise=True,
        )

    def record_session(self) -> None:
        """Record that the connections to broker and target are open; a later error counts as a new one."""
        self.has_worked, self._said = True, ""


def _error_of(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None
