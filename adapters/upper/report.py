"""Reports of the upper adapter: to a callback about once a second, to the log once per state change."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from venus.adapters.upper.fills import FillProgress
from venus.flow.retry_rules import REMIND_S

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
_FIGURES = re.compile(r"\d[\d,.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureReport:
    """Counters since the process started, and the current state."""

    state: str = "starting"
    cuts: int = 0
    batches: int = 0
    rows: int = 0
    #: From the snapshot of the last cut to the end of its local transaction.
    lag_s: float = 0.0
    last_captured_at_us: int = 0
    reviews_answered: int = 0
    retracted_cuts: int = 0
    connections: int = 0
    blocked_by: str = ""
    last_error: str = ""
    fills: tuple[FillProgress, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FillReport:
    """The outcome of `run_capture_fill`: rows read per table; not `complete` if it was stopped before the end."""

    rows: dict[str, int]
    complete: bool


def _without_figures(text: str) -> str:
    return _FIGURES.sub("#", text)


class Reporter:
    """Keeps the current report and passes it on: every second, and at once when the state changes."""

    def __init__(
        self, callback: Callable[[CaptureReport], None] | None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._callback = callback
        self._monotonic = monotonic
        self._next = self._logged_at = float("-inf")
        self.current = CaptureReport()

    def update(self, **changes: Any) -> None:
        """Change fields of the report; due or not, nothing is passed on for counters alone."""
        self.current = replace(self.current, **changes)

    def count(self, **increments: int) -> None:
        """Add to counters."""
        if any(increments.values()):
            self.update(**{name: getattr(self.current, name) + n for name, n in increments.items()})

    def set_state(self, state: str, *, error: BaseException | None = None) -> None:
        """Enter a state; log one line if it is new. An error that differs in figures only is not new."""
        is_news = error is not None and _without_figures(str(error)) != _without_figures(self.current.last_error)
        changed = state != self.current.state or is_news
        if not changed:
            return  # called at every poll
        self._logged_at = self._monotonic()
        self.update(state=state, **({"last_error": str(error)} if error is not None else {}))
        if error is not None:
            logger.warning("capture: %s: %s", state, error)
        else:
            logger.info("capture: %s", state)
        self.emit()

    def remind(self) -> None:
        """Log a lasting error again, every REMIND_S."""
        if self._monotonic() >= self._logged_at + REMIND_S:
            self._logged_at = self._monotonic()
            logger.warning("capture: %s: %s", self.current.state, self.current.last_error)
            self.emit()

    def tick(self) -> None:
        """Pass the report on if a second has passed."""
        if self._monotonic() >= self._next:
            self.emit()

    def emit(self) -> None:
        """Pass the report on now."""
        self._next = self._monotonic() + INTERVAL_S
        if self._callback is not None:
            self._callback(self.current)
