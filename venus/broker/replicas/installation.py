"""Installation of a leader's copy, which replaces the business of a replica that cannot follow.

From the removal of the old business to the end, the store has a mark (copies.py): the replica neither sends a ballot
nor leads, and nothing of the copy is served. An installation interrupted by a lost connection or the end of the process
continues after the last stored piece, if the leader still has the copy.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from venus.broker.core import Core
from venus.broker.machine.business import Business
from venus.broker.pipeline.group import CommandGroup
from venus.broker.pipeline.home_commands import forget, put_removal, reclaim_space
from venus.broker.replicas import copies
from venus.broker.replicas.copies import CopyHeader, CopyMark, CopyPiece
from venus.broker.replicas.effects import Post
from venus.broker.replicas.replicated_logs import ReplicatedLogs, log_position
from venus.broker.store import keys
from venus.errors import ProtocolError, Refused, StorageError, Unavailable, VenusError
from venus.replication.position import LogChanged
from venus.replication.records import InstallationProgress, LiveBroker

logger = logging.getLogger(__name__)

T = TypeVar("T")

WAIT_S = 60.0
RETRY_S = 1.0
#: Interval at which a wait for the disk checks whether the broker stops.
LOOK_S = 0.5
#: How long readers of the old data have to finish.
LEAVE_S = 30.0
#: Maximum number of pieces queued for the store.
UNDER_WAY_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationStep:
    """Progress of a running installation, and its state when this attempt began."""

    mark: CopyMark
    began: CopyMark
    began_at: float
    expected: int

    def to_installing(self, business: str, leader: str, now: float) -> InstallationProgress:
        """Return the progress as this broker reports it."""
        seconds = max(now - self.began_at, 1e-3)
        records = self.mark.records - self.began.records
        left = max(self.expected - self.mark.records, 0)
        return InstallationProgress(
            business=business,
            leader=leader,
            records=self.mark.records,
            records_expected=self.expected,
            nbytes=self.mark.nbytes,
            bytes_per_s=int((self.mark.nbytes - self.began.nbytes) / seconds),
            seconds_left=int(left * seconds / records) if records and self.expected else -1,
        )


class CopySource(Protocol):
    """Provider of copies."""

    def read_copy(
        self, leader: LiveBroker, business: str, mark: CopyMark | None
    ) -> Generator[CopyHeader | CopyPiece, None, None]:
        """Yield the header of a copy and its pieces, after `mark` if that copy still exists. Raises VenusError.

        The iteration ends only after the last piece.
        """

    def release_copy(self, leader: LiveBroker, business: str, copy: str) -> None:
        """Ask the leader to remove an installed copy. A lost request is harmless: the copy expires."""


class ReplicaInstaller:
    """Installer of copies, as `Installations`: one at a time, in a thread. `ended` ends the streams of a business."""

    def __init__(
        self,
        core: Core,
        shared: ReplicatedLogs,
        source: CopySource,
        *,
        post: Post,
        ended: Callable[[str, VenusError], None] = lambda _b, _e: None,
    ) -> None:
        self._core, self._shared, self._source = core, shared, source
        self._post, self._ended = post, ended
        self._lock = threading.Lock()
        self._wanted: dict[str, tuple[LiveBroker, Callable[[LogChanged], None]]] = {}
        self._unwanted: dict[str, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._progress: dict[str, InstallationStep] = {}

    def begin(self, business: str, leader: LiveBroker, done: Callable[[LogChanged], None]) -> None:
        """Install a leader's copy; retried until it is complete, or another leader is requested.

        A repeated request for the same leader joins the running installation: a second one would replace the log that
        the replica already uses by then. Only the newest `done` is called.
        """
        with self._lock:
            self._wanted[business] = leader, done
            self._wake()

    def progress(self) -> tuple[InstallationProgress, ...]:
        """Return the progress of the running installations."""
        now = time.monotonic()
        return tuple(
            found.to_installing(business, found.mark.leader.partition("/")[0], now)
            for business, found in list(self._progress.items())
        )

    def remove(self, business: str, done: Callable[[], None]) -> None:
        """Remove all data of a business and cancel its installation."""
        with self._lock:
            self._wanted.pop(business, None)
            self._unwanted[business] = done
            self._wake()

    def _wake(self) -> None:
        """Start the thread if it does not run."""
        if self._thread is None and not self._stopping.is_set():
            self._thread = threading.Thread(target=self._run, name="venus-install", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread; the next process continues a running installation."""
        self._stopping.set()
        thread = self._thread
        if thread is not None:
            thread.join(WAIT_S)

    def _run(self) -> None:
        """Remove unwanted businesses and install requested copies, until none is left."""
        while not self._stopping.is_set():
            with self._lock:
                unwanted = next(iter(self._unwanted), None)
                if unwanted is None and not self._wanted:
                    self._thread = None
                    return
            if unwanted is not None:
                self._discard(unwanted)
                continue
            with self._lock:
                business, (leader, _) = next(iter(self._wanted.items()))
            try:
                position = self._install(business, leader)
            except Exception as error:  # any error: other businesses need this thread
                self._on_failure(business, leader, error)
                continue
            finally:
                self._progress.pop(business, None)
            newest = self._pop_callback(business, leader)
            if newest is not None:
                self._post(lambda done=newest, position=position: done(position))  # type: ignore[misc]

    def _on_failure(self, business: str, leader: LiveBroker, error: Exception) -> None:
        """Move a failed installation to the end of the queue, so that it does not delay the others."""
        unexpected = None if isinstance(error, VenusError) else error
        logger.warning("%s: the copy of %s: %s", business, leader.member.broker, error, exc_info=unexpected)
        with self._lock:
            if (wanted := self._wanted.pop(business, None)) is not None:
                self._wanted[business] = wanted
        self._stopping.wait(RETRY_S)

    def _wait(self, future: Future[T]) -> T:
        """Wait for a result of the core without a time limit. Raises Unavailable when the broker stops."""
        while not self._stopping.is_set():
            try:
                return future.result(LOOK_S)
            except TimeoutError:
                if future.done():  # the work itself raised TimeoutError, or it has just ended
                    return future.result()
        raise Unavailable("the installation was cancelled")

    def _pop_callback(self, business: str, leader: LiveBroker) -> Callable[[LogChanged], None] | None:
        """Return the callback for this leader's installed copy; None = the request was replaced or cancelled."""
        with self._lock:
            wanted, done = self._wanted.get(business, (None, None))
            if wanted != leader:
                return None
            del self._wanted[business]
            return done

    def _discard(self, business: str) -> None:
        """Remove the data of a business that is no longer wanted here; errors are logged."""
        try:
            found = self._remove(business, None)
            if found is not None:
                reclaim_space(self._core.store, found)
        except StorageError as error:
            self._core.commits.fail(error)
            self._stopping.set()
            return
        except Exception as error:
            unexpected = None if isinstance(error, VenusError) else error
            logger.warning("%s: cannot remove its data yet: %s", business, error, exc_info=unexpected)
            self._stopping.wait(RETRY_S)
            return
        with self._lock:
            done = self._unwanted.pop(business)
        self._post(done)

    def _install(self, business: str, leader: LiveBroker) -> LogChanged:
        """Install a leader's copy: continue an interrupted one, or begin again."""
        mark = copies.read_mark(self._core.store, business)
        if mark is not None and (mark.copy == "" or mark.leader != str(leader.member)):
            mark = None
        with closing(self._source.read_copy(leader, business, mark)) as pieces:
            mark = self._take_copy(business, leader, mark, pieces)
        return self._take_over(business, leader, mark)

    def _take_copy(
        self, business: str, leader: LiveBroker, mark: CopyMark | None, pieces: Iterator[CopyHeader | CopyPiece]
    ) -> CopyMark:
        """Write a leader's copy to the store as it arrives; return its mark."""
        begin = next(pieces, None)  # before anything is removed: the leader must have a copy
        if not isinstance(begin, CopyHeader):
            raise Unavailable(f"broker {leader.member.broker} has nothing of it")
        if mark is None or begin.copy != mark.copy:
            number = self._core.catalogue.reserve_number()
            mark = CopyMark(number=number, copy=begin.copy, leader=str(leader.member))
            self._remove(business, mark)
        else:
            logger.info("%s: its installation continues after %d records", business, mark.records)
        self._progress[business] = InstallationStep(
            mark=mark, began=mark, began_at=time.monotonic(), expected=begin.records_expected
        )
        self._write_all(business, leader, mark, pieces)
        return mark

    def _take_over(self, business: str, leader: LiveBroker, mark: CopyMark) -> LogChanged:
        """Check that an installed copy is complete, and put its business into the catalogue."""
        try:
            found = self._core.load_copy(mark.number)
        except StorageError as error:
            raise self._mark_unusable(business, mark, f"the copy does not fit together: {error}") from error
        self._wait(self._core.commits.submit(lambda group: _put_mark(group, business, None)))
        self._core.catalogue.finish_forgetting(business)
        self._core.catalogue.cancel_forgetting(found)
        recent = self._shared.recent(business)
        if recent is not None:
            recent.truncate(0)
        self._core.materialiser.notify(found)
        logger.info(
            "%s: the copy of %s is installed: entries up to %d", business, leader.member.broker, found.log.applied
        )
        self._source.release_copy(leader, business, mark.copy)
        return log_position(found)

    def _write_all(
        self, business: str, leader: LiveBroker, mark: CopyMark, pieces: Iterator[CopyHeader | CopyPiece]
    ) -> None:
        """Write pieces as they arrive, with a limited number queued for the store."""
        under_way: deque[Future[None]] = deque()
        for piece in pieces:
            if self._stopping.is_set() or self._unwanted or self._wanted.get(business, (None,))[0] != leader:
                raise Unavailable("the installation was cancelled")
            if not isinstance(piece, CopyPiece):
                raise ProtocolError("a copy begins twice")
            self._core.space.check_data(0)
            mark = mark.with_piece(piece)
            under_way.append(self._write(business, mark, piece))
            if len(under_way) > UNDER_WAY_MAX:
                self._wait(under_way.popleft())
            progress = self._progress.get(business)
            if progress is not None:
                self._progress[business] = replace(progress, mark=mark)
        for write in under_way:
            self._wait(write)

    def _write(self, business: str, mark: CopyMark, piece: CopyPiece) -> Future[None]:
        """Queue a piece and its mark to be written together."""
        family, found = copies.piece_keys(piece, mark.number)

        def put_piece(group: CommandGroup) -> None:
            group.batch.put_many(family, found, piece.values)
            copies.put_mark(group.batch, business, mark)

        return self._core.commits.submit(put_piece)

    def _mark_unusable(self, business: str, mark: CopyMark, why: str) -> Unavailable:
        """Mark a copy as unusable; return the error for its installation."""
        self._wait(self._core.commits.submit(lambda group: _put_mark(group, business, CopyMark(number=mark.number))))
        return Unavailable(why)

    def _remove(self, business: str, mark: CopyMark | None) -> Business | None:
        """Remove the present business and return it. `mark` belongs to the copy that replaces it, if any."""
        catalogue, commits = self._core.catalogue, self._core.commits
        found = self._take_out(business)
        if found is not None:
            self._wait(commits.submit(lambda _: None))
            self._wait(self._core.materialiser.forget(found))
            self._core.snapshots.forget(found)
        before = copies.read_mark(self._core.store, business)

        def remove(group: CommandGroup) -> None:
            if before is not None:
                put_removal(group.batch, before.number)
            if found is not None:
                forget(group, found, catalogue)
            catalogue.save_number(group.batch)
            _put_mark(group, business, mark)

        self._wait(commits.submit(remove))
        if mark is None:
            catalogue.finish_forgetting(business)
        return found

    def _take_out(self, business: str) -> Business | None:
        """Take a business out of the catalogue once its readers have left; None = it is not there."""
        end = time.monotonic() + LEAVE_S
        while True:
            try:
                return self._core.catalogue.begin_forgetting(business)
            except Refused:
                if time.monotonic() > end:
                    raise
                self._ended(
                    business, Unavailable(f"{business}: this broker is installing it again", hint="ask another one")
                )
                time.sleep(0.05)
            except Unavailable:
                return None  # a cancelled installation has removed it


def _put_mark(group: CommandGroup, business: str, mark: CopyMark | None) -> None:
    """Store or remove (None) the mark of an installation, durably."""
    group.stage(
        keys.STATE, keys.installing_key(business), None if mark is None else copies.encode_mark(mark), durable=True
    )
