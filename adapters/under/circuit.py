"""The circuit breaker of a target: one that fails or answers slowly is left alone for a while, then asked once.

There is no other target to ask: what a breaker gives here is that nobody leans on a server, or a file system, that
struggles, and that status says since when and why.
"""

from __future__ import annotations

import logging
import time

from venus.flow.breaker import Breaker, Circuit, Classes
from venus.patience import REMIND_S, is_waited_for

logger = logging.getLogger(__name__)

#: A target that takes so long for a few rows is left alone for so long. The classes are coarse: a lock that an
#: application holds for a second is no overload.
SLOW_CLASSES: Classes = ((5.0, 5.0), (15.0, 15.0))


class TargetCircuit:
    """What the loop of one target remembers of it across sessions."""

    def __init__(self, target: str) -> None:
        self.breaker = Breaker(errors_max=5, wait_first_s=0.1, wait_max_s=10.0, classes=SLOW_CLASSES)
        self._target = target
        #: Whether this process has ever been open at both ends.
        self.has_worked = False
        self._said = ""
        self._said_at = 0.0

    @property
    def is_isolated(self) -> bool:
        """Whether the target is left alone now."""
        return self.breaker.state is Circuit.OPEN and self.left_s > 0

    @property
    def left_s(self) -> float:
        """For how long it still is."""
        return self.breaker.left_s(time.monotonic())

    def answered(self, latency_s: float) -> str:
        """Take note of how long the target took for a few rows; return what to say if it is left alone from now on."""
        if self.is_isolated:
            return ""  # what else was still asked is no probe
        self.breaker.worked(latency_s, time.monotonic())
        if not self.is_isolated:
            return ""
        error = f"{self.breaker.reason}; it is left alone for {self.left_s:.0f} s, then asked again"
        logger.warning("target %s: %s", self._target, error)
        return error

    def is_probe(self) -> bool:
        """Whether what is asked next is the one call that an open circuit lets through."""
        return self.breaker.probe(time.monotonic())

    def begin(self) -> None:
        """Begin an attempt: it is the probe if the circuit is open."""
        self.is_probe()

    def failed(self, error: BaseException | None) -> float:
        """Take note of a failure that is tried again; return after how many seconds."""
        return self.breaker.failed(time.monotonic(), str(error or ""))

    def trying_again(self, error: BaseException | None) -> None:
        """Say so in the log: when it begins, and now and then while it lasts."""
        now = time.monotonic()
        if str(error) == self._said and now < self._said_at + REMIND_S:
            return
        self._said, self._said_at = str(error), now
        logger.warning("target %s: %s; trying again", self._target, error)

    def is_waited_for(self, error: BaseException | None) -> bool:
        """Return whether the loop tries again after this error."""
        return is_waited_for(error, has_worked=self.has_worked)

    def record_session(self) -> None:
        """Record that both ends are open: trouble from now on is another one."""
        self.has_worked, self._said = True, ""
