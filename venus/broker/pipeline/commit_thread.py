"""The commit thread: one writer, groups of commands, one write batch and one fsync for each group.

    commands propose -> log entries on disk -> high watermark -> machine applies -> published -> callers are told

A command is a function that appends log entries to the group and returns what its caller will be told. Commands that
arrive while a group is being synced form the next one, so a busy broker pays one fsync for many producers' frames.
Businesses take turns (flow/fair_queue.py), and within a business nothing overtakes anything. Half messages that have
waited too long are refused before they are looked at: their producer sends them again when there is less to do.

What becomes of one group is told in group_writer.py.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import Catalogue
from venus.broker.pipeline.commands import Command, another_leads, closed, reject
from venus.broker.pipeline.group import Group
from venus.broker.pipeline.group_writer import GroupWriter
from venus.broker.pipeline.shared_log import SharedLog
from venus.broker.queue.buffer import Buffer
from venus.broker.store.rocks import Store
from venus.errors import SlowRequest, StorageError, StoreFull, VenusError
from venus.flow.fair_queue import FairQueue, GroupSize
from venus.flow.precedence import SMALL_BYTES, Precedence

Guard = Callable[[], AbstractContextManager[None]]


def guard_with(fail: Callable[[BaseException], None]) -> Guard:
    """Return a context that reports what is wrong with the store, and raises it all the same."""

    @contextmanager
    def guard() -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            if not isinstance(error, StoreFull):
                fail(error)
            raise

    return guard


logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How many bytes of half messages go into one group.
GROUP_BYTES_MAX = 8 << 20
GROUP_COMMANDS_MAX = 1024
#: The same while several businesses write: a small one waits for the group before its own. How much in between is
#: measured (flow/fair_queue.py). Those that are small go without the larger ones, every second time at most.
SHARED_GROUP_BYTES = (256 << 10, 2 << 20)
#: While large work rests for small commits, groups may be as small as this.
RESTING_GROUP_BYTES = 128 << 10
TURN_BYTES = 512 << 10
#: Businesses that were there this long ago still count as several.
SHARED_FOR_S = 1.0
#: When what was too slow is sent again.
SLOW_RETRY_S = 0.05
#: So often the thread looks whether entries above the watermark may be applied, should nobody have told it.
TICK_S = 0.2


class CommitThread:
    """The queue of commands and the thread that drains it."""

    def __init__(
        self,
        store: Store,
        buffer: Buffer,
        *,
        monotonic: Callable[[], float],
        slow_request_s: float = 0.0,
        publish: Callable[[Group], None],
        maintain: Callable[[Group], None],
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
        self._waiting: FairQueue[Command[Any]] = FairQueue(TURN_BYTES)
        self._shared_at = -SHARED_FOR_S
        self._group_size = GroupSize(*SHARED_GROUP_BYTES)
        #: When the thread last looked at its queue, or got the first command since; whether it waits for that.
        self._turned_at = monotonic()
        self._resting = False
        #: How long the half messages of its last group had waited.
        self.waited_s = 0.0
        self._stopping = False
        self._failing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="venus-commit", daemon=True)

    def start(self, businesses: Iterable[Business]) -> None:
        """Start the thread; what these businesses have above the watermark is applied when it moves."""
        self.writer.lagging.update(business for business in businesses if business.pending)
        self._thread.start()

    def stop(self) -> None:
        """Finish what is queued, then end the thread."""
        with self._ready:
            self._stopping = True
            self._ready.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self.writer.acks.refuse_all(closed(self._error))

    def submit(
        self,
        work: Callable[[Group], T],
        nbytes: int = 0,
        business: Business | None = None,
        *,
        line: Business | None = None,
        first: bool = False,
    ) -> Future[T]:
        """Queue a command behind everything of its business or `line`; without either, behind everything.

        `first`: it depends on nothing that waits, and is taken ahead of it. The future of one with bytes fails with
        Overloaded if they wait for too long.
        """
        future: Future[T] = Future()
        command = Command(work, future, nbytes, business, self._monotonic())
        if nbytes:
            self._buffer.hold(nbytes)
        with self._ready:
            if self._error is not None or self._stopping:
                if nbytes:
                    self._buffer.release(nbytes)
                future.set_exception(closed(self._error))
                return future
            if self._resting and not self._waiting:
                self._turned_at = command.submitted_at
            key = business or line
            if first:
                self._waiting.put_first(command)
            elif key is None:
                self._waiting.put_barrier(command)
            else:
                self._waiting.put(key, nbytes, command)
            self._ready.notify()
        return future

    def release(self, catalogue: Catalogue, business: Business) -> None:
        """Let a business go behind everything that was asked for it."""
        # not in the command: one of a group that is given up runs again, and would take the hold of another stream
        done = self.submit(lambda _: None, line=business)
        done.add_done_callback(lambda done: None if done.exception() else catalogue.release(business))

    def wake(self) -> None:
        """Have the thread ask again for how long it may rest. From any thread."""
        with self._ready:
            self._ready.notify()

    def silent_s(self, now: float) -> float:
        """For how long it has not turned to what waits for it; 0 while nothing does. From any thread."""
        with self._ready:
            return 0.0 if self._resting and not self._waiting else max(0.0, now - self._turned_at)

    def advance(self) -> None:
        """Look at the watermark soon: it may have moved. From any thread."""
        self.submit(lambda _: None, first=True)

    def take_back(
        self, business: Business, first: int, begun: Callable[[Group], None] = lambda _: None
    ) -> Future[None]:
        """Take back every entry from `first` on; who waits for one of them is refused. Above the watermark only."""

        def work(group: Group) -> None:
            begun(group)
            group.truncate(business, first)
            self._buffer.drop(business.number, first)
            group.refused.append((business, first, another_leads(business)))

        return self.submit(work, line=business)

    def refuse_waiting(self, business: Business, error: VenusError, then: Callable[[], None] = lambda: None) -> None:
        """Refuse whoever waits for the watermark: this broker does not lead any more, or cannot acknowledge."""

        def work(group: Group) -> None:
            group.refused.append((business, business.log.applied + 1, error))
            then()

        self.submit(work, line=business)

    def fail(self, error: BaseException) -> None:
        """Stop for good: nothing may be written after an error of the store.

        A broker ends in `on_fatal`, before anybody is told: to its clients it is gone, and they try another one.
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
    def failed(self) -> bool:
        """Whether the store has failed."""
        return self._error is not None

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            commands = self._take()
            if commands is None:
                return
            commands = self._in_time([c for c in commands if c.future.set_running_or_notify_cancel()])
            try:
                self._timed_step(commands)
            except BaseException as error:
                self.fail(error)
                for command in commands:
                    reject(command, error)
                return

    def _timed_step(self, commands: Sequence[Command[Any]]) -> None:
        began, synced_s = self._monotonic(), self._store.syncs.total_s
        self.writer.step(commands)
        sync_s = self._store.syncs.total_s - synced_s
        self._group_size.took(sum(c.nbytes for c in commands), self._monotonic() - began - sync_s, sync_s)

    def _take(self) -> list[Command[Any]] | None:
        with self._ready:
            if not self._waiting and not self._stopping and self._error is None:
                self._resting = True
                self._ready.wait(TICK_S if self.writer.lagging else self._rest_s())
                self._resting = False
            if self._linger_s and self._waiting and not self._stopping:
                self._ready.wait(self._linger_s)
            if self._error is not None or (self._stopping and not self._waiting):
                return None
            self._turned_at = self._monotonic()
            if self._waiting.lines > 1:
                self._shared_at = self._turned_at
            shared = self._turned_at - self._shared_at < SHARED_FOR_S
            if not shared:
                return self._waiting.take(GROUP_BYTES_MAX, GROUP_COMMANDS_MAX)
            most = self._precedence.turn_bytes(self._group_size.size, RESTING_GROUP_BYTES, self._turned_at)
            return self._waiting.take(most, GROUP_COMMANDS_MAX, small=SMALL_BYTES)

    def _in_time(self, commands: list[Command[Any]]) -> list[Command[Any]]:
        """Refuse half messages that have waited too long: nothing of them is on disk, and the others shall not wait."""
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
