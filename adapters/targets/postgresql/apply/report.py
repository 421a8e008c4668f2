"""What the apply loop remembers across sessions with the target, and what it tells whoever runs it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from venus.adapters.targets.contract import FollowReport
from venus.adapters.targets.postgresql.database import TableState
from venus.adapters.targets.postgresql.rows.verdicts import Verdicts
from venus.flow.breaker import Breaker, Circuit, Classes

logger = logging.getLogger(__name__)

REPORT_S = 0.5
HESITATE_S = 60.0
#: A target that takes so long for a few rows is left alone for so long. There is no other one to ask, so the classes
#: are coarse: a lock that an application holds for a second is no overload.
SLOW_CLASSES: Classes = ((5.0, 5.0), (15.0, 15.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyReport(FollowReport):
    """What the loop says of itself to whoever runs it."""

    circuit: str
    held: tuple[TableState, ...] = ()
    constraints: str = ""


Report = Callable[[ApplyReport], None]


class Loop:
    """One loop's memory: counters, the circuit, verdicts on refused rows, the wish to stop."""

    def __init__(self, target: str, stop: threading.Event, report: Report | None) -> None:
        self.stop = stop
        self.breaker = Breaker(errors_max=5, wait_first_s=0.1, wait_max_s=10.0, classes=SLOW_CLASSES)
        #: What is decided about refused rows of the cut that is being applied; outlives a session.
        self.verdicts = Verdicts()
        self._target = target
        self._report = report
        self._constraints = ""
        self._rows = self._transactions = 0
        self._reported = 0.0
        self._offset = 0
        self._ahead_from = 0.0
        #: Tables of which a cut must not be merged piece by piece.
        self.whole: set[int] = set()

    @property
    def goes_ahead(self) -> bool:
        """Whether cuts are to be written before they are decided."""
        return time.monotonic() >= self._ahead_from

    def hesitate(self, reason: str) -> None:
        """Write the cuts of the next minute only after their decision."""
        logger.info("target %s: a cut waits for its decision: %s", self._target, reason)
        self._ahead_from = time.monotonic() + HESITATE_S

    def merge_whole(self, table_id: int) -> None:
        """From now on merge every cut of this table whole."""
        logger.info("target %s: cuts of table %s are merged whole from now on", self._target, table_id)
        self.whole.add(table_id)

    @property
    def stopped(self) -> bool:
        return self.stop.is_set()

    def wait(self, seconds: float) -> None:
        """Wait, but not longer than until stop."""
        self.stop.wait(seconds)

    def begun(self, offset: int) -> None:
        """Take note of where a session begins."""
        self._offset = offset

    def applied(self, offset: int, rows: int) -> None:
        """Take note of a transaction."""
        self.verdicts = Verdicts()
        self.breaker.worked(0.0, time.monotonic())
        self._offset = offset
        self._rows += rows
        self._transactions += 1

    def answered(self, latency_s: float) -> None:
        """Take note of how long the target took for a few rows; a slow one is left alone for a while."""
        if self.is_isolated:
            return  # what else was still asked is no probe
        self.breaker.worked(latency_s, time.monotonic())
        if self.is_isolated:
            error = f"{self.breaker.reason}; it is left alone for {self.left_s:.0f} s, then asked again"
            logger.warning("target %s: %s", self._target, error)
            self.tell((), error=error, now=True)

    @property
    def is_isolated(self) -> bool:
        """Whether the target is left alone now."""
        return self.breaker.state is Circuit.OPEN and self.left_s > 0

    @property
    def left_s(self) -> float:
        """For how long it still is."""
        return self.breaker.left_s(time.monotonic())

    def constraints(self, text: str) -> None:
        """Say once how foreign keys are treated."""
        if text != self._constraints:
            self._constraints = text
            logger.info("target %s: %s", self._target, text)

    def begin(self) -> None:
        """Begin an attempt: it is the probe if the circuit is open."""
        self.breaker.probe(time.monotonic())

    def failed(self, error: BaseException | None) -> None:
        """Take note of a failure that is tried again."""
        logger.warning("target %s: %s; trying again (%s)", self._target, error, self.breaker.state.value)
        self.tell((), error=str(error), now=True)

    def tell(self, held: Sequence[TableState], *, error: str = "", now: bool = False) -> None:
        """Report, not too often."""
        if self._report is None or (not now and time.monotonic() - self._reported < REPORT_S):
            return
        self._reported = time.monotonic()
        self._report(
            ApplyReport(
                target=self._target, offset=self._offset, rows=self._rows, transactions=self._transactions,
                circuit=self.breaker.state.value, error=error, held=tuple(held), constraints=self._constraints,
            )
        )  # fmt: skip
