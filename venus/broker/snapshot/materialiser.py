"""The materialiser builds the full data: committed batches become rows, one per record_id (VENUS 3.3, table 3).

It runs in its own thread, off the acknowledgement path, in steps of bounded size (step.py). Between two steps at the
end of a cut it also makes checkpoints, so that a snapshot shows whole transactions of the source. A checkpoint is made
within a cut only if the cut's end does not come within CUT_END_WAIT_S, or if a mirror has no more of the cut yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from venus.broker.machine.business import Business
from venus.broker.queue.buffer import BodyBuffer
from venus.broker.queue.reader import incomplete_error
from venus.broker.snapshot.scavenger import Scavenger
from venus.broker.snapshot.scrub import Scrub
from venus.broker.snapshot.step import MaterialiserStep
from venus.broker.snapshot.watched_rows import FoldObserver
from venus.broker.store import keys
from venus.broker.store.files import FreeSpace
from venus.broker.store.options import DELAYING_FILES, DELAYING_MEMTABLES
from venus.broker.store.rocks import Store
from venus.errors import StorageError, Unavailable, VenusError
from venus.flow.precedence import SMALL_BYTES, Precedence

#: A step ends after this many bytes of bodies, or one batch. While large work pauses, the limit falls to the second
#: value.
STEP_BYTES_MAX, STEP_BYTES_LEAST = 1 << 20, 128 << 10
#: While a replica catches up, its full data pauses for at most this long, and while it lags by less than this multiple
#: of the buffer: the log then has the disk and the interpreter's lock, and the replica counts as a copy sooner.
CATCH_UP_REST_S, CATCH_UP_REST_BUFFERS = 30.0, 4
#: Interval and limit of checks whether RocksDB accepts rows without a delay.
FLUSH_LOOK_S, FLUSH_LOOKS_MAX = 0.01, 100
#: Waiting begins this many files below the number that delays writes, because more files may be coming.
FILES_BEFORE = 4


class MaterialiserPacing:
    """Slows the materialiser for small commits and for RocksDB's files. Used by one thread.

    `pause` waits for at most a number of seconds and returns True if there is more urgent work.
    """

    def __init__(
        self, store: Store, precedence: Precedence, *, monotonic: Callable[[], float], pause: Callable[[float], bool]
    ) -> None:
        self._store = store
        self._precedence = precedence
        self._monotonic = monotonic
        self._pause = pause

    def step_bytes(self) -> int:
        """Return how many bytes of batches the next step may take."""
        return self._precedence.slice_bytes(STEP_BYTES_MAX, STEP_BYTES_LEAST, self._monotonic())

    def must_pause(self) -> bool:
        """Return whether large work must pause for small commits now."""
        return self._precedence.should_rest(self._monotonic())

    def pause_after(self, began: float) -> None:
        """Pause after large work that started at `began`."""
        now = self._monotonic()
        if rest_s := self._precedence.rest_s("full data", now - began, now):
            self._pause(rest_s)

    def wait_for_files(self) -> None:
        """Wait while memtables are flushed or files are merged. A write that RocksDB delays would delay all others."""
        for _ in range(FLUSH_LOOKS_MAX):
            if not self._is_near_delays() or self._pause(FLUSH_LOOK_S):
                return

    def _is_near_delays(self) -> bool:
        """Return whether RocksDB is close to delaying writes."""
        store = self._store
        return (
            store.count_full_memtables(keys.ROW) >= DELAYING_MEMTABLES - 1
            or store.count_unmerged_files(keys.ROW) >= DELAYING_FILES - FILES_BEFORE
        )


#: Limit of a checkpoint's wait for the end of a cut.
CUT_END_WAIT_S = 10.0
#: Interval between two steps of the scrub or the scavenger, and between two checks of free space.
IDLE_S = 0.5
#: While neither the scrub nor the scavenger has work, the thread waits for this many intervals, because each one wakes
#: an idle broker.
QUIET = 20
#: Steps of the scrub follow each other for this long while there is nothing else to do. Then it rests this many times
#: as long, also while each commit wakes the thread: otherwise it would take half of a core from small transactions.
SCRUB_S, SCRUB_REST = 0.02, 20
#: A view for looking up watched rows is released after this long without batches.
VIEW_IDLE_S = 5.0
#: Commits of less than `SMALL_BYTES` together are collected for this long, unless a snapshot waits for the full data.
LINGER_S = 0.1
#: Rows of a fill are collected up to this size, for this long, because they become files: the fewer, the better.
FILL_BYTES, FILL_LINGER_S = 8 << 20, 0.25


@dataclass(slots=True, eq=False)
class _CheckpointRequest:
    """A requested checkpoint: it waits until the full data has reached `offset`."""

    business: Business
    offset: int
    path: Path
    deadline: float
    future: Future[None]


class Materialiser:
    """The thread that turns the batches of the queue into the rows of the full data."""

    def __init__(
        self,
        store: Store,
        buffer: BodyBuffer,
        space: FreeSpace,
        *,
        monotonic: Callable[[], float],
        scavenger: Scavenger,
        scrub: Scrub,
        on_fatal: Callable[[BaseException], None],
        precedence: Precedence | None = None,
        catches_up: Callable[[Business], bool] = lambda _: False,
    ) -> None:
        self._store = store
        self._catches_up = catches_up
        self._rest_bytes_max = CATCH_UP_REST_BUFFERS * buffer.bytes_max
        self._space = space
        self._monotonic = monotonic
        self._scavenger = scavenger
        self._scrub = scrub
        self._on_fatal = on_fatal
        self._step = MaterialiserStep(store, buffer, scavenger=scavenger, scrub=scrub)
        self._pacing = MaterialiserPacing(store, precedence or Precedence(0.0), monotonic=monotonic, pause=self._pause)
        self._changed = threading.Condition()
        self._pending: set[Business] = set()
        self._wanted: list[_CheckpointRequest] = []
        self._leaving: list[tuple[Business, Future[None]]] = []
        self._stopping = False
        self._paused = False
        self._folded_at = self._scrub_at = 0.0
        self._thread = threading.Thread(target=self._run, name="venus-materialise", daemon=True)

    def observe(self, observer: FoldObserver) -> None:
        """Set the observer that is notified of each batch that becomes rows, from the next step on."""
        self._step.observer = observer

    def start(self, businesses: Sequence[Business]) -> None:
        """Start the thread, and let it work first on these businesses."""
        self._pending.update(businesses)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current step."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def notify(self, business: Business) -> None:
        """Record that a business has new batches, or new rows of a mirror's full data."""
        with self._changed:
            begins = not self._pending
            self._pending.add(business)
            if begins or self._is_urgent():
                self._changed.notify_all()

    def checkpoint(self, business: Business, path: Path) -> Future[None]:
        """Request a checkpoint of the store with everything visible now, if possible at the end of a cut."""
        future: Future[None] = Future()
        deadline = self._monotonic() + CUT_END_WAIT_S
        with self._changed:
            if self._stopping:
                future.set_exception(Unavailable("the broker is stopping"))
                return future
            if business.is_forgotten:
                future.set_exception(Unavailable(f"business {business.name!r} is being forgotten"))
                return future
            self._wanted.append(_CheckpointRequest(business, business.visible_offset, path, deadline, future))
            self._pending.add(business)
            self._changed.notify_all()
        return future

    def forget(self, business: Business) -> Future[None]:
        """Stop all further work for a business. The future is resolved once nothing is written for it any more."""
        future: Future[None] = Future()
        with self._changed:
            if self._stopping:
                future.set_exception(Unavailable("the broker is stopping"))
            else:
                self._leaving.append((business, future))
                self._changed.notify_all()
        return future

    @property
    def behind_bytes(self) -> int:
        """How many bytes of the queue are not in the full data yet; 0 while it waits for free space."""
        with self._changed:
            return 0 if self._paused else sum(business.unmaterialised_bytes() for business in self._pending)

    def behind_by_business(self) -> dict[str, int]:
        """Return `behind_bytes` of each business that lags."""
        with self._changed:
            return {} if self._paused else {found.name: found.unmaterialised_bytes() for found in self._pending}

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Work on businesses until the thread must end; then fail the requests that still wait."""
        try:
            while self._wait():
                self._drop_leaving()
                if not self._space.has_room_for_data():
                    self._set_paused(True)
                    continue
                self._set_paused(False)
                self._run_round()
        except BaseException as error:
            self._abandon(error)
            self._on_fatal(error)
        else:
            self._abandon(Unavailable("the broker is stopping"))
        finally:
            self._step.drop_view()

    def _wait(self) -> bool:
        """Wait for work; return False if the thread must end."""
        with self._changed:
            if not self._stopping and not self._leaving and (self._paused or not self._pending):
                self._changed.wait(IDLE_S if self._paused or self._is_tidying() else QUIET * IDLE_S)
            if self._pending and not self._paused:
                is_filling = all(business.is_filling for business in self._pending)
                self._changed.wait_for(self._is_urgent, FILL_LINGER_S if is_filling else LINGER_S)
            return not self._stopping

    def _is_tidying(self) -> bool:
        """Return whether the scavenger or the scrub has work."""
        return self._scavenger.is_at_work or self._scrub.is_at_work

    def _is_urgent(self) -> bool:
        """Return whether there is work that must not wait for more small commits. The caller holds the lock."""
        if self._stopping or self._leaving or self._wanted:
            return True
        nbytes = 0
        for business in self._pending:  # one of the first is usually enough, and this runs for each commit
            if self._must_rest(business):
                continue
            nbytes += business.unmaterialised_bytes()
            if nbytes >= (FILL_BYTES if business.is_filling else SMALL_BYTES) or self._step.is_watched(business):
                return True
        return False

    def _must_rest(self, business: Business) -> bool:
        """Return whether a business must wait because this replica still catches up. Works in any thread."""
        if not self._catches_up(business):
            business.catches_up_since = None
            return False
        now = self._monotonic()
        since = business.catches_up_since = now if business.catches_up_since is None else business.catches_up_since
        return (
            now - since < CATCH_UP_REST_S
            and business.unmaterialised_bytes() < self._rest_bytes_max
            and business.is_filled
            and not self._wanted
            and not self._step.is_watched(business)
        )

    def _run_round(self) -> None:
        """Take one step for each business with work, make due checkpoints, and let scavenger and scrub work."""
        large = False
        # in the order of their keys, so that a file of RocksDB spans few businesses and is merged with few files
        for business in sorted(self._pending, key=lambda found: found.number):
            self._serve_checkpoints()
            if self._must_rest(business):
                continue
            self._pacing.wait_for_files()
            began, before = self._monotonic(), business.materialised.nbytes
            took = self._step.take(business, most=self._pacing.step_bytes(), one_batch=bool(self._wanted))
            with self._changed:
                if self._is_done(business, took=took):
                    self._pending.discard(business)
            self._folded_at = began if took else self._folded_at
            if took and (not business.is_filled or business.materialised.nbytes - before > SMALL_BYTES):
                large = True
                self._pacing.pause_after(began)
        self._serve_checkpoints()
        began = self._monotonic()
        if began - self._folded_at > VIEW_IDLE_S:
            self._step.drop_view()
        self._scavenger.step(busy=bool(self._pending))
        if began >= self._scrub_at:
            self._take_scrub_steps(began, busy=large or bool(self._pending) or self._pacing.must_pause())

    def _take_scrub_steps(self, began: float, *, busy: bool) -> None:
        """Take steps of the scrub for a limited time."""
        took = 0.0
        while self._scrub.step(busy=busy or bool(self._pending)):
            took = self._monotonic() - began
            if self._pending or took >= SCRUB_S:
                break
        if took:
            self._scrub_at = self._monotonic() + SCRUB_REST * took
            self._pacing.pause_after(began)

    def _pause(self, seconds: float) -> bool:
        """Wait for some seconds; return True if the thread must end or drop a business."""
        with self._changed:
            return self._changed.wait_for(lambda: self._stopping or bool(self._leaving), seconds)

    def _is_done(self, business: Business, *, took: bool) -> bool:
        """Return whether a business has no work now. Rows of a mirror's full data have no offsets to compare."""
        if took and business.committed.mirror is not None:
            return False
        return business.materialised.offset >= business.visible_offset or not business.is_filled

    def _drop_leaving(self) -> None:
        """Drop the businesses for which `forget` was called, and resolve the futures that it returned."""
        with self._changed:
            leaving, self._leaving = self._leaving, []
            for business, _ in leaving:
                self._pending.discard(business)
                business.is_forgotten = True
            gone = [wanted for wanted in self._wanted if wanted.business.is_forgotten]
            self._wanted = [wanted for wanted in self._wanted if not wanted.business.is_forgotten]
        for wanted in gone:
            wanted.future.set_exception(Unavailable(f"business {wanted.business.name!r} is being forgotten"))
        for business, future in leaving:
            self._scavenger.forget(business)
            self._scrub.forget(business)
            future.set_result(None)

    def _set_paused(self, paused: bool) -> None:
        """Record whether the thread pauses for lack of free space."""
        with self._changed:
            self._paused = paused
            if paused:
                self._changed.notify_all()

    def _serve_checkpoints(self) -> None:
        """Make the requested checkpoints that are due."""
        for wanted in list(self._wanted):
            business, now = wanted.business, business_offset(wanted.business)
            if not business.is_filled:
                with self._changed:
                    self._wanted.remove(wanted)
                wanted.future.set_exception(incomplete_error(business))
                continue
            at_end = business.materialised.at_cut_end or now >= business.visible_offset
            if now >= wanted.offset and (at_end or self._monotonic() >= wanted.deadline):
                began = self._monotonic()
                self._store.checkpoint(wanted.path)
                with self._changed:
                    self._wanted.remove(wanted)
                wanted.future.set_result(None)
                self._pacing.pause_after(began)

    def _abandon(self, error: BaseException) -> None:
        """Fail all waiting requests, because the thread ends."""
        with self._changed:
            self._stopping = True
            wanted, self._wanted = self._wanted, []
            leaving, self._leaving = self._leaving, []
            self._changed.notify_all()
        for _, future in leaving:
            future.set_exception(Unavailable("the broker is stopping"))
        for each in wanted:
            each.future.set_exception(error if isinstance(error, VenusError) else StorageError(str(error)))


def business_offset(business: Business) -> int:
    """Return the offset up to which the full data of a business has the changes."""
    return business.materialised.offset
