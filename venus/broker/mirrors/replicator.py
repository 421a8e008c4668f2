"""Replicators of the mirrored businesses: each has a thread with connections, and chooses its upstream set.

`replication_plan.py` implements the protocol, and `upstream_selection.py` chooses the upstream set.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from venus.broker.core import Core
from venus.broker.machine.mirror import filters_to_wire
from venus.broker.mirrors import session_requests
from venus.broker.mirrors.replication_plan import ReplicationPlan, check_filters, check_home
from venus.broker.mirrors.session_requests import MirrorState, ReplicatorProgress, ReplicatorStatus
from venus.broker.mirrors.topology_position import UpstreamLag
from venus.broker.mirrors.upstream_selection import (
    AwayFromNearest,
    Fitness,
    FitnessKind,
    LocalPosition,
    SelectionTimes,
    UpstreamChoice,
    UpstreamEndpoint,
    UpstreamSelection,
)
from venus.codec.stored_rows import Chunk
from venus.errors import Diverged, OtherRows, ProtocolError, Refused, Unavailable, VenusError
from venus.network.row_filters import RowFilter
from venus.rpc.channel import CLUSTER_KEEPALIVE_S, KEEPALIVE_S
from venus.rpc.snapshots import Resume, SnapshotClient
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

CREDIT_BYTES = 16 << 20
#: An upstream set must have everything that this set had this long ago; newer data may be in flight to both.
ON_THE_WAY_S = 2.0
ENDS_MAX = 64
#: Final errors of a set on trial. Without an alternative they lead to a full copy, or to an alarm.
_FINAL_ERRORS = (Refused, Diverged, ProtocolError)


class ReplicatorThread:
    """Thread that pulls one business. Thread-safe."""

    def __init__(
        self,
        core: Core,
        business: str,
        only: tuple[str, ...],
        choice: UpstreamChoice,
        may_pull: Callable[[str], None],
        where: tuple[RowFilter, ...] = (),
    ) -> None:
        self.business, self.only = business, only
        self._plan = ReplicationPlan(core, business, only, choice, may_pull, time.monotonic, where)
        self._connections: SessionConnections | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"venus-pull-{business}", daemon=True)

    @property
    def progress(self) -> ReplicatorProgress:
        """Progress of the replicator."""
        return self._plan.progress

    def start(self) -> None:
        """Start pulling."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; waits for its running request."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        """Run one session after the other until stopped; record each error and wait."""
        while not self._stop.is_set():
            try:
                self._run_session()
            except VenusError as error:
                self._record_error(error)
            except Exception as error:
                logger.exception("%s: pulling failed; retrying", self.business)
                self._plan.on_end(Unavailable())
                self.progress.enter(MirrorState.WAITING, f"pulling failed: {error!r}")
            self._stop.wait(self._plan.wait_s)

    def _record_error(self, error: VenusError) -> None:
        """Report an error to the plan, and log it if the mirror's state has changed."""
        if not self._stop.is_set() and self._plan.on_end(error):
            logger.warning("%s: the mirror is %s: %s", self.business, self.progress.status.state.value, error)

    def _run_session(self) -> None:
        """Carry out the requests of one session."""
        session = self._plan.session()
        try:
            call = next(session)
            while True:
                call = self._step(session, call)
        finally:
            session.close()
            if self._connections is not None:
                self._connections.close()
                self._connections = None

    def _step(
        self, session: Generator[session_requests.Call, Any, None], call: session_requests.Call
    ) -> session_requests.Call:
        """Carry out a request of a session, pass the answer or error to it, and return its next request."""
        if self._connections is None:
            assert self._plan.at is not None, "a session begins with the choice of the upstream"
            self._connections = SessionConnections(self._plan.at, self.business, self.only, self._stop)
        try:
            answer = self._connections.carry_out(call)
        except Exception as error:
            return session.throw(error)
        return session.send(answer)


