"""Replicators of the mirrored businesses: for each its thread with connections, and its choice of an upstream set.

`pulling.py` has the protocol, `uppers.py` the rules of the choice.
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
from venus.broker.machine import filter_wire
from venus.broker.mirrors import calls
from venus.broker.mirrors.place import Lag
from venus.broker.mirrors.progress import Progress, State, Told
from venus.broker.mirrors.pulling import Pulling, check_filters, check_home
from venus.broker.mirrors.uppers import Away, Fitness, Kind, Times, Uppers
from venus.broker.mirrors.whom import Above, Here, Whom
from venus.codec.chunk import Chunk
from venus.errors import Diverged, OtherRows, ProtocolError, Refused, Unavailable, VenusError
from venus.network.row_filters import RowFilter
from venus.rpc.channel import CLUSTER_KEEPALIVE_S, KEEPALIVE_S
from venus.rpc.snapshots import Resume, Snapshots
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

CREDIT_BYTES = 16 << 20
#: An upstream set must have everything that this set had this long ago; newer data may be in flight to both.
ON_THE_WAY_S = 2.0
ENDS_MAX = 64
#: Final errors of a set on trial. Without an alternative they lead to a full copy, or to an alarm.
_FOR_GOOD = (Refused, Diverged, ProtocolError)


class Puller:
    """Thread that pulls one business. Thread-safe."""

    def __init__(
        self,
        core: Core,
        business: str,
        only: tuple[str, ...],
        choice: Whom,
        may_pull: Callable[[str], None],
        where: tuple[RowFilter, ...] = (),
    ) -> None:
        self.business, self.only = business, only
        self._pulling = Pulling(core, business, only, choice, may_pull, time.monotonic, where)
        self._line: Line | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"venus-pull-{business}", daemon=True)

    @property
    def progress(self) -> Progress:
        """Progress of the replicator."""
        return self._pulling.progress

    def start(self) -> None:
        """Start pulling."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; waits for its running request."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._session()
            except VenusError as error:
                self._note(error)
            except Exception as error:
                logger.exception("%s: pulling failed; retrying", self.business)
                self._pulling.ended(Unavailable())
                self.progress.enter(State.WAITING, f"pulling failed: {error!r}")
            self._stop.wait(self._pulling.wait_s)

    def _note(self, error: VenusError) -> None:
        if not self._stop.is_set() and self._pulling.ended(error):
            logger.warning("%s: the mirror is %s: %s", self.business, self.progress.told.state.value, error)

    def _session(self) -> None:
        """Carry out the requests of one session."""
        session = self._pulling.session()
        try:
            call = next(session)
            while True:
                call = self._step(session, call)
        finally:
            session.close()
            if self._line is not None:
                self._line.close()
                self._line = None

    def _step(self, session: Generator[calls.Call, Any, None], call: calls.Call) -> calls.Call:
        if self._line is None:
            assert self._pulling.at is not None, "a session begins with the choice of the upstream"
            self._line = Line(self._pulling.at, self.business, self.only, self._stop)
        try:
            answer = self._line.answer(call)
        except Exception as error:
            return session.throw(error)
        return session.send(answer)


