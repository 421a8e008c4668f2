"""The product's replication plan, run in virtual time over links that may be cut."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from tests.simulation.brokers.disk import BUSINESS
from tests.simulation.brokers.streams import Stream
from tests.simulation.judge import Violation
from tests.simulation.tiers import faults
from tests.simulation.tiers.clients import request
from tests.simulation.tiers.rows import EVERY, Admits, find_admitted
from venus.broker.core import Core
from venus.broker.machine.mirror import filters_to_wire
from venus.broker.mirrors import session_requests
from venus.broker.mirrors.replication_plan import ReplicationPlan, _CutTooEarly, _UpstreamChanged
from venus.broker.mirrors.replicator import Replicator
from venus.broker.mirrors.session_requests import ReplicatorProgress
from venus.broker.mirrors.upstream_selection import UpstreamChoice
from venus.codec.stored_rows import SealedChunk, decode_chunk
from venus.errors import OffsetDiverged, OffsetTrimmed, OtherRows, SnapshotExpired, Unavailable, VenusError
from venus.network.row_filters import RowFilter
from venus.rpc import reports
from venus.rpc.snapshots import Resume
from venus.wire import broker_pb2

if TYPE_CHECKING:
    from tests.simulation.tiers.host import TierHost

#: A set gives up a stream that is not answered within this time.
ANSWERED_S = 5.0
#: Maximum number of sessions that a set begins within a second.
BEGUN_MAX = 20


class SimulatedReplicator:
    """A `ReplicatorThread` that runs in the loop."""

    def __init__(
        self,
        core: Core,
        business: str,
        only: tuple[str, ...],
        choice: UpstreamChoice,
        may_pull: Callable[[str], None],
        where: tuple[RowFilter, ...] = (),
    ) -> None:
        self.host = cast("TierHost", core._host)  # type: ignore[attr-defined]
        self.business, self.only = business, only
        self._own = find_admitted(self.host.where)
        self._begun: deque[float] = deque(maxlen=BEGUN_MAX)
        self._last = ""  # the set of the last session
        self._followed_last = ""  # the set whose rows are here
        self._moves = False  # whether it leaves a set that serves
        self._pulling = ReplicationPlan(core, business, only, choice, may_pull, lambda: self.host.loop.now, where)
        self._session: Generator[session_requests.Call, Any, None]
        self._clear()

    @property
    def progress(self) -> ReplicatorProgress:
        return self._pulling.progress

    def start(self) -> None:
        self.host.soon(0.0, self._begin)

    def stop(self) -> None:
        """Do nothing: the process ends by itself."""

    # -- sessions --------------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        """Reset the state of a session."""
        self._stream: Stream | None = None
        self._arrived: deque[broker_pb2.Increment] = deque()
        self._position = 0
        self._error: VenusError | None = None  # error of the stream
        self._again = self._pulling._again
        self._reading: Resume | None = None
        self._read_at = 0  # process life of the set above that serves the snapshot
        self._chunks: Iterator[SealedChunk] = iter(())
        self._waits = 0  # only the answer to the newest call counts
        self._wants_increments = False
        self._began = False  # whether the next answer of the log means that full data has begun

    def _begin(self) -> None:
        """Begin a session."""
        now = self.host.loop.now
        self._begun.append(now)
        if len(self._begun) == BEGUN_MAX and now - self._begun[0] < 1.0:
            raise Violation(
                "a failed move waits before the next attempt", f"{self.host.name}: {BEGUN_MAX} tries in a second"
            )
        self._clear()
        self._session = self._pulling.session()
        self._take_step(lambda: next(self._session))

    def _take_step(self, step: Callable[[], session_requests.Call]) -> None:
        """Take the next step of a session, and make the call that it requests."""
        try:
            call = step()
        except VenusError as error:
            self._on_failure(error)
            return
        self._ask(call)

    def _on_failure(self, error: VenusError) -> None:
        """End the session with an error, and begin the next one later."""
        counts, world = self.host.loop.counts, self.host.world
        if isinstance(error, OffsetDiverged) and len(world.timelines) == 1 and not counts["fault: start other network"]:
            raise Violation("no consumer is refused as diverged within one history", f"{self.host.name}: {error}")
        if isinstance(error, OffsetDiverged | OffsetTrimmed | OtherRows | SnapshotExpired):
            counts[f"pulling ended: {type(error).__name__}"] += 1
        if isinstance(error, OffsetTrimmed) and "loaded the full data again" in str(error):
            counts["a set learned at its own offset that the set above was filled again"] += 1
        if isinstance(error, OtherRows) and not self._pull.is_trial:
            counts["a set without another choice found other rows"] += 1
        if isinstance(error, _CutTooEarly):
            counts["full data waited for a later cut"] += 1
        if self._stream is not None:
            self._stream.close()
        before = self._pull.is_trial
        is_news, again = self._pulling.on_end(error), self._pulling._again
        self._moves = isinstance(error, _UpstreamChanged)
        if before and self._pulling.at is not None and self._pull.in_use != self._pulling.at.set:
            counts["a set above that was tried was left"] += 1
        if before and again and not self._again:
            raise Violation("a failed probe causes no refill", f"{self.host.name}: {error}")
        self._again = again
        if is_news:
            self.host.loop.say(f"{self.host.name} is {self.progress.status.state.value}: {error}")
        self.host.soon(self._pulling.wait_s, self._begin)

    def _answer(self, ticket: int, answer: Any, error: BaseException | None) -> None:
        """Pass the answer to a call on to the session, unless a newer call waits."""
        if ticket != self._waits:
            return
        self._waits += 1
        self._wants_increments = False
        if isinstance(error, VenusError):
            failure = error
            self._take_step(lambda: self._session.throw(failure))
        elif error is not None:
            raise error
        else:
            self._take_step(lambda: self._session.send(answer))

    def _soon(self, answer: Any = None, error: BaseException | None = None, after: float = 0.0001) -> None:
        """Answer the current call after a moment."""
        self.host.soon(after, self._answer, self._waits, answer, error)

    @property
    def _pull(self) -> Replicator:
        found = self.host.network._pulls.get(self.business)
        assert found is not None
        return found

    @property
    def _upper(self) -> TierHost:
        assert self._pulling.at is not None, "a session begins with a choice of its upstream"
        return self.host.world.hosts[self._pulling.at.set]

    # -- requests ----------------------------------------------------------------------------------------------

    def _ask(self, call: session_requests.Call) -> None:
        """Make the call that a session requests."""
        match call:
            case session_requests.WaitForCommit():
                self._settle(call.future)
            case session_requests.OpenStream():
                self._open(call)
            case session_requests.WaitForIncrements():
                self._wants_increments = True
                if self._arrived or self._error is not None or not call.wait_s:
                    self._hand_out()
                else:
                    self.host.soon(call.wait_s, self._on_wait_end, self._waits)
            case session_requests.Acknowledge():
                assert self._stream is not None
                self.host.world.judge.on_acknowledgement(self.host, call.offset)
                self._stream.up(self._upper_of_stream.clients.acknowledge, self._stream, call.offset)
                self._soon()
            case _:
                self._request(call)

    def _settle(self, future: Future[Any]) -> None:
        """Answer the current call when the log has executed a command."""
        ticket = self._waits

        def on_settled(done: Future[Any]) -> None:
            error = done.exception()
            if self._began and error is None:
                self.host.world.judge.rows.on_full_data(self.host)
            self._began = False
            self.host.soon(0.0001, self._answer, ticket, None if error else done.result(), error)

        future.add_done_callback(on_settled)

    def _request(self, call: session_requests.Call) -> None:
        """Send a request to the set above."""
        ticket, upper = self._waits, self._upper
        if isinstance(call, session_requests.NextChunk):
            life = self.host.life
            faults.at_chunk(self.host.world, self.host, upper)
            if self.host.life != life:
                return

        def on_answer(answer: Any, error: VenusError | None) -> None:
            if isinstance(call, session_requests.NextChunk) and answer is not None:
                try:
                    call.at.take(answer)
                except VenusError as wrong:
                    answer, error = None, wrong
            self._answer(ticket, answer, error)

        request(self.host, upper, lambda found: self._at_upper(found, call), on_answer)

    def _at_upper(self, upper: TierHost, call: session_requests.Call) -> Any:
        """Execute a request in the process of the set above."""
        match call:
            case session_requests.OpenSnapshot():
                self.host.loop.counts["full data begun"] += 1
                asked = broker_pb2.OpenSnapshotRequest(
                    business=BUSINESS,
                    splits=1,
                    lease_s=5,
                    holder=call.holder,
                    only=self.only,
                    where=filters_to_wire(call.where),
                )
                snapshot = upper.clients.open_snapshot(asked)
                self.host.world.judge.rows.on_choice(self.host, self._own, upper, snapshot.snapshot_id)
                self._began = True
                if self.host.stale_where:
                    self.host.loop.counts["full data by other predicates"] += 1
                return snapshot
            case session_requests.RenewSnapshot():
                self.host.loop.counts["full data that was interrupted is asked for"] += 1
                snapshot = upper.core.full_data.renew(call.snapshot_id)
                self.host.loop.counts["full data that was interrupted continued"] += 1
                return snapshot
            case session_requests.CloseSnapshot():
                return upper.core.full_data.close(call.snapshot_id)
            case session_requests.NextChunk():
                if self._reading is not call.at or self._read_at != upper.life:
                    self._reading, self._read_at = call.at, upper.life
                    self._chunks = upper.clients.read_split(
                        broker_pb2.ReadSplitRequest(snapshot_id=call.snapshot_id, split=call.split, after=call.at.after)
                    )
                return decode_chunk(next(self._chunks).body)

    # -- the stream ------------------------------------------------------------------------------------------------

    def _open(self, call: session_requests.OpenStream) -> None:
        """Open the stream of a session at the set above."""
        upper = self._upper_of_stream = self._upper
        above = self._pulling.at
        assert above is not None
        ticket = self._waits
        self._opens(upper)
        if not upper.up:
            self._soon(error=Unavailable("the connection is refused"), after=0.05)
            return

        life = self.host.life

        def on_message(word: str, *what: Any) -> None:
            if stream is not self._stream:
                return
            if word == "opened":
                self._position = call.offset
                self._on_follow(upper, what[1])
                self.host.run(life, self._answer, (ticket, (upper.name, what[0]), None))
            else:
                self._arrived.extend(what[0])
                self._position = what[1]
                self.host.run(life, self._hand_out, ())

        def on_end(error: VenusError) -> None:
            if stream is self._stream:
                self._error = error
                if self._waits == ticket:
                    self.host.run(life, self._answer, (ticket, None, error))
                else:
                    self.host.run(life, self._hand_out, ())

        stream: Stream = Stream(upper, on_message, on_end, self.host.name)  # type: ignore[arg-type]
        self._stream, self._error = stream, None
        self.host.soon(ANSWERED_S, self._answer, ticket, None, Unavailable("no answer"))
        wanted = broker_pb2.Open(
            business=BUSINESS,
            group=above.group,
            offset=call.offset,
            epoch=call.epoch,
            only=self.only,
            where=filters_to_wire(call.where),
            rows=reports.to_wire(call.rows) if call.rows else None,
        )
        stream.up(upper.clients.subscribe, stream, above.group, call.offset, call.epoch, self.only, call.where, wanted)

    def _on_follow(self, upper: TierHost, above: Admits) -> None:
        """Check that the rows of the increments that follow fit the rows that this set has."""
        host, rows = self.host, self.host.world.judge.rows
        rows.on_follow(host, above)
        if self._followed_last not in ("", upper.name) and rows.admitted_at(host) != EVERY:
            host.loop.counts["a set with predicates continued at another set with the same rows"] += 1
        self._followed_last = upper.name

    def _opens(self, upper: TierHost) -> None:
        """Check the change of sets before the next stream opens."""
        host, last = self.host, self._last
        if self._stream is not None and self._stream.open:
            raise Violation("a business is pulled from one set at a time", f"{host.name} from {last} and {upper.name}")
        if last and last != upper.name:
            host.loop.say(f"{host.name} pulls from {upper.name}, no longer from {last}")
            is_back = upper.name == host.upstream[0]
            did = "went back to the nearest" if is_back else "continued at another"
            host.loop.counts[f"a set {did} set above"] += 1
            if self._moves:
                host.loop.counts["a set left one that served"] += 1
                host.world.judge.on_move(host, upper)
        self._last, self._moves = upper.name, False

    def _on_wait_end(self, ticket: int) -> None:
        """End a wait for increments; notice a broken connection as keepalive would."""
        stream = self._stream
        if ticket != self._waits or stream is None:
            return
        ends = {(self.host.name, stream.host.name), (stream.host.name, self.host.name)}
        if stream.host.life != stream.life or ends & self.host.world.network.cut:
            stream.break_off()  # as keepalive would notice
        self._hand_out()

    def _hand_out(self) -> None:
        """Answer a wait for increments with those that have arrived, or with the stream's error."""
        if not self._wants_increments:
            return
        if self._error is not None and not self._arrived:
            self._soon(error=self._error)
        else:
            increments = list(self._arrived)
            self._arrived.clear()
            self._soon((increments, self._position))
        self._wants_increments = False
