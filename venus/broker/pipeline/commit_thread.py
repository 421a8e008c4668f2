"""The commit thread: one writer, groups of commands, one write batch and one fsync for each group.

    commands propose -> log entries on disk -> high watermark -> machine applies -> published -> callers are answered

A command is a function that appends log entries to the group and returns the answer to its caller. Commands that
arrive while a group is being synced form the next one, so a busy broker pays one fsync for many producers' frames.
Businesses take turns (flow/write_queue.py); the commands of one business keep their order. Half messages that have
waited too long are refused before they are processed, and their producer sends them again later.

A client's thread may carry out its own small command while this thread rests (`carry_out_here`), which saves the
wake-ups of both. The two never run at once. group_writer.py carries out one group.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import BusinessCatalogue
from venus.broker.pipeline.group import CommandGroup, CommitCommand, another_leader_error, closed_error, reject
from venus.broker.pipeline.group_writer import GroupWriter
from venus.broker.pipeline.shared_log import SharedLog
from venus.broker.queue.buffer import BodyBuffer
from venus.broker.store.rocks import Store
from venus.errors import SlowRequest, StorageError, StoreFull, VenusError
from venus.flow.precedence import SMALL_BYTES, Precedence
from venus.flow.write_queue import FairQueue, GroupSize

Guard = Callable[[], AbstractContextManager[None]]


def guard_with(fail: Callable[[BaseException], None]) -> Guard:
    """Return a context manager that reports an error of the store, as the commit thread does, and raises it."""

    @contextmanager
    def guard() -> Iterator[None]:
        """Report an error of the store, unless the store is only full, and raise it."""
        try:
            yield
        except StorageError as error:
            if not isinstance(error, StoreFull):
                fail(error)
            raise

    return guard


logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Limit of bytes of half messages in one group.
GROUP_BYTES_MAX = 8 << 20
GROUP_COMMANDS_MAX = 1024
#: The limit while several businesses write, because a small command waits for the group before its own. The value
#: between these two is measured (flow/write_queue.py). At most every second group has small commands only.
SHARED_GROUP_BYTES = (256 << 10, 2 << 20)
#: While large work pauses for small commits, groups may be as small as this.
RESTING_GROUP_BYTES = 128 << 10
TURN_BYTES = 512 << 10
#: Several businesses count as writing until this long after they did.
SHARED_FOR_S = 1.0
#: Delay after which a producer repeats half messages that have waited too long.
SLOW_RETRY_S = 0.05
#: Periodic work wakes the thread only if it is due this much earlier than the thread wakes anyway.
EARLIER_S = 0.01
#: The thread checks this often whether entries above the watermark may be applied, in case no call woke it.
TICK_S = 0.2


class CommitThread:
    """Queue of commands for the log and the store, and the thread that carries them out in groups."""

    def __init__(
        self,
        store: Store,
        buffer: BodyBuffer,
        *,
        monotonic: Callable[[], float],
        slow_request_s: float = 0.0,
        publish: Callable[[CommandGroup], None],
        maintain: Callable[[CommandGroup], None],
        rest_s: Callable[[], float],
        on_fatal: Callable[[BaseException], None],
        linger_s: float = 0.0,
        shared: SharedLog,
        precedence: Precedence | None = None,
    ) -> None:
        self._store = store
        self._buffer = buffer
        self._monotonic = monotonic
        self._slow_request_s = slow_request_s
        self._rest_s = rest_s
        self._on_fatal = on_fatal
        self._linger_s = linger_s
        self._precedence = precedence or Precedence(0.0)
        self.writer = GroupWriter(store, buffer, shared, publish=publish, maintain=maintain)
        self._ready = threading.Condition()
        self._waiting: FairQueue[CommitCommand[Any]] = FairQueue(TURN_BYTES)
        self._shared_at = -SHARED_FOR_S
        self._group_size = GroupSize(*SHARED_GROUP_BYTES)
        #: When the thread last took commands, or got the first command since then; whether it waits for one.
        self._turned_at = monotonic()
        self._resting = False
        self._rests_until = 0.0
        #: Whether a client's thread carries out a group, and whether one may. Such a thread cannot linger, or serve
        #: followers.
        self._is_lent, self._may_lend = False, not linger_s and not shared.is_shared
        #: How long the half messages of the last group had waited.
        self.waited_s = 0.0
        self._stopping = False
        self._failing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="venus-commit", daemon=True)

    def start(self, businesses: Iterable[Business]) -> None:
        """Start the thread. It applies entries of these businesses above the watermark when that moves."""
        self.writer.lagging.update(business for business in businesses if business.pending)
        self._thread.start()

    def stop(self) -> None:
        """Carry out the queued commands, then end the thread."""
        with self._ready:
            self._stopping = True
            self._ready.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self.writer.acks.refuse_all(closed_error(self._error))

    def submit(
        self,
        work: Callable[[CommandGroup], T],
        nbytes: int = 0,
        business: Business | None = None,
        *,
        line: Business | None = None,
        first: bool = False,
        wakes: bool = True,
    ) -> Future[T]:
        """Queue a command after all commands of its business or `line`; without either, after all commands.

        With `first` the command overtakes all waiting ones, so it must not depend on any of them. The future of a
        command with `nbytes` fails with Overloaded if the command waits for too long. Without `wakes` the caller calls
        `carry_out_here` next.
        """
        future: Future[T] = Future()
        command = CommitCommand(work, future, nbytes, business, self._monotonic())
        if nbytes:
            self._buffer.hold(nbytes)
        with self._ready:
            if self._error is not None or self._stopping:
                if nbytes:
                    self._buffer.release(nbytes)
                future.set_exception(closed_error(self._error))
                return future
            if self._is_at_rest:
                self._turned_at = command.submitted_at
            key = business or line
            if first:
                self._waiting.put_first(command)
            elif key is None:
                self._waiting.put_barrier(command)
            else:
                self._waiting.put(key, nbytes, command)
            if wakes:
                self._ready.notify()
        return future

    def carry_out_here(self) -> None:
        """Carry out the only waiting command in the caller's thread if the commit thread rests; else wake that thread.

        The caller waits for an fsync, so it holds no lock that others need.
        """
        with self._ready:
            if not self._waiting:
                return  # it was taken already
            if not self._may_lend or not self._resting or self._is_lent or self._stopping or len(self._waiting) > 1:
                self._ready.notify()
                return
            self._is_lent = True
            commands = self._take_group()
        try:
            self._carry_out(commands)
        finally:
            with self._ready:
                self._is_lent = False
                if self._waiting or not self._resting or self._is_due_earlier():
                    self._ready.notify()

    def _is_due_earlier(self) -> bool:
        """Return whether periodic work is due before the time at which the thread would wake."""
        return self._monotonic() + self._rest_s() < self._rests_until - EARLIER_S

    def release(self, catalogue: BusinessCatalogue, business: Business) -> None:
        """Release a business in the catalogue, after all commands that were queued for the business."""
        # not in the command: a group that is given up runs it again, and that would release another stream's hold
        done = self.submit(lambda _: None, line=business)
        done.add_done_callback(lambda done: None if done.exception() else catalogue.release(business))

    def wake(self) -> None:
        """Make the thread compute its waiting time again. Works in any thread."""
        with self._ready:
            self._ready.notify()

    def silent_s(self, now: float) -> float:
        """Return for how long queued commands have waited for the thread; 0 if none wait. Works in any thread."""
        with self._ready:
            return 0.0 if self._is_at_rest else max(0.0, now - self._turned_at)

    @property
    def _is_at_rest(self) -> bool:
        """Whether the thread waits, no command is queued, and no client's thread carries one out."""
        return self._resting and not self._waiting and not self._is_lent

    def advance(self) -> None:
        """Check the watermark soon, because it may have moved. Works in any thread."""
        self.submit(lambda _: None, first=True)

    def truncate(
        self, business: Business, first: int, begun: Callable[[CommandGroup], None] = lambda _: None
    ) -> Future[None]:
        """Truncate a log from `first` on, above the watermark, and refuse the callers that wait for these entries."""

        def truncate_log(group: CommandGroup) -> None:
            begun(group)
            group.truncate(business, first)
            self._buffer.drop(business.number, first)
            group.refused.append((business, first, another_leader_error(business)))

        return self.submit(truncate_log, line=business)

    def refuse_waiting(self, business: Business, error: VenusError, then: Callable[[], None] = lambda: None) -> None:
        """Refuse the callers that wait for the watermark: this broker no longer leads, or cannot acknowledge."""

        def refuse_callers(group: CommandGroup) -> None:
            group.refused.append((business, business.log.applied + 1, error))
            then()

        self.submit(refuse_callers, line=business)

    def fail(self, error: BaseException) -> None:
        """Stop permanently, because nothing may be written after an error of the store.

        The process ends in `on_fatal`, before any caller gets an answer. Its clients see a lost connection and try
        another broker.
        """
        with self._ready:
            if self._failing:
                return
            self._failing = True
        logger.critical("the store failed, the broker stops: %s", error)
        self._on_fatal(error)
        with self._ready:
            self._error = error
            waiting = self._waiting.drain()
            self._ready.notify()
        for command in waiting:
            reject(command, error)

    @property
    def has_failed(self) -> bool:
        """Whether the store has failed."""
        return self._error is not None

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Carry out groups until the thread is stopped or the store fails."""
        while True:
            commands = self._take()
            if commands is None or not self._carry_out(commands):
                return

    def _carry_out(self, commands: list[CommitCommand[Any]]) -> bool:
        """Carry out a group; return False if the store has failed."""
        commands = self._refuse_late([c for c in commands if c.future.set_running_or_notify_cancel()])
        try:
            self._timed_step(commands)
        except BaseException as error:
            self.fail(error)
            for command in commands:
                reject(command, error)
            return False
        return True

    def _timed_step(self, commands: Sequence[CommitCommand[Any]]) -> None:
        """Carry out a group, and adapt the group size to the times of its work and its fsync."""
        began, synced_s = self._monotonic(), self._store.syncs.total_s
        self.writer.step(commands)
        sync_s = self._store.syncs.total_s - synced_s
        self._group_size.record_group(sum(c.nbytes for c in commands), self._monotonic() - began - sync_s, sync_s)

    def _take(self) -> list[CommitCommand[Any]] | None:
        """Wait for commands; return those of the next group, None = the thread must end."""
        with self._ready:
            if not self._waiting and not self._stopping and self._error is None:
                rest_s = TICK_S if self.writer.lagging else self._rest_s()
                self._resting, self._rests_until = True, self._monotonic() + rest_s
                self._ready.wait(rest_s)
                self._resting = False
            while self._is_lent:
                self._ready.wait()
            if self._linger_s and self._waiting and not self._stopping:
                self._ready.wait(self._linger_s)
            if self._error is not None or (self._stopping and not self._waiting):
                return None
            return self._take_group()

    def _take_group(self) -> list[CommitCommand[Any]]:
        """Take the commands of the next group; its size depends on how many businesses write."""
        self._turned_at = self._monotonic()
        if self._waiting.lines > 1:
            self._shared_at = self._turned_at
        shared = self._turned_at - self._shared_at < SHARED_FOR_S
        if not shared:
            return self._waiting.take(GROUP_BYTES_MAX, GROUP_COMMANDS_MAX)
        most = self._precedence.slice_bytes(self._group_size.size, RESTING_GROUP_BYTES, self._turned_at)
        return self._waiting.take(most, GROUP_COMMANDS_MAX, small=SMALL_BYTES)

    def _refuse_late(self, commands: list[CommitCommand[Any]]) -> list[CommitCommand[Any]]:
        """Refuse half messages that have waited too long, so that the others need not wait. None of them is on disk."""
        self.waited_s = max((self._turned_at - c.submitted_at for c in commands if c.nbytes), default=0.0)
        if not self._slow_request_s or self.waited_s <= self._slow_request_s:
            return commands
        kept = []
        for command in commands:
            waited_s = self._turned_at - command.submitted_at
            if command.nbytes and waited_s > self._slow_request_s:
                self._buffer.release(command.nbytes)
                reject(command, SlowRequest(f"waited {waited_s:.2f} s for the disk", retry_after_s=SLOW_RETRY_S))
            else:
                kept.append(command)
        return kept