class Line:
    """Connections of one session. Once the broker stops, every request but CloseSnapshot raises Unavailable."""

    def __init__(self, above: Above, business: str, only: tuple[str, ...], stopping: threading.Event) -> None:
        self._above, self._business, self._only, self._stopping = above, business, only, stopping
        self._snapshots: Snapshots | None = None
        self._stream: Subscriber | None = None
        self._at: Resume | None = None  # of the current split
        self._chunks: Iterator[Chunk] = iter(())

    def answer(self, call: calls.Call) -> Any:
        """Carry out a request and return its answer."""
        if isinstance(call, calls.CloseSnapshot):
            return self._full_data().close(call.snapshot_id)
        if self._stopping.is_set():
            raise Unavailable("the broker is stopping")
        match call:
            case calls.OpenSnapshot():
                return self._full_data().open(
                    self._business, splits=1, lease_s=call.lease_s, holder=call.holder, only=self._only,
                    where=filter_wire.to_wire(call.where),
                )  # fmt: skip
            case calls.RenewSnapshot():
                return self._full_data().renew(call.snapshot_id)
            case calls.NextChunk():
                return self._next(call)
            case calls.OpenStream():
                return self._open(call)
            case calls.Increments():
                assert self._stream is not None, "a stream is opened first"
                increments = self._stream.increments(call.wait_s)
                return increments, self._stream.position
            case calls.Acknowledge():
                assert self._stream is not None, "a stream is opened first"
                return self._stream.acknowledge(call.offset)
            case calls.Settle():
                return call.future.result()

    def _full_data(self) -> Snapshots:
        if self._snapshots is None:
            self._snapshots = Snapshots(
                self._above.reach, keepalive_s=CLUSTER_KEEPALIVE_S if self._above.is_one_of else KEEPALIVE_S
            )
        return self._snapshots

    def _next(self, call: calls.NextChunk) -> Chunk:
        if call.at is not self._at:
            self._at = call.at
            self._chunks = self._full_data().read_split(call.snapshot_id, call.split, call.at)
        return next(self._chunks)

    def _open(self, call: calls.OpenStream) -> tuple[str, broker_pb2.Opened]:
        above = self._above
        if self._stream is None:
            self._stream = Subscriber(
                above.reach, self._business, above.group, credit_bytes=CREDIT_BYTES, only=self._only,
                set_id=above.set_id, where=filter_wire.to_wire(call.where),
                keepalive_s=CLUSTER_KEEPALIVE_S if above.is_one_of else KEEPALIVE_S,
            )  # fmt: skip
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


class Pull:
    """Mirroring of one business. `above` returns how to reach a set, `failing` is called when the set in use fails.

    Thread-safe.
    """

    def __init__(
        self, core: Core, business: str, names: Sequence[str], above: Callable[[str], Above],
        failing: Callable[[], None], monotonic: Callable[[], float], times: Times,
    ) -> None:  # fmt: skip
        self.business = business
        self.lag = Lag()
        self.puller: Puller | None = None
        self._core, self._above, self._failing, self._monotonic = core, above, failing, monotonic
        self._lock = threading.Lock()
        self._uppers = Uppers(names, monotonic(), times)
        self._ends: deque[tuple[float, Here]] = deque(maxlen=ENDS_MAX)

    # -- for the replicator (whom.py) ------------------------------------------------------------------------------

    def above(self) -> Above:
        """Return the upstream set to pull from. Raises Refused, Unavailable."""
        try:
            return self._above(self._uppers.in_use)
        except (Refused, Unavailable) as error:
            self._failed(str(error), for_good=False)
            raise

    def still(self, above: Above) -> bool:
        """Whether this is still the upstream set in use."""
        return self._uppers.in_use == above.set

    def pulls(self) -> None:
        """Record that the received data continues the local history."""
        with self._lock:
            self._uppers.pulls()

    def ended(self, above: Above, error: Exception) -> bool:
        """Record why the session ended. Return True if it was only a probe of another upstream."""
        for_good = isinstance(error, _FOR_GOOD) and self._uppers.is_trial
        if isinstance(error, OtherRows) and not for_good and self._uppers.in_use == above.set:
            self._has_other_rows(str(error))
            return False
        if self._uppers.in_use != above.set or not (for_good or isinstance(error, Unavailable)):
            return False
        return self._failed(str(error), for_good=for_good)

    def _failed(self, why: str, *, for_good: bool) -> bool:
        with self._lock:
            before = self._uppers.in_use
            left = self._uppers.failed(self._monotonic(), why, for_good=for_good)
            now_at = self._uppers.in_use
        if left:
            logger.warning("%s: set %s was tried and failed; back to set %s: %s", self.business, before, now_at, why)
        self._failing()
        return left

    def _has_other_rows(self, why: str) -> None:
        with self._lock:
            self._uppers.has_other_rows(self._monotonic(), why)
        self._failing()

    # -- polls and state -------------------------------------------------------------------------------------------

    @property
    def in_use(self) -> str:
        """The upstream set in use."""
        return self._uppers.in_use

    @property
    def is_trial(self) -> bool:
        """Whether the set in use has yet to prove that it has the local history."""
        return self._uppers.is_trial

    @property
    def is_well(self) -> bool:
        """Whether the set in use serves well, so that no other is needed."""
        return self._uppers.is_well and self.told.state in (State.FOLLOWING, State.FILLING, State.ELSEWHERE)

    @property
    def told(self) -> Told:
        """Progress of the replicator."""
        assert self.puller is not None, "begin() of Pulls sets the replicator"
        return self.puller.progress.told

    def here(self) -> Here:
        """Return the local position, as of a moment ago: data in flight must not make an upstream look late."""
        now, found = self._monotonic(), self._core.catalogue
        newest = Here()
        if found.has(self.business):
            business = found.known(self.business)
            if business.committed.mirror is not None and business.committed.mirror.end:
                newest = Here(end=business.committed.next_offset, epoch=business.epoch_at_end)
        with self._lock:
            if not self._ends or now - self._ends[-1][0] > ON_THE_WAY_S / 4:
                self._ends.append((now, newest))
            while len(self._ends) > 1 and now - self._ends[1][0] >= ON_THE_WAY_S:
                self._ends.popleft()
            before = min((self._ends[0][1], newest), key=lambda here: here.end)
            return replace(before, next=newest.end)

    def known(self, names: Sequence[str], renamed: Mapping[str, str]) -> None:
        """Update the list of upstream sets."""
        with self._lock:
            self._uppers.known(names, renamed, self._monotonic())

    def looked(self, name: str, found: Fitness) -> None:
        """Record a health check of a set; move to another set if it is time."""
        now = self._monotonic()
        with self._lock:
            self._uppers.looked(name, found, now)
            before = self._uppers.in_use
            if not self._uppers.step(now, busy=self.told.state is State.FILLING):
                return
            now_at = self._uppers.in_use
        logger.warning("%s: now pulls from set %s, no longer from set %s", self.business, now_at, before)

    def begin(self, found: Mapping[str, Fitness]) -> None:
        """Choose the first upstream set by the first health check of every set, and start pulling."""
        with self._lock:
            for name, one in found.items():
                self._uppers.looked(name, one, self._monotonic())
            self._uppers.begin(self._monotonic())
        assert self.puller is not None, "begin() of Pulls sets the replicator"
        self.puller.start()

    # -- status ----------------------------------------------------------------------------------------------------

    def away(self) -> Away | None:
        """Return why the nearest set is not in use; None = it is, or another broker pulls."""
        with self._lock:
            return None if self.told.state is State.ELSEWHERE else self._uppers.away()

    def best(self) -> Kind:
        """Return the best fitness of the upstream sets, for a broker that does not pull itself."""
        with self._lock:
            return self._uppers.best


