"""A replica that cannot follow starts over: its business is removed, and a leader's copy takes its place.

A mark in the store is there from the removal to the end (unfinished.py). While it is there, the replica neither gives
a ballot nor leads, and nothing of the copy is served. An installation that was interrupted, by a line that broke or
by the end of the process, goes on behind the last piece that is in the store, if the leader's copy still stands.
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
from venus.broker.pipeline.forgetting import forget, give_back, put_removal
from venus.broker.pipeline.group import Group
from venus.broker.replicas import copies
from venus.broker.replicas.copies import Begin, Mark, Piece
from venus.broker.replicas.ports import Post
from venus.broker.replicas.shared import ReplicatedLogs, position_of
from venus.broker.store import keys
from venus.errors import ProtocolError, Refused, StorageError, Unavailable, VenusError
from venus.replication.messages import LogChanged
from venus.replication.records import Installing, LiveBroker

logger = logging.getLogger(__name__)

T = TypeVar("T")

WAIT_S = 60.0
RETRY_S = 1.0
#: How often whoever waits for the disk looks whether the broker stops.
LOOK_S = 0.5
#: So long readers of the old copy have to leave.
LEAVE_S = 30.0
#: So many pieces may be on their way to the store.
UNDER_WAY_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an installation is, and where this attempt began."""

    mark: Mark
    began: Mark
    began_at: float
    expected: int

    def shown(self, business: str, leader: str, now: float) -> Installing:
        """Return it as others are told."""
        seconds = max(now - self.began_at, 1e-3)
        records = self.mark.records - self.began.records
        left = max(self.expected - self.mark.records, 0)
        return Installing(
            business=business,
            leader=leader,
            records=self.mark.records,
            records_expected=self.expected,
            nbytes=self.mark.nbytes,
            bytes_per_s=int((self.mark.nbytes - self.began.nbytes) / seconds),
            seconds_left=int(left * seconds / records) if records and self.expected else -1,
        )


class Source(Protocol):
    """Where copies come from."""

    def copy(self, leader: LiveBroker, business: str, mark: Mark | None) -> Generator[Begin | Piece, None, None]:
        """Return what a copy is and its pieces, from `mark` on if that still stands. Raises VenusError.

        The end comes only if all have come.
        """

    def copy_done(self, leader: LiveBroker, business: str, copy: str) -> None:
        """Let the leader remove a copy that is installed; nothing happens if it does not hear that."""


