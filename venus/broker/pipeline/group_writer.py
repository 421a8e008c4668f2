"""Processing of one group of commands: propose, write, apply, publish, answer; or give it up, or halt a replica.

The watermark says up to which entry a log is safe. For a standalone broker its own disk is enough, so append and apply
share one write batch (shared_log.StandaloneLog). With replicas the entries are written first, sent to followers while
they are synced, and applied when the watermark moves. Answers wait for the watermark (`AnswerQueue`), so that no caller
gets an answer that could still be revoked.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from venus.broker.machine import machine, records
from venus.broker.machine.business import Business
from venus.broker.pipeline.group import (
    CannotApply,
    CommandAnswer,
    CommandGroup,
    CommitCommand,
    halt,
    leader_end_reason,
    reject,
)
from venus.broker.pipeline.shared_log import SharedLog
from venus.broker.queue.buffer import BodyBuffer
from venus.broker.store.rocks import Store
from venus.errors import StorageError, StoreFull, Unavailable, VenusError

Tell = Callable[[], None]
Refuse = Callable[[VenusError], None]


@dataclass(frozen=True, slots=True)
class WaitingAnswer:
    """An answer that waits until everything up to `index` is applied (`deliver`) or truncated (`refuse`)."""

    index: int
    deliver: Tell
    refuse: Refuse


@dataclass(slots=True)
class AnswerQueue:
    """Waiting answers by business, in the order of their entries. Used by the commit thread alone."""

    _waiting: dict[Business, deque[WaitingAnswer]] = field(default_factory=dict)

    def hold(self, business: Business, held: WaitingAnswer) -> None:
        """Keep an answer until its index is applied; give it at once if it already is."""
        if held.index <= business.log.applied:
            held.deliver()
        else:
            self._waiting.setdefault(business, deque()).append(held)

    def release(self, business: Business) -> None:
        """Give the answers that waited for entries that are applied now."""
        waiting = self._waiting.get(business)
        while waiting and waiting[0].index <= business.log.applied:
            waiting.popleft().deliver()
        if waiting is not None and not waiting:
            del self._waiting[business]

    def drop(self, business: Business, first: int, error: VenusError) -> None:
        """Refuse the callers that wait for entries from `first` on, which were truncated."""
        waiting = self._waiting.pop(business, deque())
        for held in waiting:
            if held.index < first:
                self.hold(business, held)
            else:
                held.refuse(error)

    def refuse_all(self, error: VenusError) -> None:
        """Refuse all waiting callers because the broker stops."""
        waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            for held in queue:
                held.refuse(error)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class WrittenGroup:
    """A written group whose callers have no answers yet. It is on disk unless its log is shared."""

    group: CommandGroup
    answers: list[CommandAnswer]


class GroupWriter:
    """Carries out groups, one at a time. Used by the commit thread alone."""

    def __init__(
        self,
        store: Store,
        buffer: BodyBuffer,
        shared: SharedLog,
        *,
        publish: Callable[[CommandGroup], None],
        maintain: Callable[[CommandGroup], None],
    ) -> None:
        self._store = store
        self._buffer = buffer
        self._shared = shared
        self._publish = publish
        self._maintain = maintain
        #: Wraps the notifications of a group. The service sets this, so that each group wakes the event loop only once.
        self.batch_notifications: Callable[[], AbstractContextManager[None]] = nullcontext
        #: Answers that wait for the watermark. `CommitThread.stop` refuses them after the thread has ended.
        self.acks = AnswerQueue()
        #: Businesses with entries above the watermark.
        self.lagging: set[Business] = set()

    def step(self, commands: Sequence[CommitCommand[Any]]) -> None:
        """Run one group: propose, write, apply, publish, answer."""
        # a shared log is synced between publishing and answering: publishing must not wait for the sync
        with nullcontext() if self._shared.is_shared else self.batch_notifications():
            written = self.write(commands)
            if written is not None:
                self.finish(written)

    def write(self, commands: Sequence[CommitCommand[Any]]) -> WrittenGroup | None:
        """Run commands and write their group; `finish` answers the callers. None = the group was dropped."""
        group = CommandGroup(self._store.batch())
        answers = [self._run_command(group, c) for c in commands]
        try:
            self._maintain(group)
            group.write_log(keep=self._shared.is_shared)
            self._apply(group, group.changed | self.lagging)  # each business once: `applied` keeps one result
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
            self._publish_group(group)
        return WrittenGroup(group, answers)

    def finish(self, written: WrittenGroup) -> None:
        """Complete a written group: sync a shared log, free the buffer, answer the callers."""
        group = written.group
        if self._shared.is_shared:
            self._sync_shared(group)
        for answer in written.answers:
            if answer.command.nbytes:
                self._buffer.release(answer.command.nbytes)
        self._hold_answers(written.answers)
        for business, first, refusal in group.refused:  # after the answers of this group have begun to wait
            self.acks.drop(business, first, refusal)

    def _publish_group(self, group: CommandGroup) -> None:
        """Publish a group, and give the answers that its applied entries allow."""
        self._publish(group)
        for business in group.applied:
            self.acks.release(business)

    def _write_shared(self, group: CommandGroup) -> None:
        """Write a group without fsync, so that followers store it meanwhile. Applied entries were synced before."""
        if len(group.batch):
            self._store.write(group.batch, durable=False)
        for business, run in group.written.items():
            self._shared.on_written(business, run.first, run.stored)
        self._publish_group(group)

    def _sync_shared(self, group: CommandGroup) -> None:
        """Sync the store if needed, and report the durable ends of the logs."""
        if group.durable or group.written:
            self._store.sync()
        for business in {*group.written, *group.log_changed}:
            business.log.durable_end = business.log.end
            self._shared.on_changed(business)

    def _give_up(self, group: CommandGroup, commands: Sequence[CommitCommand[Any]], error: Exception) -> None:
        """Drop a group that failed, and try its commands one by one. Nothing of the group is on disk."""
        if isinstance(error, StorageError) or not commands:
            raise error
        for business in group.touched_businesses():
            machine.reload(self._store, business)
        if len(commands) > 1:
            for command in commands:
                self.step([command])
            return
        logger.error("a command cannot be applied; nothing of it is kept", exc_info=error)
        if commands[0].nbytes:
            self._buffer.release(commands[0].nbytes)
        reject(commands[0], VenusError(f"the broker failed: {error!r}"))

    def _halt(self, group: CommandGroup, commands: Sequence[CommitCommand[Any]], stuck: CannotApply) -> None:
        """Stop one replica, drop the group and run its commands again. Nothing of the group is on disk.

        A leader raises StorageError and ends: another broker can lead and apply what this one cannot.
        """
        business = stuck.business
        if self._shared.leads(business):
            raise StorageError(leader_end_reason(stuck)) from stuck.error
        for other in group.touched_businesses() - {business}:
            machine.reload(self._store, other)
        halt(business, stuck.index, stuck.error)
        machine.stop_applying(self._store, business)
        self.lagging.discard(business)
        self._shared.on_halted(business)
        self.step(commands)

    def _apply(self, group: CommandGroup, businesses: Iterable[Business]) -> None:
        """Apply the entries of businesses up to their watermarks. Raises CannotApply."""
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
                self.lagging.add(business)
            else:
                self.lagging.discard(business)

    def _hold_answers(self, answers: Iterable[CommandAnswer]) -> None:
        """Give each answer once its entry is applied."""
        for answer in answers:
            about = answer.command.business
            if about is None:
                answer.deliver()
            else:
                self.acks.hold(about, WaitingAnswer(answer.index, answer.deliver, answer.refuse))

    def _run_command(self, group: CommandGroup, command: CommitCommand[Any]) -> CommandAnswer:
        """Run a command; undo its proposals if it fails. Return its answer."""
        if command.business is not None:
            try:
                group.allow(command.business, self._shared.term(command.business))
            except Unavailable as refusal:
                return CommandAnswer(command, 0, error=refusal)  # at once: it depends on no proposal
        mark = group.savepoint()
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
        return CommandAnswer(command, index, result, failure)