class SessionConnections:
    """Connections of one session. Once the broker stops, every request but CloseSnapshot raises Unavailable."""

    def __init__(
        self, above: UpstreamEndpoint, business: str, only: tuple[str, ...], stopping: threading.Event
    ) -> None:
        self._above, self._business, self._only, self._stopping = above, business, only, stopping
        self._snapshots: SnapshotClient | None = None
        self._stream: Subscriber | None = None
        self._at: Resume | None = None  # `at` of the current split
        self._chunks: Iterator[Chunk] = iter(())

    def carry_out(self, call: session_requests.Call) -> Any:
        """Carry out a request and return its answer."""
        if isinstance(call, session_requests.CloseSnapshot):
            return self._snapshot_client().close(call.snapshot_id)
        if self._stopping.is_set():
            raise Unavailable("the broker is stopping")
        match call:
            case session_requests.OpenSnapshot():
                return self._snapshot_client().open(
                    self._business,
                    splits=1,
                    lease_s=call.lease_s,
                    holder=call.holder,
                    only=self._only,
                    where=filters_to_wire(call.where),
                )
            case session_requests.RenewSnapshot():
                return self._snapshot_client().renew(call.snapshot_id)
            case session_requests.NextChunk():
                return self._next_chunk(call)
            case session_requests.OpenStream():
                return self._open_stream(call)
            case session_requests.WaitForIncrements():
                assert self._stream is not None, "a stream is opened first"
                increments = self._stream.increments(call.wait_s)
                return increments, self._stream.position
            case session_requests.Acknowledge():
                assert self._stream is not None, "a stream is opened first"
                return self._stream.acknowledge(call.offset)
            case session_requests.WaitForCommit():
                return call.future.result()

    def _snapshot_client(self) -> SnapshotClient:
        """Return the client for snapshots of the upstream set; create it at its first use."""
        if self._snapshots is None:
            self._snapshots = SnapshotClient(
                self._above.reach, keepalive_s=CLUSTER_KEEPALIVE_S if self._above.is_one_of else KEEPALIVE_S
            )
        return self._snapshots

    def _next_chunk(self, call: session_requests.NextChunk) -> Chunk:
        if call.at is not self._at:
            self._at = call.at
            self._chunks = self._snapshot_client().read_split(call.snapshot_id, call.split, call.at)
        return next(self._chunks)

    def _open_stream(self, call: session_requests.OpenStream) -> tuple[str, broker_pb2.Opened]:
        above = self._above
        if self._stream is None:
            self._stream = Subscriber(
                above.reach,
                self._business,
                above.group,
                credit_bytes=CREDIT_BYTES,
                only=self._only,
                set_id=above.set_id,
                where=filters_to_wire(call.where),
                keepalive_s=CLUSTER_KEEPALIVE_S if above.is_one_of else KEEPALIVE_S,
            )
        opened = self._stream.open(call.offset, call.epoch, rows=call.rows)
        check_filters(is_filtered=opened.filters or not call.where, above=above.set)
        check_home(opened.home, call.home_term, above.set)
        return self._stream.address, opened

    def close(self) -> None:
        """Close the connections, after pending acknowledgements were sent."""
        for part in (self._stream, self._snapshots):
            if part is not None:
                with suppress(VenusError):
                    part.close()


