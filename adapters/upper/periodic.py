"""Periodic tasks between cuts: reviews, heartbeat, dictionary, blockers; and the wait for missing grants.

While the source's user lacks privileges on VENUS's own tables, capture keeps its position and ships nothing. The
stream to the broker is opened even so, without the source's position, and reports what is missing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from venus.adapters.dialects.contract import MissingGrant, Source
from venus.adapters.upper.ingest import IngestClient
from venus.adapters.upper.report import Reporter
from venus.adapters.upper.session import CONNECT_TIMEOUT_MIN_S, CaptureSession, SourceClaim
from venus.rpc.conditions import ROWS_EVERY_S, AdapterCondition, own_table_condition, problems

#: Interval of comparing registry and dictionary: changes that no cut meets wait at most this long.
REFRESH_S = 3.0
#: Comparing a large dictionary may take at most one part in this many of the time.
REFRESH_SHARE = 100
#: A transaction that is open for this long is reported: its changes cannot be captured before it ends.
BLOCKED_S = 10.0


class PeriodicTasks:
    """Timers of one session."""

    def __init__(
        self, session: CaptureSession, reporter: Reporter, *, heartbeat_s: float, monotonic: Callable[[], float]
    ) -> None:
        self._session = session
        self._reporter = reporter
        self._monotonic = monotonic
        self._heartbeat_s = heartbeat_s
        self._next_beat = self._next_refresh = self._next_count = float("-inf")
        self._was_filling = False

    def rest_s(self) -> float:
        """Return how long no timer is due; the broker may ask at any time."""
        return max(0.0, min(self._next_beat, self._next_refresh) - self._monotonic())

    def run(self) -> None:
        """Run the tasks that are due."""
        now = self._monotonic()
        self._reporter.count(reviews_answered=self._session.answer_reviews())
        if now >= self._next_beat:
            self._next_beat = now + self._heartbeat_s
            self._session.source.capture.write_heartbeat()
        if now >= self._next_refresh:
            self._session.refresh_schemas()
            self._report_figures(now)
            self._reporter.update(blocked_by=self._blocked_by(), fills=self._session.fills.progress)
            done = self._monotonic()
            self._next_refresh = done + max(REFRESH_S, REFRESH_SHARE * (done - now))

    def _report_figures(self, now: float) -> None:
        """Report the progress of fills, and periodically the number of rows."""
        due, filling = now >= self._next_count, not self._session.fills.finished
        if due:
            self._next_count = now + ROWS_EVERY_S
            self._session.count_rows(time.time_ns() // 1000)
        if due or filling or self._was_filling:
            self._session.report_figures()
        self._was_filling = filling

    def _blocked_by(self) -> str:
        waits = {
            table_id: age
            for table_id, (_, age) in self._session.source.capture.read_backlog().items()
            if age >= BLOCKED_S
        }
        if not waits:
            return ""
        table_id = max(waits, key=lambda t: waits[t])
        return f"{self._session.schemas.newest(table_id).qualified}: a transaction open for {waits[table_id]:.0f} s"


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

    Raises Fenced if another upper adapter has taken over meanwhile, and Held if one is active.
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
        producer.take_reviews()  # cannot be answered; raises what broke the stream
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