class Pulls:
    """Replicators of all businesses. Thread-safe."""

    def __init__(
        self, core: Core, above: Callable[[str], Above], may_pull: Callable[[str], None],
        monotonic: Callable[[], float], puller: type[Puller], failing: Callable[[], None],
        times: Times,
    ) -> None:  # fmt: skip
        self._core, self._above, self._may_pull = core, above, may_pull
        self._monotonic, self._puller, self._failing = monotonic, puller, failing
        self._times = times
        self._pulls: dict[str, Pull] = {}

    def __contains__(self, business: str) -> bool:
        """Whether a business is pulled."""
        return business in self._pulls

    def get(self, business: str) -> Pull | None:
        """Return the replicator of a business, None if it is not pulled."""
        return self._pulls.get(business)

    @property
    def all(self) -> list[Pull]:
        """The replicators, by name of the business."""
        return [pull for _, pull in sorted(self._pulls.items())]

    def begin(
        self, business: str, only: tuple[str, ...], where: tuple[RowFilter, ...], names: Sequence[str],
        judge: Callable[[str, Here], Fitness],
    ) -> None:  # fmt: skip
        """Start pulling a business. `judge` returns how fit a set is for it."""
        pull = Pull(
            self._core, business, names, self._above, self._failing, self._monotonic, self._times
        )  # fmt: skip
        pull.puller = self._puller(self._core, business, only, pull, self._may_pull, where)
        here = pull.here()
        self._pulls[business] = pull
        pull.begin({name: judge(name, here) for name in names})

    def stop(self) -> None:
        """End every thread."""
        for pull in self.all:
            if pull.puller is not None:
                pull.puller.stop()