class Replicator:
    """Mirroring of one business. `above` returns how to reach a set, `failing` is called when the set in use fails.

    Thread-safe.
    """

    def __init__(
        self,
        core: Core,
        business: str,
        names: Sequence[str],
        above: Callable[[str], UpstreamEndpoint],
        failing: Callable[[], None],
        monotonic: Callable[[], float],
        times: SelectionTimes,
    ) -> None:
        self.business = business
        self.lag = UpstreamLag()
        self.thread: ReplicatorThread | None = None
        self._core, self._above, self._failing, self._monotonic = core, above, failing, monotonic
        self._lock = threading.Lock()
        self._selection = UpstreamSelection(names, monotonic(), times)
        self._ends: deque[tuple[float, LocalPosition]] = deque(maxlen=ENDS_MAX)

    # -- for the replicator (upstream_selection.py) ---------------------------------------------------------------

    def choose_upstream(self) -> UpstreamEndpoint:
        """Return the upstream set to pull from. Raises Refused, Unavailable."""
        try:
            return self._above(self._selection.in_use)
        except (Refused, Unavailable) as error:
            self._record_failure(str(error), for_good=False)
            raise

    def is_current(self, above: UpstreamEndpoint) -> bool:
        """Whether this is still the upstream set in use."""
        return self._selection.in_use == above.set

    def record_success(self) -> None:
        """Record that the received data continues the local history."""
        with self._lock:
            self._selection.record_success()

    def record_end(self, above: UpstreamEndpoint, error: Exception) -> bool:
        """Record why the session ended. Return True if the session was a failed trial of another upstream set."""
        for_good = isinstance(error, _FINAL_ERRORS) and self._selection.is_trial
        if isinstance(error, OtherRows) and not for_good and self._selection.in_use == above.set:
            self._record_other_rows(str(error))
            return False
        if self._selection.in_use != above.set or not (for_good or isinstance(error, Unavailable)):
            return False
        return self._record_failure(str(error), for_good=for_good)

    def _record_failure(self, why: str, *, for_good: bool) -> bool:
        """Record that pulling has failed; return whether a set on trial was left."""
        with self._lock:
            before = self._selection.in_use
            left = self._selection.record_failure(self._monotonic(), why, for_good=for_good)
            now_at = self._selection.in_use
        if left:
            logger.warning("%s: set %s was tried and failed; back to set %s: %s", self.business, before, now_at, why)
        self._failing()
        return left

    def _record_other_rows(self, why: str) -> None:
        """Record that the set in use has other rows than this mirror."""
        with self._lock:
            self._selection.record_other_rows(self._monotonic(), why)
        self._failing()

    # -- polls and state -------------------------------------------------------------------------------------------

    @property
    def in_use(self) -> str:
        """The upstream set in use."""
        return self._selection.in_use

    @property
    def is_trial(self) -> bool:
        """Whether the set in use is on trial: its data has not been shown to continue the local history."""
        return self._selection.is_trial

    @property
    def is_well(self) -> bool:
        """Whether the set in use serves well, so that no other is needed."""
        return self._selection.is_well and self.status.state in (
            MirrorState.FOLLOWING,
            MirrorState.FILLING,
            MirrorState.ELSEWHERE,
        )

    @property
    def status(self) -> ReplicatorStatus:
        """Progress of the replicator."""
        assert self.thread is not None, "begin() of Replicators sets the replicator"
        return self.thread.progress.status

    def local_position(self) -> LocalPosition:
        """Return the local position, as of a moment ago: data in flight must not make an upstream look late."""
        now, found = self._monotonic(), self._core.catalogue
        newest = LocalPosition()
        if found.has_stored(self.business):
            business = found.find(self.business)
            if business.committed.mirror is not None and business.committed.mirror.end:
                newest = LocalPosition(end=business.committed.next_offset, epoch=business.epoch_at_end)
        with self._lock:
            if not self._ends or now - self._ends[-1][0] > ON_THE_WAY_S / 4:
                self._ends.append((now, newest))
            while len(self._ends) > 1 and now - self._ends[1][0] >= ON_THE_WAY_S:
                self._ends.popleft()
            before = min((self._ends[0][1], newest), key=lambda here: here.end)
            return replace(before, next=newest.end)

    def update_upstreams(self, names: Sequence[str], renamed: Mapping[str, str]) -> None:
        """Update the list of upstream sets."""
        with self._lock:
            self._selection.update_names(names, renamed, self._monotonic())

    def on_check(self, name: str, found: Fitness) -> None:
        """Record a health check of a set; move to another set if it is time."""
        now = self._monotonic()
        with self._lock:
            self._selection.record_check(name, found, now)
            before = self._selection.in_use
            if not self._selection.move_if_due(now, busy=self.status.state is MirrorState.FILLING):
                return
            now_at = self._selection.in_use
        logger.warning("%s: now pulls from set %s, no longer from set %s", self.business, now_at, before)

    def start(self, found: Mapping[str, Fitness]) -> None:
        """Choose the first upstream set by the first health check of every set, and start pulling."""
        with self._lock:
            for name, one in found.items():
                self._selection.record_check(name, one, self._monotonic())
            self._selection.choose_first(self._monotonic())
        assert self.thread is not None, "begin() of Replicators sets the replicator"
        self.thread.start()

    # -- status ----------------------------------------------------------------------------------------------------

    def absence(self) -> AwayFromNearest | None:
        """Return why the nearest set is not in use; None = it is in use, or another broker pulls the business."""
        with self._lock:
            return None if self.status.state is MirrorState.ELSEWHERE else self._selection.absence()

    def best_fitness(self) -> FitnessKind:
        """Return the best fitness of the upstream sets, for a broker that does not pull itself."""
        with self._lock:
            return self._selection.best


class Replicators:
    """Replicators of all businesses. Thread-safe."""

    def __init__(
        self,
        core: Core,
        above: Callable[[str], UpstreamEndpoint],
        may_pull: Callable[[str], None],
        monotonic: Callable[[], float],
        thread_class: type[ReplicatorThread],
        failing: Callable[[], None],
        times: SelectionTimes,
    ) -> None:
        self._core, self._above, self._may_pull = core, above, may_pull
        self._monotonic, self._thread_class, self._failing = monotonic, thread_class, failing
        self._times = times
        self._replicators: dict[str, Replicator] = {}

    def __contains__(self, business: str) -> bool:
        """Whether a business is pulled."""
        return business in self._replicators

    def get(self, business: str) -> Replicator | None:
        """Return the replicator of a business, None if it is not pulled."""
        return self._replicators.get(business)

    @property
    def all(self) -> list[Replicator]:
        """The replicators, by name of the business."""
        return [pull for _, pull in sorted(self._replicators.items())]

    def start(
        self,
        business: str,
        only: tuple[str, ...],
        where: tuple[RowFilter, ...],
        names: Sequence[str],
        judge: Callable[[str, LocalPosition], Fitness],
    ) -> None:
        """Start pulling a business. `judge` returns how fit a set is for it."""
        pull = Replicator(self._core, business, names, self._above, self._failing, self._monotonic, self._times)
        pull.thread = self._thread_class(self._core, business, only, pull, self._may_pull, where)
        here = pull.local_position()
        self._replicators[business] = pull
        pull.start({name: judge(name, here) for name in names})

    def stop(self) -> None:
        """End every thread."""
        for pull in self.all:
            if pull.thread is not None:
                pull.thread.stop()
