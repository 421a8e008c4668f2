"""Commands of producers in the commit thread (VENUS 3.3).

Each function decides with `half_messages.py`, appends a log entry if something changes, and returns the answer, which
is given after the fsync.

After an unclean election the elected broker may lack batches that the source has committed and cannot send again. The
producer then reports the position of the source, and `skip_lost` skips the missing offsets in the queue (VENUS 3.1).

`Producers` is the interface of the producers' streams to the commit thread; it also finds due reviews.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from venus.broker.log.entry import EntryKind, LogEntry, record_entry
from venus.broker.machine import described_versions, half_messages, loss
from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import BusinessCatalogue
from venus.broker.machine.envelope import Envelope, build_envelope, open_body
from venus.broker.machine.half_messages import HalfAction, HalfMessage, check_limit
from venus.broker.pipeline import home_commands
from venus.broker.pipeline.commit_thread import CommitThread
from venus.broker.pipeline.group import CommandGroup
from venus.broker.store.files import FreeSpace
from venus.broker.store.rocks import Store
from venus.codec.batch import digest
from venus.errors import Diverged, IllegalTransition, ProtocolError, Unavailable
from venus.model import Verdict
from venus.rpc.limits import UINT32_MAX
from venus.wire import broker_pb2, change_pb2

REVIEWED_AT_ONCE_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedHalf:
    """A half message as it arrived, outside its protobuf message, whose body is copied at each access."""

    batch_no: int
    digest: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvesResult:
    """Result of persisting half messages: up to `through` on disk; from `resend_from` on to be sent again."""

    through: int
    resend_from: int | None = None
    reason: str = ""


def describe_half(business: Business, found: HalfMessage) -> broker_pb2.HalfRef:
    """Describe an undecided half message."""
    return broker_pb2.HalfRef(
        batch_no=found.batch_no,
        digest=found.digest,
        first_sequence=found.first_sequence,
        count=found.count,
        received_at_us=found.received_at_us,
        reviews=business.reviews.delivered_times(found.batch_no),
        bytes=found.nbytes,
    )


def init(
    group: CommandGroup,
    business: Business,
    producer: str,
    source_epoch: int,
    source_last_batch: int,
    at_us: int,
    *,
    insists: bool = False,
) -> broker_pb2.InitAck:
    """Make a producer the only accepted one. Raises Diverged (rule 6), NotLeader, Refused."""
    home_commands.refuse_producer(business)
    half_messages.check_epoch(business.proposed, source_epoch)
    half_messages.check_producer(business.proposed, source_last_batch)
    home_commands.refuse_epoch(business, source_epoch, insists=insists)
    epoch = half_messages.next_epoch(business.proposed, source_epoch, at_us)
    if business.is_new:  # the epoch is logged with the first half message, because streams end with this process
        raised = half_messages.raise_epoch(business.proposed, epoch, producer)
        business.proposed = business.applying = business.committed = raised
    else:
        _raise_epoch(group, business, epoch, producer, at_us)
    in_doubt = loss.has_unmeasured(business.proposed.losses)
    if in_doubt and source_last_batch > business.proposed.end_batch:
        roll_back_incomplete(group, business, epoch, at_us)
    state = business.proposed
    if state.halves:  # the answer asks about each of them, which is their first review after a restart
        business.add_to_counter("reviews_sent", len(state.halves))
    return broker_pb2.InitAck(
        epoch=state.epoch,
        last_batch=state.last_batch,
        last_sequence=state.last_sequence,
        next_offset=state.next_offset,
        undecided=[describe_half(business, found) for found in state.halves],
        in_doubt=in_doubt,
        tables=described_versions.newest_versions(business),
    )


def take_halves(
    group: CommandGroup,
    business: Business,
    epoch: int,
    halves: Sequence[ShippedHalf],
    at_us: int,
    space: FreeSpace,
    store: Store,
) -> HalvesResult:
    """Persist half messages, in order."""
    half_messages.check_fencing(business.proposed, epoch)
    space.check_data(sum(len(message.body) for message in halves))
    for message in halves:
        content = open_body(message.batch_no, message.body)
        arriving = HalfMessage(
            batch_no=message.batch_no,
            digest=message.digest,
            first_sequence=content.first_sequence,
            count=content.count,
            nbytes=len(message.body),
        )
        match half_messages.judge_arrival(business.proposed, epoch, arriving):
            case HalfAction.PERSIST:
                _require_described(business, content)
                described_versions.check_versions(business, content, f"batch {content.batch_no}")
                _require_same_tables(store, business, content)
                if business.is_new:
                    _raise_epoch(group, business, epoch, business.proposed.producer, at_us)
                entry = LogEntry(
                    kind=EntryKind.PREPARE, epoch=epoch, at_us=at_us, digest=message.digest, body=message.body
                )
                group.append(business, entry, content)
            case HalfAction.RESEND:
                business.add_to_counter("resends")
                wanted = business.proposed.end_batch + 1
                reason = f"batch {message.batch_no} came before batch {wanted}"
                return HalvesResult(through=business.proposed.end_batch, resend_from=wanted, reason=reason)
            case _:
                business.add_to_counter("duplicate_batches")
                business.add_to_counter("duplicate_rows", arriving.count)
    return HalvesResult(through=business.proposed.end_batch)


def decide(
    group: CommandGroup, business: Business, epoch: int, batch_no: int, digest: int, verdict: Verdict, at_us: int
) -> broker_pb2.Decided:
    """Decide half messages. Raises Fenced, IllegalTransition."""
    match half_messages.judge_decision(business.proposed, epoch, batch_no, digest, verdict):
        case HalfAction.COMMIT | HalfAction.ROLL_BACK:
            record = {"verdict": int(verdict), "batch_no": batch_no, "digest": digest}
            group.append(business, record_entry(EntryKind.DECIDE, epoch=epoch, at_us=at_us, record=record))
        case HalfAction.WAIT:
            return broker_pb2.Decided(
                verdict=broker_pb2.UNKNOWN, batch_no=batch_no, next_offset=business.proposed.next_offset
            )
        case _:
            business.add_to_counter("duplicate_decisions")
    answer = half_messages.recorded_answer(business.proposed, batch_no, digest, verdict)
    return broker_pb2.Decided(
        verdict=broker_pb2.Verdict.ValueType(answer.verdict), batch_no=answer.batch_no, next_offset=answer.next_offset
    )


def operator_decide(
    group: CommandGroup, business: Business, batch_no: int, verdict: Verdict, at_us: int
) -> broker_pb2.Decided:
    """Apply an operator's decision in place of the producer's, and fence a connected producer.

    A wrong decision loses nothing: the next producer continues after the last committed batch.
    """
    found = business.proposed.find_undecided(batch_no)
    if found is None:
        raise IllegalTransition(
            f"{business.name} has no undecided half message {batch_no}",
            hint="`venus half list` lists the undecided ones",
        )
    if verdict is Verdict.UNKNOWN:
        raise ProtocolError("an operator decides commit or rollback")
    epoch = half_messages.next_epoch(business.proposed, 0, at_us)
    _raise_epoch(group, business, epoch, "operator", at_us)
    business.add_to_counter("operator_decisions")
    return decide(group, business, epoch, batch_no, found.digest, verdict, at_us)


def _require_described(business: Business, content: Envelope) -> None:
    """Refuse changes of a table version whose columns no batch describes. Raises ProtocolError."""
    unknown = described_versions.find_missing_versions(business, content)
    if unknown:
        table_id, version = min(unknown)
        raise ProtocolError(
            f"batch {content.batch_no} has changes of table {table_id} in version {version}, which neither it nor any "
            "batch before it describes",
            hint="a producer sends the columns of a version before its first change: is its program a VENUS adapter?",
        )


def _require_same_tables(store: Store, business: Business, content: Envelope) -> None:
    """Refuse a table version that this broker knows with other columns. Raises ProtocolError."""
    known = described_versions.find_contradiction(store, business, content)
    if known is not None:
        raise ProtocolError(
            f"batch {content.batch_no} describes version {known.version} of table {known.table_id} in another way than "
            f"this broker knows it ({known.namespace}.{known.name}): the triggers were installed again, or the source "
            "was restored, and its tables are others since",
            hint=f"stop venus sync, `venus forget --business {business.name} --yes`, `venus uninstall-triggers`, "
            "`venus install-triggers`, then `venus migrate` for each target",
        )


def _raise_epoch(group: CommandGroup, business: Business, epoch: int, producer: str, at_us: int) -> None:
    """Propose the entry that raises the epoch, which fences older producers."""
    record = {"epoch": epoch, "producer": producer}
    group.append(business, record_entry(EntryKind.EPOCH, epoch=epoch, at_us=at_us, record=record))


def roll_back_incomplete(group: CommandGroup, business: Business, epoch: int, at_us: int) -> None:
    """Roll back the newest half messages if they form a cut whose rest is missing.

    The source has committed them, so they then count as missing too.
    """
    state = business.proposed
    contents = {
        **business.envelopes,
        **{p.content.batch_no: p.content for p in business.pending if p.content is not None},
    }
    first = None
    for found in reversed(state.halves):
        if contents[found.batch_no].cut_end:
            break
        first = found
    if first is not None:
        record = {"verdict": int(Verdict.ROLLBACK), "batch_no": first.batch_no, "digest": first.digest}
        group.append(business, record_entry(EntryKind.DECIDE, epoch=epoch, at_us=at_us, record=record))


def skip_lost(group: CommandGroup, business: Business, said: broker_pb2.Committed, at_us: int) -> broker_pb2.Decided:
    """Skip the changes that the source has committed and this broker lost. Raises Fenced, ProtocolError."""
    state = business.proposed
    half_messages.check_fencing(state, said.epoch)
    if loss.has_unmeasured(state.losses):
        message = _loss_body(business, state, said, at_us)
        body = message.SerializeToString()
        group.append(
            business,
            LogEntry(kind=EntryKind.LOST, epoch=said.epoch, at_us=at_us, digest=digest(body), body=body),
            build_envelope(message),
        )
    after = business.proposed
    return broker_pb2.Decided(verdict=broker_pb2.COMMIT, batch_no=after.last_batch, next_offset=after.next_offset)


def _loss_body(
    business: Business, state: half_messages.HalfState, said: broker_pb2.Committed, at_us: int
) -> change_pb2.BatchBody:
    """Return the batch without changes that stands for the lost ones.

    It also ends a cut whose rest is missing because a mirror became the home in the middle of it.
    """
    name = business.name
    if state.halves:
        raise ProtocolError(f"{name}: half message {state.halves[0].batch_no} must be decided first")
    batches = max(said.last_batch - state.last_batch, 0)
    rows = said.next_sequence - 1 - state.last_sequence if batches else 0
    # each change took an offset, and so did each empty batch; the number of empty ones is unknown
    lost = rows + batches
    if rows < 0 or lost > UINT32_MAX:
        raise ProtocolError(
            f"{name}: the source reports that it has committed batch {said.last_batch} up to Sequence "
            f"{said.next_sequence - 1}, this broker has batch {state.last_batch} up to Sequence "
            f"{state.last_sequence}: the two contradict each other",
            hint=half_messages.RESYNC_HINT,
        )
    check_limit(f"{name}: what the source has committed", "Sequence", said.next_sequence, state.last_sequence)
    newest = max(said.last_batch, state.last_batch)
    return change_pb2.BatchBody(
        batch_no=newest,
        first_sequence=max(said.next_sequence, state.last_sequence + 1),
        cut=business.open_cut or newest,
        cut_end=True,
        captured_at_us=at_us,
        lost=lost,
    )


class Producers:
    """Commands of producers. Thread-safe. Futures are resolved once the command is on disk."""

    def __init__(
        self,
        catalogue: BusinessCatalogue,
        commits: CommitThread,
        space: FreeSpace,
        store: Store,
        *,
        clock_us: Callable[[], int],
        monotonic: Callable[[], float],
        knows_end: Callable[[Business], bool],
        is_shared: bool = False,
    ) -> None:
        self._is_shared = is_shared
        self._catalogue = catalogue
        self._commits = commits
        self._space = space
        self._store = store
        self._clock_us = clock_us
        self._monotonic = monotonic
        self._knows_end = knows_end

    def init(
        self, business: str, producer: str, source_epoch: int, source_last_batch: int, *, insists: bool = False
    ) -> Future[broker_pb2.InitAck]:
        """Fence older producers and hold the business until `leave`.

        Fails with Diverged if this broker lost batches that the source has committed, with Unavailable if another
        broker may have them, with NotLeader if another set is the home. With `insists` the producer takes over anyway.
        """
        found = self._catalogue.enter(business)

        def fence(group: CommandGroup) -> broker_pb2.InitAck:
            """Fence older producers; hide a loss of batches while another broker may have them."""
            self._space.check_decision()
            try:
                return init(group, found, producer, source_epoch, source_last_batch, self._clock_us(), insists=insists)
            except Diverged as error:
                if self._knows_end(found):
                    raise
                raise Unavailable(
                    f"{business}: the source has committed batches that are not here, and another broker may lead now",
                    hint="try again in a moment",
                ) from error

        return self._commits.submit(fence, business=found)

    def leave(self, business: str) -> None:
        """Release the business that `init` holds, even if `init` failed."""
        found = self._catalogue.find(business)
        found.is_filling = False
        self._commits.release(self._catalogue, found)

    def carry_out_here(self) -> None:
        """Carry out the command that was queued with `wakes=False`, in this thread if possible."""
        self._commits.carry_out_here()

    def take_halves(
        self, business: str, epoch: int, halves: Sequence[ShippedHalf | broker_pb2.Half], *, wakes: bool = True
    ) -> Future[HalvesResult]:
        """Persist half messages. The caller has checked their digests; without `wakes` it calls `carry_out_here`."""
        found = self._catalogue.find(business)
        shipped = [half if isinstance(half, ShippedHalf) else _to_shipped(half) for half in halves]
        nbytes = sum(len(half.body) for half in shipped)

        def persist(group: CommandGroup) -> HalvesResult:
            return take_halves(group, found, epoch, shipped, self._clock_us(), self._space, self._store)

        return self._commits.submit(persist, nbytes, business=found, wakes=wakes)

    def decide(self, business: str, epoch: int, batch_no: int, digest: int, verdict: int) -> Future[broker_pb2.Decided]:
        """Decide half messages: COMMIT all up to `batch_no`, or ROLLBACK all from `batch_no` on."""
        found = self._catalogue.find(business)

        def decide_halves(group: CommandGroup) -> broker_pb2.Decided:
            self._space.check_decision()
            return decide(group, found, epoch, batch_no, digest, Verdict(verdict), self._clock_us())

        return self._commits.submit(decide_halves, business=found)

    def skip_lost(self, business: str, said: broker_pb2.Committed) -> Future[broker_pb2.Decided]:
        """Continue after changes that the source has committed and this broker lost in an unclean election."""
        found = self._catalogue.find(business)

        def skip_changes(group: CommandGroup) -> broker_pb2.Decided:
            self._space.check_decision()
            return skip_lost(group, found, said, self._clock_us())

        return self._commits.submit(skip_changes, business=found)

    def operator_decide(self, business: str, batch_no: int, verdict: int) -> Future[broker_pb2.Decided]:
        """Decide in place of the producer, and fence a connected one."""
        found = self._catalogue.find(business)

        def decide_by_hand(group: CommandGroup) -> broker_pb2.Decided:
            self._space.check_decision()
            return operator_decide(group, found, batch_no, Verdict(verdict), self._clock_us())

        return self._commits.submit(decide_by_hand, business=found)

    @property
    def has_undecided(self) -> bool:
        """Whether any half message may need a review. Never blocks."""
        return any(business.reviews.asked for business in self._catalogue.list_all())

    def due_reviews(self) -> list[tuple[str, int, list[broker_pb2.HalfRef]]]:
        """Return the epoch and the half messages to review now, for each business."""
        now = self._monotonic()
        found = []
        for business in self._catalogue.list_all():
            current = business.committed
            with business.lock:
                due = business.reviews.due_batches(now)[:REVIEWED_AT_ONCE_MAX]
                halves = [half for n in due if (half := current.find_undecided(n)) is not None]
                refs = [describe_half(business, half) for half in halves]
            if refs:
                found.append((business.name, current.epoch, refs))
        return found

    def count_delivered_reviews(self, business: str, batch_nos: Sequence[int]) -> None:
        """Count reviews that reached a producer; no other review counts."""
        found = self._catalogue.find(business)
        with found.lock:
            found.counters["reviews_sent"] += found.reviews.record_delivered(batch_nos, self._monotonic())

    def record_fill(self, business: str, *, is_filling: bool) -> None:
        """Record whether a producer does its first fill; only then may rows be added as files of the store.

        With a shared log no rows are added as files: another broker may take a copy at any moment, which would then
        have rows ahead of its offset.
        """
        self._catalogue.find(business).is_filling = is_filling and not self._is_shared

    def count(self, business: str, counter: str, n: int = 1) -> None:
        """Add to a counter of a business. It is stored with the next write."""
        self._catalogue.find(business).add_to_counter(counter, n)


def _to_shipped(half: broker_pb2.Half) -> ShippedHalf:
    return ShippedHalf(batch_no=half.batch_no, digest=half.digest, body=half.body)