class Installer:
    """An `Installations`: one copy at a time, in a thread. `ended` ends the streams of a business."""

    def __init__(
        self,
        core: Core,
        shared: ReplicatedLogs,
        source: Source,
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
        self._progress: dict[str, Progress] = {}

    def begin(self, business: str, leader: LiveBroker, done: Callable[[LogChanged], None]) -> None:
        """Install a leader's copy; tried again until it is there, or another leader is named.

        Whoever asks again while the copy of the same leader is under way gets that one: a second one would replace
        the log that the replica follows by then. Only the newest `done` is called.
        """
        with self._lock:
            self._wanted[business] = leader, done
            self._wake()

    def progress(self) -> tuple[Installing, ...]:
        """Return how far the installations under way have come."""
        now = time.monotonic()
        return tuple(
            found.shown(business, found.mark.leader.partition("/")[0], now)
            for business, found in list(self._progress.items())
        )

    def remove(self, business: str, done: Callable[[], None]) -> None:
        """Remove all that there is of a business; what is installed of it is given up."""
        with self._lock:
            self._wanted.pop(business, None)
            self._unwanted[business] = done
            self._wake()

    def _wake(self) -> None:
        if self._thread is None and not self._stopping.is_set():
            self._thread = threading.Thread(target=self._run, name="venus-install", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Give up what is under way: the next process goes on with it."""
        self._stopping.set()
        thread = self._thread
        if thread is not None:
            thread.join(WAIT_S)

    def _run(self) -> None:
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
            except Exception as error:  # whatever it is: others wait for this thread
                self._failed(business, leader, error)
                continue
            finally:
                self._progress.pop(business, None)
            newest = self._answered(business, leader)
            if newest is not None:
                self._post(lambda done=newest, position=position: done(position))  # type: ignore[misc]

    def _failed(self, business: str, leader: LiveBroker, error: Exception) -> None:
        """Try the others first: what one cannot get now keeps nobody else out of sync."""
        unexpected = None if isinstance(error, VenusError) else error
        logger.warning("%s: the copy of %s: %s", business, leader.member.broker, error, exc_info=unexpected)
        with self._lock:
            if (wanted := self._wanted.pop(business, None)) is not None:
                self._wanted[business] = wanted
        self._stopping.wait(RETRY_S)

    def _wait(self, future: Future[T]) -> T:
        """Return what the core answers, however slow the disk is. Raises Unavailable when the broker stops."""
        while not self._stopping.is_set():
            try:
                return future.result(LOOK_S)
            except TimeoutError:
                if future.done():  # it has failed with such an error, or is done just now
                    return future.result()
        raise Unavailable("the installation was given up")

    def _answered(self, business: str, leader: LiveBroker) -> Callable[[LogChanged], None] | None:
        """Return who is told that this leader's copy is there; None = it is not wanted any more."""
        with self._lock:
            wanted, done = self._wanted.get(business, (None, None))
            if wanted != leader:
                return None
            del self._wanted[business]
            return done

    def _discard(self, business: str) -> None:
        try:
            found = self._remove(business, None)
            if found is not None:
                give_back(self._core.store, found)
        except StorageError as error:
            self._core.commits.fail(error)
            self._stopping.set()
            return
        except Exception as error:
            unexpected = None if isinstance(error, VenusError) else error
            logger.warning("%s: what there is of it cannot be removed yet: %s", business, error, exc_info=unexpected)
            self._stopping.wait(RETRY_S)
            return
        with self._lock:
            done = self._unwanted.pop(business)
        self._post(done)

    def _install(self, business: str, leader: LiveBroker) -> LogChanged:
        mark = copies.read(self._core.store, business)
        if mark is not None and (mark.copy == "" or mark.leader != str(leader.member)):
            mark = None
        with closing(self._source.copy(leader, business, mark)) as pieces:
            mark = self._take_copy(business, leader, mark, pieces)
        return self._take_over(business, leader, mark)

    def _take_copy(self, business: str, leader: LiveBroker, mark: Mark | None, pieces: Iterator[Begin | Piece]) -> Mark:
        """Write a copy as it comes; return its mark."""
        begin = next(pieces, None)  # before anything is removed: this leader has a copy to give
        if not isinstance(begin, Begin):
            raise Unavailable(f"broker {leader.member.broker} has nothing of it")
        if mark is None or begin.copy != mark.copy:
            number = self._core.catalogue.reserve()
            mark = Mark(number=number, copy=begin.copy, leader=str(leader.member))
            self._remove(business, mark)
        else:
            logger.info("%s: its installation goes on behind %d records", business, mark.records)
        self._progress[business] = Progress(
            mark=mark, began=mark, began_at=time.monotonic(), expected=begin.records_expected
        )
        self._write_all(business, leader, mark, pieces)
        return mark

    def _take_over(self, business: str, leader: LiveBroker, mark: Mark) -> LogChanged:
        """Let everybody find the business again, once its copy is found to be whole."""
        try:
            found = self._core.take_in(mark.number)
        except StorageError as error:
            raise self._useless(business, mark, f"the copy does not fit together: {error}") from error
        self._wait(self._core.commits.submit(lambda group: _put_mark(group, business, None)))
        self._core.catalogue.forgotten(business)
        self._core.catalogue.put_back(found)
        recent = self._shared.recent(business)
        if recent is not None:
            recent.truncate(0)
        self._core.materialiser.notice(found)
        logger.info(
            "%s: the copy of %s is installed: entries up to %d", business, leader.member.broker, found.log.applied
        )
        self._source.copy_done(leader, business, mark.copy)
        return position_of(found)

    def _write_all(self, business: str, leader: LiveBroker, mark: Mark, pieces: Iterator[Begin | Piece]) -> None:
        """Write pieces as they come; some are on their way to the store while others come."""
        under_way: deque[Future[None]] = deque()
        for piece in pieces:
            if self._stopping.is_set() or self._unwanted or self._wanted.get(business, (None,))[0] != leader:
                raise Unavailable("the installation was given up")
            if not isinstance(piece, Piece):
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

    def _write(self, business: str, mark: Mark, piece: Piece) -> Future[None]:
        family, found = copies.place(piece, mark.number)

        def work(group: Group) -> None:
            group.batch.put_many(family, found, piece.values)
            copies.put(group.batch, business, mark)

        return self._core.commits.submit(work)

    def _useless(self, business: str, mark: Mark, why: str) -> Unavailable:
        """Note that nothing of a copy may be used again."""
        self._wait(self._core.commits.submit(lambda group: _put_mark(group, business, Mark(number=mark.number))))
        return Unavailable(why)

    def _remove(self, business: str, mark: Mark | None) -> Business | None:
        """Remove and return what there is of a business; `mark` is that of the copy that follows, if one does."""
        catalogue, commits = self._core.catalogue, self._core.commits
        found = self._taken_out(business)
        if found is not None:
            self._wait(commits.submit(lambda _: None))
            self._wait(self._core.materialiser.forget(found))
            self._core.snapshots.forget(found)
        before = copies.read(self._core.store, business)

        def work(group: Group) -> None:
            if before is not None:
                put_removal(group.batch, before.number)
            if found is not None:
                forget(group, found, catalogue)
            catalogue.remember_number(group.batch)
            _put_mark(group, business, mark)

        self._wait(commits.submit(work))
        if mark is None:
            catalogue.forgotten(business)
        return found

    def _taken_out(self, business: str) -> Business | None:
        end = time.monotonic() + LEAVE_S
        while True:
            try:
                return self._core.catalogue.take_out(business)
            except Refused:
                if time.monotonic() > end:
                    raise
                self._ended(
                    business, Unavailable(f"{business}: this broker is installing it again", hint="ask another one")
                )
                time.sleep(0.05)
            except Unavailable:
                return None  # an installation that was given up has removed it


def _put_mark(group: Group, business: str, mark: Mark | None) -> None:
    group.stage(keys.STATE, keys.installing_key(business), None if mark is None else copies.encode(mark))
    group.durable = True
