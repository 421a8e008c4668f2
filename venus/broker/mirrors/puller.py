"""One business that is pulled from the set above: a consumer group there, a writer of the log here.

It acknowledges above what is safe here, so the set above keeps what this one has not taken. Whatever goes wrong on the
way ends the stream, never the broker: the next one begins at the first offset that is not here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from venus.broker.core import Core
from venus.broker.machine.business import Business
from venus.broker.mirrors.filling import fill, said_of
from venus.broker.mirrors.progress import Progress, State
from venus.broker.queue import places
from venus.errors import Diverged, NotLeader, OffsetDiverged, OffsetTrimmed, Refused, Unavailable, VenusError
from venus.rpc.snapshots import Snapshots
from venus.rpc.subscriber import Subscriber

logger = logging.getLogger(__name__)

CREDIT_BYTES = 16 << 20
#: So many groups of batches are on their way to the disk.
TAKES_AHEAD = 16
WAIT_S = 0.2
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0
#: Offsets that are not for this set are passed over at most so often.
PASS_EVERY_S = 0.2
LEASE_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Above:
    """The set that is pulled from, and who pulls."""

    reach: str
    set: str
    network: str
    group: str


class Puller:
    """The thread of one business. `may_pull` raises NotLeader or Unavailable where another broker of the set pulls."""

    def __init__(
        self,
        core: Core,
        business: str,
        only: tuple[str, ...],
        above: Callable[[], Above],
        may_pull: Callable[[str], None],
    ) -> None:
        self.business, self.only = business, only
        self.progress = Progress(core.clock_us)
        self._core, self._above, self._may_pull = core, above, may_pull
        self._again = ""  # why the full data has to be taken again
        self._stop = threading.Event()
        self._stream: Subscriber | None = None
        self._thread = threading.Thread(target=self._run, name=f"venus-pull-{business}", daemon=True)

    def start(self) -> None:
        """Pull from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, at the latest when what it waits for is answered."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        wait_s = RETRY_FIRST_S
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._may_pull(self.business)
                self._pull()
            except VenusError as error:
                self._note(error)
            except Exception as error:
                logger.exception("%s: pulling failed; it is tried again", self.business)
                self.progress.enter(State.WAITING, f"pulling failed: {error!r}")
            wait_s = RETRY_FIRST_S if time.monotonic() - began > RETRY_MAX_S else min(2 * wait_s, RETRY_MAX_S)
            self._stop.wait(wait_s)

    def _note(self, error: VenusError) -> None:
        """Say why it does not go on now."""
        if self._stop.is_set():
            return
        match error:
            case OffsetTrimmed() | OffsetDiverged():
                self._again = str(error)
            case NotLeader():
                self.progress.enter(State.ELSEWHERE, str(error))
                return
        if isinstance(error, Refused | Diverged) and not self._again:
            state = State.REFUSED
        elif isinstance(error, Unavailable) and self._has_full_data():
            state = State.CUT_OFF
        else:
            state = State.WAITING
        if self.progress.enter(state, str(error)):
            logger.warning("%s: the mirror is %s: %s", self.business, state.value, error)

    def _has_full_data(self) -> bool:
        with suppress(VenusError):
            mirror = self._core.catalogue.known(self.business).committed.mirror
            return mirror is not None and mirror.end > 0
        return False

    def _check(self) -> None:
        if self._stop.is_set():
            raise Unavailable("the broker is stopping")

    # -- pulling -----------------------------------------------------------------------------------------------

    def _pull(self) -> None:
        mirrors = self._core.mirrors
        business = mirrors.enter(self.business)
        try:
            above = self._above()
            reason = self._reason(business)
            if reason is None:
                self._follow(business, above)
            else:
                self._begin_again(business, above, reason)
        finally:
            mirrors.leave(business)

    def _reason(self, business: Business) -> str | None:
        """Return why the full data is to be taken, "" the first time, None if there is no reason."""
        mirror = business.proposed.mirror
        if mirror is None:
            return ""
        if mirror.only != self.only:
            return "the labels have changed"
        if not mirror.end:
            return self._again or mirror.reason or "it was interrupted"
        return self._again or None

    def _begin_again(self, business: Business, above: Above, reason: str) -> None:
        """Take the full data, and follow from its cut on."""
        progress = self.progress
        progress.enter(State.FILLING, reason, above.reach)
        progress.fills()
        with Snapshots(above.reach) as snapshots:
            snapshot = snapshots.open(self.business, splits=1, lease_s=LEASE_S, holder=above.group, only=self.only)
            try:
                said = said_of(snapshot, above=above.set, network=above.network, only=self.only, reason=reason)
                fill(snapshots, snapshot, self._core.mirrors, business, said, progress, self._check)
                self._again = ""
                self._follow(business, above, lambda: snapshots.close(snapshot.snapshot_id))
            except BaseException:
                with suppress(VenusError):
                    snapshots.close(snapshot.snapshot_id)
                raise

    def _follow(self, business: Business, above: Above, opened: Callable[[], None] = lambda: None) -> None:
        """Take what is committed above, until the stream ends. `opened` is called once the queue is kept for us."""
        with Subscriber(above.reach, self.business, above.group, credit_bytes=CREDIT_BYTES, only=self.only) as stream:
            self._open(stream, business)
            opened()
            self.progress.enter(State.FOLLOWING, "", stream.address)
            self._take_all(stream, business)

    def _open(self, stream: Subscriber, business: Business) -> None:
        """Begin with the newest batch that is here: it shows whether the set above has the same history."""
        newest = places.newest(self._core.store, business)
        end = business.proposed.next_offset
        if newest is not None and business.log_start <= newest.base_offset < end:
            with suppress(OffsetTrimmed):
                stream.open(newest.base_offset, business.epoch_at_end)
                return
        stream.open(end, business.epoch_at_end)

    def _take_all(self, stream: Subscriber, business: Business) -> None:
        going: deque[tuple[Future[int], int]] = deque()
        taken, passed_at = business.proposed.next_offset, time.monotonic()
        while not self._stop.is_set():
            increments = stream.increments(0.0 if going else WAIT_S)
            position, now = stream.position, time.monotonic()
            if increments or (position > taken and now - passed_at > PASS_EVERY_S):
                self.progress.pulled(sum(len(increment.body) for increment in increments))
                future = self._core.mirrors.take(business, increments, position, sparse=bool(self.only))
                going.append((future, increments[-1].committed_at_us if increments else 0))
                taken, passed_at = position, now
            while going and (len(going) >= TAKES_AHEAD or not increments or going[0][0].done()):
                self._taken(stream, *going.popleft())

    def _taken(self, stream: Subscriber, future: Future[int], committed_at_us: int) -> None:
        """Acknowledge above what is safe here."""
        stream.acknowledge(future.result())
        if committed_at_us:
            self.progress.arrived(committed_at_us)
