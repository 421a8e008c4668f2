"""The upper adapter: ships cuts of a source as half messages and decisions (VENUS 3.1-3.3).

One thread runs one loop: periodic tasks, one cut, the next poll, which does not wait for the broker's answer to the
last COMMIT. After a failure that is retried, a new session opens source and broker again under a new epoch
(session.py).
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial

from tenacity import RetryCallState, Retrying, retry_if_exception, sleep_using_event, stop_when_event_set

from venus.adapters.dialects.contract import MissingGrant, Source
from venus.adapters.dialects.registry import describe_database, open_source
from venus.adapters.upper.batching import PollInterval
from venus.adapters.upper.comparisons import Compare, FillComparisons, compare_fill
from venus.adapters.upper.cutting import CutResult, Cutter
from venus.adapters.upper.ingest import Connect, IngestClient
from venus.adapters.upper.periodic import LIMIT_S, CaptureReport, FillReport, PeriodicTasks, Reporter, wait_for_grants
from venus.adapters.upper.session import CaptureSession, SourceClaim, open_session
from venus.config import Settings
from venus.errors import Unavailable, VenusError
from venus.flow.breaker import should_retry
from venus.model import BatchNo
from venus.rpc.address import PRODUCER, broker_address
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
from venus.wire.broker_pb2 import BusinessStatus

#: How long a clean stop waits for the answer to the last COMMIT; without it the half stays open until the restart.
GOODBYE_S = 5.0
WAITING = "waiting to reconnect"
#: The first attempts follow quickly, because another broker leads within seconds. Then pauses grow.
QUICK_TRIES = 20
QUICK_MAX_S = 0.25
BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 10.0


def connect_producer(settings: Settings) -> IngestClient:
    """Open a stream to the broker of the settings."""
    return Producer(
        broker_address(settings, PRODUCER),
        settings.business.name,
        f"{socket.gethostname()}:{os.getpid()}",
        window_bytes_max=settings.capture.window_bytes_max,
    )


def read_broker_status(settings: Settings) -> BusinessStatus:
    """Return the state of the business at the broker; an unknown business has committed nothing."""
    with closing(AdminClient(broker_address(settings, PRODUCER))) as admin:
        businesses = admin.status(settings.business.name).businesses
    return businesses[0] if businesses else BusinessStatus()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureDependencies:
    """Dependencies of the adapter: source and broker, which are reopened after every failure, clock and randomness."""

    source: Callable[[Settings], Source] = open_source
    ingest: Connect = connect_producer
    broker_status: Callable[[Settings], BusinessStatus] = read_broker_status
    monotonic: Callable[[], float] = time.monotonic
    owner: Callable[[], str] = lambda: uuid.uuid4().hex
    compare: Compare = compare_fill


REAL = CaptureDependencies()


def run_capture(
    settings: Settings,
    stop: threading.Event,
    *,
    report: Callable[[CaptureReport], None] | None = None,
    outside: CaptureDependencies = REAL,
    take_over: bool = False,
    may_read_again: Callable[[], bool] = lambda: True,
    describe_switch: Callable[[], str] = lambda: "",
) -> None:
    """Capture until `stop` is set.

    Transient failures (a database or a broker that is away) are retried without limit. Raises Held if another upper
    adapter is active, unless `take_over` is set; Fenced if another one has taken over; Refused if the source was
    restored from a backup and may not be read again; and every error that is not retryable.
    """
    loop = CaptureLoop(settings, stop, report, outside, take_over=take_over)
    loop.claim.may_read_again = may_read_again
    loop.describe_switch = describe_switch
    loop.run()


def run_capture_fill(
    settings: Settings,
    stop: threading.Event,
    report: Callable[[CaptureReport], None] | None = None,
    *,
    outside: CaptureDependencies = REAL,
) -> FillReport:
    """Capture until every registered table has been read once; resumes where an earlier run ended.

    Raises Fenced if a permanent capture takes over, and Held if one is already active. If the broker already has
    everything, no stream is opened, because a stream would needlessly disturb the permanent capture.
    """
    filled, last_batch = _fill_report(settings, outside)
    if not filled.complete or not _has_committed(settings, outside, last_batch, stop):
        CaptureLoop(settings, stop, report, outside, gives_way=True).run(until=_is_filled)
        filled, _ = _fill_report(settings, outside)
    return filled


def _is_filled(session: CaptureSession) -> bool:
    """Return whether the first fill of every readable table is complete, also where it is a comparison."""
    return session.fills.is_finished and not session.fills.compared


def _fill_report(settings: Settings, outside: CaptureDependencies) -> tuple[FillReport, BatchNo]:
    """Return how many rows of each table have been read, and the last batch that the source committed."""
    with closing(outside.source(settings)) as source:
        tables = source.registry.read_registered_tables()
        last_batch = source.registry.read_state().last_batch
    report = FillReport(
        rows={t.schema.qualified_name: t.fill.rows_done for t in tables}, complete=all(t.is_read for t in tables)
    )
    return report, last_batch


def _has_committed(
    settings: Settings, outside: CaptureDependencies, last_batch: BatchNo, stop: threading.Event
) -> bool:
    """Return whether the broker has committed this batch, or does so soon because its producer is connected."""
    deadline = outside.monotonic() + GOODBYE_S
    while True:
        try:
            status = outside.broker_status(settings)
        except Unavailable:
            return False  # the capture that starts next waits for the broker
        if status.last_batch >= last_batch:
            return True
        if not status.producer or outside.monotonic() >= deadline or stop.wait(0.05):
            return False


class CaptureLoop:
    """Runs one capture session after another, with growing pauses after failed attempts."""

    def __init__(
        self,
        settings: Settings,
        stop: threading.Event,
        report: Callable[[CaptureReport], None] | None,
        outside: CaptureDependencies,
        *,
        take_over: bool = False,
        gives_way: bool = False,
    ) -> None:
        self._settings = settings
        self._stop = stop
        self._reporter = Reporter(report, monotonic=outside.monotonic)
        self._outside = outside
        self.claim = SourceClaim(owner=outside.owner(), take_over=take_over, gives_way=gives_way)
        self._next_limit = float("-inf")
        self._comparisons = FillComparisons(settings, stop, outside.compare, monotonic=outside.monotonic)
        #: What to do about an unfinished switch of the application, as text; empty = nothing.
        self.describe_switch: Callable[[], str] = lambda: ""

    def run(self, *, until: Callable[[CaptureSession], bool] = lambda session: False) -> None:
        """Run until stopped, or until `until` returns True."""
        try:
            self._run_sessions(until)
        finally:
            self._comparisons.close()

    def _run_sessions(self, until: Callable[[CaptureSession], bool]) -> None:
        """Run sessions until one reports that it is finished, or until stopped. Raises errors that are not retried."""
        finished = False
        while not finished and not self._stop.is_set():
            try:
                finished = self._build_retrying()(self._run_session, until)
            except VenusError as e:
                if self._stop.is_set() and e.retryable:
                    break
                self._reporter.set_state("failed", error=e)
                raise
        self._reporter.set_state("stopped")

    def _build_retrying(self) -> Retrying:
        """Return the loop that repeats failed sessions after growing pauses."""
        return Retrying(
            retry=retry_if_exception(self._is_waited_for),
            wait=lambda retry: pause_s(retry.attempt_number, random.random()),
            stop=stop_when_event_set(self._stop),
            sleep=sleep_using_event(self._stop),
            before_sleep=self._note_failure,
            reraise=True,
        )

    def _is_waited_for(self, error: BaseException) -> bool:
        """Return whether to pause and open a new session after this error."""
        return should_retry(error, has_worked=self._reporter.current.connections > 0)

    def _note_failure(self, retry: RetryCallState) -> None:
        """Report the error that ended a session, before the pause."""
        assert retry.outcome is not None
        self._reporter.set_state(WAITING, error=retry.outcome.exception())
        self._reporter.remind()

    def _run_session(self, until: Callable[[CaptureSession], bool]) -> bool:
        """Run one session; return whether it ended because `until` was reached.

        A session that failed after a commit does not count as a failed attempt: the pauses between attempts are short
        again.
        """
        if self._reporter.current.state != WAITING:
            self._reporter.set_state("connecting")
        cuts_before = self._reporter.current.cuts
        try:
            with (
                closing(self._outside.source(self._settings)) as source,
                closing(self._outside.ingest(self._settings)) as producer,
            ):
                self._limit_logs(source)
                timeout_s = self._settings.capture.cut_timeout_s
                if lacks := source.capture.find_missing_grants():
                    self._wait_for_grants(lacks, producer, timeout_s)
                    return False
                chosen = self._settings.source
                session = open_session(
                    source, producer, self.claim, timeout_s=timeout_s, include=chosen.tables, exclude=chosen.exclude
                )
                session.business = self._settings.business.name
                session.place = describe_database(self._settings.source.url.get_secret_value())
                session.describe_switch = self.describe_switch
                self._reporter.count(connections=1)
                self._capture_until(session, until)
                _close_session(session)
                return until(session)
        except VenusError as e:
            if not e.retryable or self._reporter.current.cuts == cuts_before:
                raise
            self._reporter.set_state("reconnecting", error=e)
            return False

    def _limit_logs(self, source: Source) -> None:
        """Apply the limits of the logs while nothing is captured: the broker may be away for days."""
        if (now := self._outside.monotonic()) >= self._next_limit:
            self._next_limit = now + LIMIT_S
            source.capture.limit_logs()

    def _wait_for_grants(self, lacks: Sequence[MissingGrant], producer: IngestClient, timeout_s: float) -> None:
        """Wait until the privileges that capture lacks are granted, or until stopped."""
        opened = partial(self._outside.source, self._settings)
        wait_for_grants(opened, lacks, producer, self.claim, self._stop, self._reporter, timeout_s=timeout_s)

    def _capture_until(self, session: CaptureSession, until: Callable[[CaptureSession], bool]) -> None:
        """Alternate periodic tasks and cuts, until stopped or until `until` returns True."""
        limits = self._settings.capture
        pace = PollInterval(min_s=limits.poll_min_ms / 1000, max_s=limits.poll_max_ms / 1000)
        chores = PeriodicTasks(
            session, self._reporter, heartbeat_s=limits.heartbeat_s, monotonic=self._outside.monotonic
        )
        cutter = Cutter(session, limits, self._stop, self._reporter)
        while not self._stop.is_set() and not until(session):
            now = self._outside.monotonic()
            chores.run()
            self._comparisons.offer(session.fills.compared, session.next_sequence)
            self._reporter.set_state("capturing" if session.fills.is_finished else "filling")
            filling = not session.fills.is_finished
            if cutter.cut() is CutResult.CHANGES:
                pace.on_traffic(now)
                if not filling:
                    session.source.capture.wait(pace.next_delay_s(now))
            elif not session.source.capture.wait(pause_s := pace.next_delay_s(now), chores.rest_s()):
                self._stop.wait(pause_s)
            self._reporter.tick()


def pause_s(failures: int, chance: float) -> float:
    """Return how long to wait after `failures` failures in a row; `chance` from 0 to 1 is the jitter."""
    if failures <= QUICK_TRIES:
        return chance * QUICK_MAX_S
    return chance * min(BACKOFF_MAX_S, BACKOFF_MIN_S * float(2 ** min(failures - QUICK_TRIES, 30)))


def _close_session(session: CaptureSession) -> None:
    """Wait for the answer to the last COMMIT, so that no half stays undecided while the producer is away."""
    if session.confirmed is not None:
        with suppress(VenusError):
            session.producer.wait_until_decided(session.confirmed, GOODBYE_S)
