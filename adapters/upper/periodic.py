"""Periodic tasks between cuts: reviews, heartbeat, dictionary, blockers, reports; and the wait for missing grants.

Reports go to a callback about once a second, and to the log once per state change.

While the source's user lacks privileges on VENUS's own tables, capture keeps its position and ships nothing. Capture
still opens the stream to the broker, without the source's position, and reports the missing privileges.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from venus.adapters.dialects.contract import MissingGrant, Source
from venus.adapters.upper.fills import FillProgress
from venus.adapters.upper.ingest import IngestClient
from venus.adapters.upper.session import CONNECT_TIMEOUT_MIN_S, CaptureSession, SourceClaim
from venus.flow.breaker import REMIND_S
from venus.rpc.conditions import ROWS_EVERY_S, AdapterCondition, own_table_condition, problems

#: Interval of comparing registry and dictionary: changes that no cut reveals wait at most this long.
REFRESH_S = 3.0
#: Comparing a large dictionary may take at most 1/REFRESH_SHARE of the time.
REFRESH_SHARE = 100
#: A transaction that is open for this long is reported: its changes cannot be captured before it ends.
BLOCKED_S = 10.0
#: Interval of comparing the sizes of the logs with their limits.
LIMIT_S = 30.0


class PeriodicTasks:
    """The periodic tasks of one session, each with the time at which it is due."""

    def __init__(
        self, session: CaptureSession, reporter: Reporter, *, heartbeat_s: float, monotonic: Callable[[], float]
    ) -> None:
        self._session = session
        self._reporter = reporter
        self._monotonic = monotonic
        self._heartbeat_s = heartbeat_s
        self._next_beat = self._next_refresh = self._next_count = self._next_blocked = float("-inf")
        self._next_limit = monotonic() + LIMIT_S  # the logs were limited before the session was opened
        self._was_filling = False
        self._switch = ""

    def rest_s(self) -> float:
        """Return how long no task is due. Reviews by the broker may come at any time."""
        return max(0.0, min(self._next_beat, self._next_refresh) - self._monotonic())

    def run(self) -> None:
        """Run the tasks that are due."""
        now = self._monotonic()
        self._reporter.count(reviews_answered=self._session.answer_reviews())
        if now >= self._next_beat:
            self._next_beat = now + self._heartbeat_s
            self._session.source.capture.write_heartbeat()
        if now >= self._next_limit:
            self._next_limit = now + LIMIT_S
            self._session.source.capture.limit_logs()
        if now >= self._next_refresh:
            self._session.refresh_schemas()
            self._report_figures(now)
            self._reporter.update(fills=self._session.fills.progress)
            self._report_blockers(now)
            done = self._monotonic()
            every_s = max(REFRESH_S, REFRESH_SHARE * (done - now))
            self._next_refresh = done + every_s
            self._session.record_comparing(every_s)

    def _report_figures(self, now: float) -> None:
        """Report the progress of fills, an unfinished switch, and periodically the number of rows."""
        due, filling = now >= self._next_count, not self._session.fills.is_finished
        switch = self._session.describe_switch()
        if due:
            self._next_count = now + ROWS_EVERY_S
            self._session.count_rows(time.time_ns() // 1000)
        if due or filling or self._was_filling or switch != self._switch:
            self._session.report_figures()
        self._was_filling, self._switch = filling, switch

    def _report_blockers(self, now: float) -> None:
        """Report a transaction that is open for long. While no transaction blocks, check every BLOCKED_S seconds."""
        if now >= self._next_blocked or self._reporter.current.blocked_by:
            self._next_blocked = now + BLOCKED_S
            self._reporter.update(blocked_by=self._describe_blocker())

    def _describe_blocker(self) -> str:
        """Describe the longest wait of a table's changes for an open transaction; empty if below BLOCKED_S."""
        waits = {
            table_id: age
            for table_id, (_, age) in self._session.source.capture.read_backlog().items()
            if age >= BLOCKED_S
        }
        if not waits:
            return ""
        table_id = max(waits, key=lambda t: waits[t])
        return (
            f"{self._session.schemas.newest(table_id).qualified_name}: a transaction open for {waits[table_id]:.0f} s"
        )


logger = logging.getLogger(__name__)

#: Interval of checking whether the privileges were granted.
LOOK_S = 3.0
REFUSED = "waiting for privileges"


def wait_for_grants(
    opened: Callable[[], Source],
    missing: Sequence[MissingGrant],
    producer: IngestClient,
    claim: SourceClaim,
    stop: threading.Event,
    reporter: Reporter,
    *,
    timeout_s: float,
) -> None:
    """Wait until no grant is missing, or until `stop` is set; `missing`: the grants that are missing now.

    Each check uses a new session, because a server may not show new grants to an existing one.

    Raises Fenced if another upper adapter has taken over in the meantime, and Held if one is active.
    """
    # the epoch stays out of the claim: it is not raised at the source, where a later one may be
    producer.connect(
        0,
        0,
        timeout_s=max(timeout_s, CONNECT_TIMEOUT_MIN_S),
        owner=claim.owner,
        take_over=claim.take_over,
        gives_way=claim.gives_way,
    )
    claim.take_over = False
    reporter.set_state(REFUSED)
    _report_missing_grants(producer, missing)
    while missing and not stop.wait(LOOK_S):
        producer.take_reviews()  # reviews cannot be answered; raises the error of a broken stream
        reporter.tick()
        with closing(opened()) as source:
            lacks = source.capture.find_missing_grants()
        if lacks != missing:
            _report_missing_grants(producer, lacks)
            missing = lacks


def _report_missing_grants(producer: IngestClient, lacks: Sequence[MissingGrant]) -> None:
    condition = AdapterCondition.of(own_table_condition(lack.table, lack.grant) for lack in lacks)
    for problem in problems(condition):
        logger.warning("%s", problem)
    producer.report(condition)


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
    """Return a text with all figures replaced, so that texts that differ only in figures are equal."""
    return _FIGURES.sub("#", text)


class Reporter:
    """Sender of the current report: every second, and at once when the state changes."""

    def __init__(
        self, callback: Callable[[CaptureReport], None] | None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._callback = callback
        self._monotonic = monotonic
        self._next = self._logged_at = float("-inf")
        self.current = CaptureReport()

    def update(self, **changes: Any) -> None:
        """Change fields of the current report, without sending it."""
        self.current = replace(self.current, **changes)

    def count(self, **increments: int) -> None:
        """Add to counters of the current report."""
        if any(increments.values()):
            self.update(**{name: getattr(self.current, name) + n for name, n in increments.items()})

    def set_state(self, state: str, *, error: BaseException | None = None) -> None:
        """Enter a state of capture; log a line if it is new. An error is not new if only its figures differ."""
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
