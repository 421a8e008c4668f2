"""The commit thread: one writer, groups of commands, one write batch and one fsync for each group.

    commands propose -> log entries on disk -> high watermark -> machine applies -> published -> callers are told

A command is a function that appends log entries to the group and returns what its caller will be told. Commands that
arrive while a group is being synced form the next one, so a busy broker pays one fsync for many producers' frames.
Businesses take turns (flow/fair_queue.py), and within a business nothing overtakes anything. Half messages that have
waited too long are refused before they are looked at: their producer sends them again when there is less to do.

How far a log is safe says the watermark. A broker on its own is safe with what its own disk has, so append and apply
share one write batch (shared_log.Alone). With replicas the entries are written first, shipped while they are synced,
and applied when the watermark moves.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from venus.broker.machine import machine, records
from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import Catalogue
from venus.broker.pipeline.acks import Acks, Held
from venus.broker.pipeline.group import Group
from venus.broker.pipeline.halting import CannotApply, halt, leaders_reason
from venus.broker.pipeline.shared_log import SharedLog
from venus.broker.queue.buffer import Buffer
from venus.broker.store.rocks import Store
from venus.errors import SlowRequest, StorageError, StoreFull, Unavailable, VenusError
from venus.flow.fair_queue import FairQueue
from venus.flow.group_size import GroupSize

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How many bytes of half messages go into one group.
GROUP_BYTES_MAX = 8 << 20
GROUP_COMMANDS_MAX = 1024
#: The same while several businesses write: a small one waits for the group before its own. How much in between is
#: measured (flow/group_size.py).
SHARED_GROUP_BYTES = (256 << 10, 2 << 20)
#: Businesses that have sent no more than this lately go without the larger ones, every second time at most.
SMALL_BYTES = 64 << 10
TURN_BYTES = 512 << 10
#: Businesses that were there this long ago still count as several.
SHARED_FOR_S = 1.0
#: When what was too slow is sent again.
SLOW_RETRY_S = 0.05
TICK_S = 0.2


@dataclass(slots=True, eq=False)
class _Command(Generic[T]):
    work: Callable[[Group], T]
    future: Future[T]
    nbytes: int
    business: Business | None  # the caller is told once everything proposed for it is applied
    submitted_at: float


@dataclass(slots=True, eq=False)
class _Answer:
    command: _Command[Any]
    index: int
    result: Any = None
    error: BaseException | None = None

    def tell(self) -> None:
        if self.error is None:
            self.command.future.set_result(self.result)
        else:
            self.command.future.set_exception(self.error)

    def refuse(self, error: VenusError) -> None:
        _reject(self.command, error)


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A group that is written, and on disk unless its log is shared; nobody has been answered."""

    group: Group
    answers: list[_Answer]


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
        on_fatal: Callable[[BaseException], None],
        linger_s: float = 0.0,
        shared: SharedLog,
    ) -> None:
        self._store = store
        self._buffer = buffer
        self._monotonic = monotonic
        self._slow_request_s = slow_request_s
        self._publish = publish
        self._maintain = maintain
        self._on_fatal = on_fatal
        self._linger_s = linger_s
        self._shared = shared
        self._acks = Acks()
        self._lagging: set[Business] = set()  # with entries above the watermark
        self._ready = threading.Condition()
        self._waiting: FairQueue[_Command[Any]] = FairQueue(TURN_BYTES)
        self._shared_at = -SHARED_FOR_S
        self._group_size = GroupSize(*SHARED_GROUP_BYTES)
        #: When the thread last looked at its queue, and how long the half messages of its last group had waited.
        self.turned_at = monotonic()
        self.waited_s = 0.0
        self._stopping = False
        self._failing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="venus-commit", daemon=True)

    def start(self, businesses: Iterable[Business]) -> None:
        """Start the thread; what these businesses have above the watermark is applied when it moves."""
        self._lagging.update(business for business in businesses if business.pending)
        self._thread.start()

    def stop(self) -> None:
        """Finish what is queued, then end the thread."""
        with self._ready:
            self._stopping = True
            self._ready.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self._acks.refuse_all(_closed(self._error))

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
        command = _Command(work, future, nbytes, business, self._monotonic())
        if nbytes:
            self._buffer.hold(nbytes)
        with self._ready:
            if self._error is not None or self._stopping:
                if nbytes:
                    self._buffer.release(nbytes)
                future.set_exception(_closed(self._error))
                return future
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
        self.submit(lambda group: catalogue.release(business, storing=business in group.touched()), line=business)

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
            group.refused.append((business, first, _another_leads(business)))

        return self.submit(work, line=business)

    def refuse_waiting(self, business: Business, error: VenusError) -> None:
        """Refuse whoever waits for the watermark: this broker does not lead any more."""
        self.submit(lambda group: group.refused.append((business, business.log.applied + 1, error)), line=business)

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
            _reject(command, error)

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
                    _reject(command, error)
                return

    def _timed_step(self, commands: Sequence[_Command[Any]]) -> None:
        began, synced_s = self._monotonic(), self._store.syncs.total_s
        self.step(commands)
        sync_s = self._store.syncs.total_s - synced_s
        self._group_size.took(sum(c.nbytes for c in commands), self._monotonic() - began - sync_s, sync_s)

    def _take(self) -> list[_Command[Any]] | None:
        with self._ready:
            if not self._waiting and not self._stopping and self._error is None:
                self._ready.wait(TICK_S)
            if self._linger_s and self._waiting and not self._stopping:
                self._ready.wait(self._linger_s)
            if self._error is not None or (self._stopping and not self._waiting):
                return None
            self.turned_at = self._monotonic()
            if self._waiting.lines > 1:
                self._shared_at = self.turned_at
            shared = self.turned_at - self._shared_at < SHARED_FOR_S
            if not shared:
                return self._waiting.take(GROUP_BYTES_MAX, GROUP_COMMANDS_MAX)
            return self._waiting.take(self._group_size.size, GROUP_COMMANDS_MAX, small=SMALL_BYTES)

    def _in_time(self, commands: list[_Command[Any]]) -> list[_Command[Any]]:
        """Refuse half messages that have waited too long: nothing of them is on disk, and the others shall not wait."""
        self.waited_s = max((self.turned_at - c.submitted_at for c in commands if c.nbytes), default=0.0)
        if not self._slow_request_s or self.waited_s <= self._slow_request_s:
            return commands
        kept = []
        for command in commands:
            waited_s = self.turned_at - command.submitted_at
            if command.nbytes and waited_s > self._slow_request_s:
                self._buffer.release(command.nbytes)
                _reject(command, SlowRequest(f"waited {waited_s:.2f} s for the disk", retry_after_s=SLOW_RETRY_S))
            else:
                kept.append(command)
        return kept

    def step(self, commands: Sequence[_Command[Any]]) -> None:
        """Run one group: propose, write, apply, publish, answer."""
        written = self.write(commands)
        if written is not None:
            self.finish(written)

    def write(self, commands: Sequence[_Command[Any]]) -> Written | None:
        """Do the first half of a step: what `finish` does rests on it. None = the group was given up."""
        group = Group(self._store.batch())
        answers = [self._answer(group, c) for c in commands]
        try:
            self._maintain(group)
            group.write_log(keep=self._shared.is_shared)
            self._apply(group, group.changed | self._lagging)  # each once: what it applied is shown
            for business in group.changed:
                records.save(business, group.batch)
        except CannotApply as stuck:
            self._halt(group, commands, stuck)
            return None
        except Exception as error:
            self._give_up(group, commands, error)
            return None
        if self._shared.is_shared:
            self._write_shared(group)
        else:
            if len(group.batch):
                self._store.write(group.batch, durable=group.durable)
            self._show(group)
        return Written(group, answers)

    def finish(self, written: Written) -> None:
        """Do the second half: a shared log is synced, the buffer freed, callers are told."""
        group = written.group
        if self._shared.is_shared:
            self._sync_shared(group)
        for answer in written.answers:
            if answer.command.nbytes:
                self._buffer.release(answer.command.nbytes)
        self._tell(written.answers)
        for business, first, refusal in group.refused:  # behind those who have only just begun to wait
            self._acks.drop(business, first, refusal)

    def _show(self, group: Group) -> None:
        self._publish(group)
        for business in group.applied:
            self._acks.release(business)

    def _write_shared(self, group: Group) -> None:
        """Let others have the entries while they are synced; what is applied was on disk before."""
        if len(group.batch):
            self._store.write(group.batch, durable=False)
        for business, run in group.written.items():
            self._shared.written(business, run.first, run.stored)
        self._show(group)

    def _sync_shared(self, group: Group) -> None:
        if group.durable or group.written:
            self._store.sync()
        for business in {*group.written, *group.log_changed}:
            business.log.durable_end = business.log.end
            self._shared.changed(business)

    def _give_up(self, group: Group, commands: Sequence[_Command[Any]], error: Exception) -> None:
        """Drop a group that cannot be applied, of which nothing is on disk; its commands are tried one by one."""
        if isinstance(error, StorageError) or not commands:
            raise error
        for business in group.touched():
            machine.reload(self._store, business)
        if len(commands) > 1:
            for command in commands:
                self.step([command])
            return
        logger.error("a command cannot be applied; nothing of it is kept", exc_info=error)
        if commands[0].nbytes:
            self._buffer.release(commands[0].nbytes)
        _reject(commands[0], VenusError(f"the broker failed: {error!r}"))

    def _halt(self, group: Group, commands: Sequence[_Command[Any]], stuck: CannotApply) -> None:
        """Stop one replica, drop the group, of which nothing is on disk, and run its commands again.

        A leader ends as a whole: another broker can lead, and what it cannot apply is its own.
        """
        business = stuck.business
        if self._shared.leads(business):
            raise StorageError(leaders_reason(stuck)) from stuck.error
        for other in group.touched() - {business}:
            machine.reload(self._store, other)
        halt(business, stuck.index, stuck.error)
        machine.stand_still(self._store, business)
        self._lagging.discard(business)
        self._shared.halted(business)
        self.step(commands)

    def _apply(self, group: Group, businesses: Iterable[Business]) -> None:
        for business in businesses:
            if not business.pending:
                continue
            try:
                applied = machine.apply_pending(business, self._shared.watermark(business), group.batch)
            except StorageError:
                raise
            except Exception as error:
                if not self._shared.is_shared:
                    raise
                raise CannotApply(business, business.log.applied + 1, error) from error
            group.applied[business] = applied
            group.changed.add(business)
            if business.pending:
                self._lagging.add(business)
            else:
                self._lagging.discard(business)

    def _tell(self, answers: Iterable[_Answer]) -> None:
        for answer in answers:
            about = answer.command.business
            if about is None:
                answer.tell()
            else:
                self._acks.hold(about, Held(answer.index, answer.tell, answer.refuse))

    def _answer(self, group: Group, command: _Command[Any]) -> _Answer:
        """Run a command; what it proposed is taken back if it fails."""
        if command.business is not None:
            try:
                group.allow(command.business, self._shared.term(command.business))
            except Unavailable as refusal:
                return _Answer(command, 0, error=refusal)  # at once: it rests on nothing that is proposed
        mark = group.mark()
        result: Any = None
        failure: BaseException | None = None
        try:
            result = command.work(group)
        except Exception as error:
            if isinstance(error, StorageError) and not isinstance(error, StoreFull):
                raise  # the store is in doubt
            if not isinstance(error, VenusError):
                logger.exception("a command failed; nothing of it is kept")
            group.take_back(mark)
            failure = error if isinstance(error, VenusError) else VenusError(f"the broker failed: {error!r}")
        index = command.business.log.end - 1 if command.business is not None else 0
        return _Answer(command, index, result, failure)


def _reject(command: _Command[Any], error: BaseException) -> None:
    try:
        command.future.set_exception(_closed(error))
    except InvalidStateError:
        return  # it was answered before the error, or cancelled


def _another_leads(business: Business) -> Unavailable:
    return Unavailable(f"{business.name}: another broker is now the leader; send again")


def _closed(error: BaseException | None) -> VenusError:
    if isinstance(error, VenusError):
        return error
    if error is None:
        return Unavailable("the broker is stopping")
    return StorageError(f"the broker has stopped: {error}")
