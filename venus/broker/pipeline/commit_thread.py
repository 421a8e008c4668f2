"""The storage thread: one writer, groups of commands, one write batch and one fsync for each group.

A command is a function that appends log entries to the group and returns what its caller will be told; the caller
is told after the fsync, never before. Commands that arrive while a group is being synced form the next one, so a
busy broker pays one fsync for many producers' frames.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from venus.broker.log.entry import Entry
from venus.broker.machine import machine, state
from venus.broker.machine.envelope import Envelope
from venus.broker.machine.state import Business
from venus.broker.queue.buffer import Buffer
from venus.broker.queue.queue_index import Placed
from venus.broker.store import keys
from venus.broker.store.rocks import Batch, Store
from venus.errors import Overloaded, StorageError, StoreFull, Unavailable, VenusError

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How many bytes of half messages go into one group.
GROUP_BYTES_MAX = 8 << 20
GROUP_COMMANDS_MAX = 1024
TICK_S = 0.2


@dataclass(slots=True, eq=False)
class Group:
    """What one write batch is made of."""

    batch: Batch
    business: set[Business] = field(default_factory=set)
    placed: list[tuple[Business, Placed]] = field(default_factory=list)
    bodies: list[tuple[int, int, bytes]] = field(default_factory=list)
    applied: list[tuple[Business, machine.Applied]] = field(default_factory=list)
    durable: bool = False

    def append(self, business: Business, entry: Entry, known: Envelope | None = None, *, durable: bool = True) -> int:
        """Append an entry to a business's log and apply it; return its index."""
        index = business.log_end
        self.batch.put(keys.RLOG, keys.log_key(business.number, index), entry.encode())
        applied = machine.apply(business, index, entry, self.batch, known)
        for place in applied.placed:
            self.batch.put(keys.QUEUE, keys.queue_key(business.number, place.base_offset), place.encode())
            self.placed.append((business, place))
        business.log_end = index + 1
        self.business.add(business)
        self.applied.append((business, applied))
        self.durable = self.durable or durable
        if known is not None:
            self.bodies.append((business.number, index, entry.body))
        return index


@dataclass(slots=True, eq=False)
class _Command(Generic[T]):
    work: Callable[[Group], T]
    future: Future[T]
    nbytes: int


class Storage:
    """The queue of commands and the thread that drains it."""

    def __init__(
        self,
        store: Store,
        buffer: Buffer,
        *,
        throttle: Callable[[], None],
        publish: Callable[[Group], None],
        maintain: Callable[[Group], None],
        on_fatal: Callable[[BaseException], None],
        linger_s: float = 0.0,
    ) -> None:
        self._store = store
        self._buffer = buffer
        self._throttle = throttle
        self._publish = publish
        self._maintain = maintain
        self._on_fatal = on_fatal
        self._linger_s = linger_s
        self._ready = threading.Condition()
        self._waiting: deque[_Command[Any]] = deque()
        self._stopping = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="venus-storage", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what is queued, then end the thread."""
        with self._ready:
            self._stopping = True
            self._ready.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def submit(self, work: Callable[[Group], T], nbytes: int = 0) -> Future[T]:
        """Queue a command. Its future fails with Overloaded at once when too many bytes wait already."""
        future: Future[T] = Future()
        if nbytes and not self._buffer.hold(nbytes):
            future.set_exception(Overloaded("the broker's buffer is full", hint="it drains by itself; send again"))
            return future
        with self._ready:
            if self._error is not None or self._stopping:
                if nbytes:
                    self._buffer.release(nbytes)
                future.set_exception(_closed(self._error))
                return future
            self._waiting.append(_Command(work, future, nbytes))
            self._ready.notify()
        return future

    def fail(self, error: BaseException) -> None:
        """Stop for good: nothing may be written after an error of the store."""
        with self._ready:
            if self._error is not None:
                return
            self._error = error
            waiting = list(self._waiting)
            self._waiting.clear()
            self._ready.notify()
        for command in waiting:
            _reject(command, error)
        logger.critical("the store failed, the broker stops: %s", error)
        self._on_fatal(error)

    @property
    def failed(self) -> bool:
        """Whether the store has failed."""
        return self._error is not None

    def _run(self) -> None:
        while True:
            commands = self._take()
            if commands is None:
                return
            self._throttle()
            try:
                self._group(commands)
            except BaseException as error:
                for command in commands:
                    _reject(command, error)
                self.fail(error)
                return

    def _take(self) -> list[_Command[Any]] | None:
        with self._ready:
            if not self._waiting and not self._stopping and self._error is None:
                self._ready.wait(TICK_S)
            if self._linger_s and self._waiting and not self._stopping:
                self._ready.wait(self._linger_s)
            if self._error is not None or (self._stopping and not self._waiting):
                return None
            taken: list[_Command[Any]] = []
            nbytes = 0
            while self._waiting and nbytes < GROUP_BYTES_MAX and len(taken) < GROUP_COMMANDS_MAX:
                taken.append(self._waiting.popleft())
                nbytes += taken[-1].nbytes
            return taken

    def _group(self, commands: list[_Command[Any]]) -> None:
        group = Group(self._store.batch())
        answers = [self._answer(group, c) for c in commands if c.future.set_running_or_notify_cancel()]
        self._maintain(group)
        for business in group.business:
            state.save(business, group.batch)
        if len(group.batch):
            self._store.write(group.batch, durable=group.durable)
        self._publish(group)
        for command in commands:
            if command.nbytes:
                self._buffer.release(command.nbytes)
        for answer in answers:
            answer()

    def _answer(self, group: Group, command: _Command[Any]) -> Callable[[], None]:
        """Run a command; return how to tell its caller once the group is on disk."""
        try:
            result = command.work(group)
        except VenusError as error:
            if isinstance(error, StorageError) and not isinstance(error, StoreFull):
                raise
            return partial(command.future.set_exception, error)
        return partial(command.future.set_result, result)


def _reject(command: _Command[Any], error: BaseException) -> None:
    try:
        command.future.set_exception(_closed(error))
    except InvalidStateError:
        return  # it was answered before the error, or cancelled


def _closed(error: BaseException | None) -> VenusError:
    if isinstance(error, VenusError):
        return error
    if error is None:
        return Unavailable("the broker is stopping")
    return StorageError(f"the broker has stopped: {error}")
