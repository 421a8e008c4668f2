"""A replica that cannot follow starts over: its business is removed, and a leader's copy takes its place.

A mark in the store is there from the removal to the end. A process that finds it removes what there is of the copy,
and the replica neither gives a ballot nor leads until another copy is whole. Nothing of a copy is served before.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from venus.broker.core import Core
from venus.broker.machine.business import Business
from venus.broker.pipeline.forgetting import forget, give_back, put_removal
from venus.broker.pipeline.group import Group
from venus.broker.replicas import copies
from venus.broker.replicas.copies import Piece
from venus.broker.replicas.ports import Post
from venus.broker.replicas.shared import ReplicatedLogs, position_of
from venus.broker.store import keys
from venus.errors import Refused, StorageError, Unavailable, VenusError
from venus.replication.messages import LogChanged
from venus.replication.records import LiveBroker

logger = logging.getLogger(__name__)

WAIT_S = 60.0
RETRY_S = 1.0
#: So long readers of the old copy have to leave.
LEAVE_S = 30.0


class Source(Protocol):
    """Where copies come from."""

    def __call__(self, leader: LiveBroker, business: str) -> Iterator[Piece]:
        """Return the pieces of a leader's copy, the end only if all have come. Raises VenusError."""


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
        #: Rows and records that have come of the copy under way, by business.
        self.progress: dict[str, int] = {}

    def begin(self, business: str, leader: LiveBroker, done: Callable[[LogChanged], None]) -> None:
        """Install a leader's copy; tried again until it is there, or another leader is named."""
        with self._lock:
            self._wanted[business] = leader, done
            self._wake()

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
        """Give up what is under way: the next process starts over."""
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
                business, (leader, done) = next(iter(self._wanted.items()))
            try:
                position = self._install(business, leader)
            except VenusError as error:
                logger.warning("%s: the copy of %s: %s", business, leader.member.broker, error)
                self._stopping.wait(RETRY_S)
                continue
            finally:
                self.progress.pop(business, None)
            with self._lock:
                if self._wanted.get(business) == (leader, done):
                    del self._wanted[business]
            self._post(lambda done=done, position=position: done(position))  # type: ignore[misc]

    def _discard(self, business: str) -> None:
        try:
            found = self._remove(business, None)
            if found is not None:
                give_back(self._core.store, found)
        except StorageError as error:
            self._core.commits.fail(error)
            self._stopping.set()
            return
        except VenusError as error:
            logger.warning("%s: what there is of it cannot be removed yet: %s", business, error)
            self._stopping.wait(RETRY_S)
            return
        with self._lock:
            done = self._unwanted.pop(business)
        self._post(done)

    def _install(self, business: str, leader: LiveBroker) -> LogChanged:
        pieces = self._source(leader, business)
        first = next(pieces, None)  # before anything is removed: this leader has a copy to give
        if first is None:
            raise Unavailable(f"broker {leader.member.broker} has nothing of it")
        number = self._core.catalogue.reserve()
        self._remove(business, number)
        self.progress[business] = 0
        self._write(business, number, first)
        for piece in pieces:
            if self._stopping.is_set() or self._unwanted or self._wanted.get(business, (None,))[0] != leader:
                raise Unavailable("the installation was given up")
            self._write(business, number, piece)
        try:
            found = self._core.take_in(number)
        except StorageError as error:
            raise Unavailable(f"the copy does not fit together: {error}") from error
        self._core.commits.submit(lambda group: _put_mark(group, business, None)).result(WAIT_S)
        self._core.catalogue.forgotten(business)
        self._core.catalogue.put_back(found)
        recent = self._shared.recent(business)
        if recent is not None:
            recent.truncate(0)
        self._core.materialiser.notice(found)
        logger.info(
            "%s: the copy of %s is installed: entries up to %d", business, leader.member.broker, found.log.applied
        )
        return position_of(found)

    def _remove(self, business: str, number: int | None) -> Business | None:
        """Remove and return what there is of a business; mark the store with the number of the copy that follows."""
        catalogue, commits = self._core.catalogue, self._core.commits
        found = self._taken_out(business)
        if found is not None:
            commits.submit(lambda _: None).result(WAIT_S)
            self._core.materialiser.forget(found).result(WAIT_S)
            self._core.snapshots.forget(found)

        unfinished = self._core.store.get(keys.STATE, keys.installing_key(business))

        def work(group: Group) -> None:
            if unfinished is not None:
                put_removal(group.batch, int(json.loads(unfinished)["number"]))
            if found is not None:
                found.pending.clear()
                forget(group, found, catalogue)
            catalogue.remember_number(group.batch)
            _put_mark(group, business, number)

        commits.submit(work).result(WAIT_S)
        if number is None:
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

    def _write(self, business: str, number: int, piece: Piece) -> None:
        family, found = copies.place(piece, number)
        self._core.space.check_data(0)
        self._core.commits.submit(lambda group: group.batch.put_many(family, found, piece.values)).result(WAIT_S)
        self.progress[business] = self.progress.get(business, 0) + len(found)


def _put_mark(group: Group, business: str, number: int | None) -> None:
    value = None if number is None else json.dumps({"number": number}).encode()
    group.stage(keys.STATE, keys.installing_key(business), value)
    group.durable = True
