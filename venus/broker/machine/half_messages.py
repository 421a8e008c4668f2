"""The life of half messages (VENUS 3.3, figure 4), without any I/O.

A half message is on disk but invisible. The producer decides a half message; if the producer is silent, the broker
asks for the decision (a review). The table `_NEXT` lists the allowed pairs of stage and event. Repeating a decision is
no error, because its answer may have been lost. The functions below check an event (`judge_arrival`, `judge_decision`)
or change the state (`add_half`, `commit`, `roll_back`, `raise_epoch`): the commit thread appends a log entry between
the check and the change, and a replay after a crash runs the changes alone.

Every entry replaces the state of a business, and each version may be kept until its entry is applied. With tuples, n
undecided half messages would cost n copies of up to n references; a version of `SharedSequence` takes three words.

A counter that is set close to the end of its range stops the business, because no value can follow. So each counter
that a producer, an upstream set or another broker sends may exceed the known value by at most its limit in
`COUNTER_LIMITS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, TypeVar, overload

from venus.broker.machine.loss import Loss, has_unmeasured
from venus.broker.machine.mirror import Home, Mirror
from venus.errors import Diverged, Fenced, IllegalTransition, ProtocolError
from venus.model import Verdict

T = TypeVar("T")

#: A version copies its elements once it skips more than this many at the start of the list, and more than it has
#: itself.
_COPY_ABOVE = 256


@dataclass(frozen=True, slots=True)
class CounterLimit:
    """The limit of one counter: at most `jump_max` above the known value, which counts as at least `floor`."""

    jump_max: int
    floor: int = 0

    def largest(self, known: int) -> int:
        """Return the largest value that is accepted after `known`."""
        return max(known, self.floor) + self.jump_max


#: By the name of the counter in messages.
COUNTER_LIMITS = {
    "Sequence": CounterLimit(2**48),
    "batch": CounterLimit(2**48),
    "offset": CounterLimit(2**48),
    "epoch": CounterLimit(2**48, floor=2**48),  # milliseconds since 1970, or the previous epoch plus one
    "version": CounterLimit(2**20),  # of a table
    "home term": CounterLimit(10_000),
}


def is_within_limit(counter: str, value: int, known: int) -> bool:
    """Whether a counter's new value is close enough to the known value to be accepted."""
    return value <= COUNTER_LIMITS[counter].largest(known)


def check_limit(where: str, counter: str, value: int, known: int) -> None:
    """Raise ProtocolError, which begins with `where`, if a counter's new value is too far above the known one."""
    if not is_within_limit(counter, value, known):
        raise ProtocolError(
            f"{where} has {counter} {value}: it must be {COUNTER_LIMITS[counter].largest(known)} at most"
        )


class SharedSequence(Sequence[T]):
    """An immutable sequence whose versions share one list; equal to any sequence with the same elements."""

    __slots__ = ("_items", "_start", "_stop")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = list(items)
        self._start, self._stop = 0, len(self._items)

    def with_item(self, item: T) -> SharedSequence[T]:
        """Return a new version that ends with `item`, in constant time if this is the newest version."""
        found = self
        if len(self._items) != self._stop:  # another version has appended here
            found = SharedSequence(self)
        found._items.append(item)
        return found._view(found._start, found._stop + 1)

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> SharedSequence[T]: ...

    def __getitem__(self, at: int | slice) -> T | SharedSequence[T]:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                raise ValueError("only whole runs are shared")
            return self._view(self._start + start, self._start + max(start, stop))
        where = at + self._start if at >= 0 else at + self._stop
        if not self._start <= where < self._stop:
            raise IndexError(at)
        return self._items[where]

    def __iter__(self) -> Iterator[T]:
        return iter(self._items[self._start : self._stop])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Shared({list(self)!r})"

    def _view(self, start: int, stop: int) -> SharedSequence[Any]:
        """Return a version with these elements of the shared list, copied once most of the list is skipped."""
        if start > _COPY_ABOVE and start > stop - start:
            return SharedSequence(self._items[start:stop])
        found: SharedSequence[Any] = SharedSequence.__new__(SharedSequence)
        found._items, found._start, found._stop = self._items, start, stop
        return found


#: How many decisions are kept, to answer a producer that asks again.
OUTCOMES_MAX = 32
#: Above this, a source's epoch is accepted only if this broker assigned it.
EPOCH_MAX = 2**48
#: The maximum gap in Sequences before a batch: no counter of a source jumps further.
JUMP_MAX = COUNTER_LIMITS["Sequence"].jump_max

RESYNC_HINT = (
    "right address? If the broker's data directory was replaced or the source restored: `venus uninstall-triggers`, "
    "`venus install-triggers`, then `venus migrate` for each target"
)


class HalfStage(Enum):
    """The stage of a half message: absent, undecided, committed or rolled back."""

    ABSENT = auto()
    HALF = auto()
    COMMITTED = auto()
    ROLLED_BACK = auto()


class HalfEvent(Enum):
    """What can arrive for a half message: the half message itself, or a decision on it."""

    HALF = auto()
    COMMIT = auto()
    ROLLBACK = auto()
    UNKNOWN = auto()


class HalfAction(Enum):
    """What the broker does when a half message, or a decision on it, arrives."""

    PERSIST = auto()
    COMMIT = auto()
    ROLL_BACK = auto()
    ANSWER = auto()  # from the recorded outcome; nothing changes
    RESEND = auto()  # an earlier half message is missing
    WAIT = auto()  # the local transaction has not ended


_NEXT = {
    (HalfStage.ABSENT, HalfEvent.HALF): HalfAction.PERSIST,
    (HalfStage.HALF, HalfEvent.HALF): HalfAction.ANSWER,
    (HalfStage.COMMITTED, HalfEvent.HALF): HalfAction.ANSWER,
    (HalfStage.ROLLED_BACK, HalfEvent.HALF): HalfAction.PERSIST,
    (HalfStage.HALF, HalfEvent.COMMIT): HalfAction.COMMIT,
    (HalfStage.COMMITTED, HalfEvent.COMMIT): HalfAction.ANSWER,
    (HalfStage.HALF, HalfEvent.ROLLBACK): HalfAction.ROLL_BACK,
    (HalfStage.ROLLED_BACK, HalfEvent.ROLLBACK): HalfAction.ANSWER,
    (HalfStage.ABSENT, HalfEvent.ROLLBACK): HalfAction.ANSWER,  # it never arrived, so there is nothing to remove
    (HalfStage.ABSENT, HalfEvent.UNKNOWN): HalfAction.WAIT,
    (HalfStage.HALF, HalfEvent.UNKNOWN): HalfAction.WAIT,
    (HalfStage.COMMITTED, HalfEvent.UNKNOWN): HalfAction.WAIT,
    (HalfStage.ROLLED_BACK, HalfEvent.UNKNOWN): HalfAction.WAIT,
}

_EVENT = {Verdict.COMMIT: HalfEvent.COMMIT, Verdict.ROLLBACK: HalfEvent.ROLLBACK, Verdict.UNKNOWN: HalfEvent.UNKNOWN}
_STAGE = {Verdict.COMMIT: HalfStage.COMMITTED, Verdict.ROLLBACK: HalfStage.ROLLED_BACK}


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfMessage:
    """A half message (prepared batch) without its body, which is in the log at `index`."""

    batch_no: int
    digest: int
    first_sequence: int
    count: int
    nbytes: int = 0
    received_at_us: int = 0
    index: int = 0
    lost: int = 0  # the number of offsets lost by an unclean election that it represents

    @property
    def last_sequence(self) -> int:
        """The Sequence of the last change; first_sequence - 1 if the batch is empty."""
        return self.first_sequence + self.count - 1

    @property
    def offsets(self) -> int:
        """How many offsets the batch takes: an empty batch takes one, so that it has a position in the queue too."""
        return self.lost or max(self.count, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfOutcome:
    """The decision on a half message; `next_offset` is the queue's end after it."""

    batch_no: int
    digest: int
    verdict: Verdict
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfState:
    """State of a business: undecided half messages, recent decisions, producer epoch, queue's end, mirror and home."""

    epoch: int = 0
    producer: str = ""
    last_batch: int = 0
    last_sequence: int = 0
    next_offset: int = 0
    halves: SharedSequence[HalfMessage] = field(default_factory=SharedSequence)
    outcomes: tuple[HalfOutcome, ...] = ()
    losses: tuple[Loss, ...] = ()  # of unclean elections and promotions
    mirror: Mirror | None = None  # its full data came from the broker set above
    home: Home | None = None  # since a promotion

    @property
    def is_mirror(self) -> bool:
        """Whether the changes of the business come from the set above, not from a producer."""
        return self.mirror is not None and not (self.home is not None and self.home.here)

    @property
    def is_replaced(self) -> bool:
        """Whether this set was the home of the business until another set was promoted."""
        return self.mirror is None and self.home is not None and not self.home.here

    @property
    def end_batch(self) -> int:
        """The number of the newest batch, decided or not."""
        return self.halves[-1].batch_no if self.halves else self.last_batch

    @property
    def end_sequence(self) -> int:
        """The newest Sequence of any batch, decided or not."""
        return self.halves[-1].last_sequence if self.halves else self.last_sequence

    def find_undecided(self, batch_no: int) -> HalfMessage | None:
        """Return the undecided half message with this batch number, or None. Batch numbers are dense."""
        at = batch_no - self.last_batch - 1
        return self.halves[at] if 0 <= at < len(self.halves) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionAnswer:
    """The answer to a decision: committed up to `batch_no`, or rolled back from `batch_no` on."""

    verdict: Verdict
    batch_no: int
    next_offset: int


# -- checks ----------------------------------------------------------------------------------------------------


def check_fencing(state: HalfState, epoch: int) -> None:
    """Raise Fenced unless `epoch` is that of the newest producer."""
    if epoch != state.epoch:
        raise Fenced(f"epoch {epoch} has been replaced by epoch {state.epoch}")


def judge_arrival(state: HalfState, epoch: int, half: HalfMessage) -> HalfAction:
    """Return the action for an arriving half message: PERSIST, ANSWER or RESEND."""
    check_fencing(state, epoch)
    if half.batch_no > state.end_batch + 1:
        return HalfAction.RESEND
    action = _NEXT[find_stage(state, half.batch_no, half.digest, ProtocolError), HalfEvent.HALF]
    if action is HalfAction.PERSIST and half.first_sequence <= state.end_sequence:
        raise Diverged(
            f"batch {half.batch_no} starts at Sequence {half.first_sequence}, but the broker already has Sequences up "
            f"to {state.end_sequence}: the source has gone back in time",
            hint=RESYNC_HINT,
        )
    if action is HalfAction.PERSIST and half.first_sequence > state.end_sequence + JUMP_MAX:
        first, last = state.end_sequence + 1, state.end_sequence + JUMP_MAX
        raise ProtocolError(
            f"batch {half.batch_no} starts at Sequence {half.first_sequence}: it must be from {first} to {last}"
        )
    return action


def judge_decision(state: HalfState, epoch: int, batch_no: int, digest: int, verdict: Verdict) -> HalfAction:
    """Return the action for a decision: COMMIT, ROLL_BACK, ANSWER or WAIT. Raises IllegalTransition."""
    check_fencing(state, epoch)
    if verdict is Verdict.UNKNOWN:
        return HalfAction.WAIT
    found = find_stage(state, batch_no, digest, IllegalTransition)
    try:
        return _NEXT[found, _EVENT[verdict]]
    except KeyError:
        raise IllegalTransition(f"batch {batch_no} is {found.name} and cannot take {verdict.name}") from None


def find_stage(state: HalfState, batch_no: int, digest: int, mismatch: type[ProtocolError]) -> HalfStage:
    """Return the stage of a batch; a number may be used again after a rollback, so the digest must match too."""
    for outcome in reversed(state.outcomes):
        if outcome.batch_no == batch_no and outcome.digest == digest and state.find_undecided(batch_no) is None:
            return _STAGE[outcome.verdict]
    half = state.find_undecided(batch_no)
    if half is not None:
        if half.digest == digest:
            return HalfStage.HALF
        if any(o.batch_no == batch_no and o.digest == digest for o in state.outcomes):
            return HalfStage.ROLLED_BACK  # a late message about an earlier use of the number
        raise mismatch(f"batch {batch_no} is known with digest {half.digest:016x}, not {digest:016x}")
    if batch_no > state.last_batch:
        return HalfStage.ABSENT
    committed = [o for o in state.outcomes if o.batch_no == batch_no and o.verdict is Verdict.COMMIT]
    if committed:
        raise mismatch(f"batch {batch_no} was committed with digest {committed[0].digest:016x}, not {digest:016x}")
    return HalfStage.COMMITTED  # older than the record; every number up to last_batch was committed


def recorded_answer(state: HalfState, batch_no: int, digest: int, verdict: Verdict) -> DecisionAnswer:
    """Return the answer to a repeated decision, or to one that decides nothing."""
    for outcome in reversed(state.outcomes):
        if (outcome.batch_no, outcome.digest, outcome.verdict) == (batch_no, digest, verdict):
            return DecisionAnswer(verdict=verdict, batch_no=batch_no, next_offset=outcome.next_offset)
    return DecisionAnswer(verdict=verdict, batch_no=batch_no, next_offset=state.next_offset)


# -- steps -----------------------------------------------------------------------------------------------------


def check_producer(state: HalfState, source_last_batch: int) -> None:
    """Raise Diverged if the source has committed more than this broker ever received (rule 6).

    After an unclean election batches may be missing, so the broker asks the producer which ones instead of raising.
    """
    if source_last_batch > state.end_batch and not has_unmeasured(state.losses):
        raise Diverged(
            f"the source has committed batch {source_last_batch}, but this broker's newest is {state.end_batch}: "
            "it no longer has changes that it acknowledged",
            hint=RESYNC_HINT,
        )


def check_epoch(state: HalfState, source_epoch: int) -> None:
    """Raise ProtocolError if a source's epoch leaves no room for the epochs of later producers."""
    if source_epoch > max(state.epoch, EPOCH_MAX):
        raise ProtocolError(f"the source's epoch is {source_epoch}: it must be from 0 to {max(state.epoch, EPOCH_MAX)}")


def next_epoch(state: HalfState, source_epoch: int, at_us: int) -> int:
    """Return the epoch of a new producer: above every earlier epoch, and above the time in milliseconds.

    So a home restored from a backup, or a business that was forgotten and created again, continues in an epoch that
    its lost history never had. A consumer that applied a part of the lost history is therefore detected as diverged.
    """
    return max(state.epoch, source_epoch, at_us // 1000) + 1


def raise_epoch(state: HalfState, epoch: int, producer: str) -> HalfState:
    """Return the state with a new epoch, in which `producer` is the only accepted producer."""
    return replace(state, epoch=epoch, producer=producer)


def with_halves(state: HalfState, halves: Iterable[HalfMessage]) -> HalfState:
    """Return the state with the undecided half messages found on disk."""
    return replace(state, halves=SharedSequence(halves))


def add_half(state: HalfState, half: HalfMessage) -> HalfState:
    """Return the state with a new half message, for which `judge_arrival` returned PERSIST."""
    assert half.batch_no == state.end_batch + 1, "halves are persisted in order"
    return HalfState(  # twice as fast as `replace`, and it runs for every half message
        epoch=state.epoch,
        producer=state.producer,
        last_batch=state.last_batch,
        last_sequence=state.last_sequence,
        next_offset=state.next_offset,
        halves=state.halves.with_item(half),
        outcomes=state.outcomes,
        losses=state.losses,
        mirror=state.mirror,
        home=state.home,
    )


def commit(state: HalfState, batch_no: int) -> tuple[HalfState, tuple[tuple[int, HalfMessage], ...]]:
    """Commit every half message up to `batch_no`; return the new state, and the batches with base offsets."""
    through = batch_no - state.last_batch
    decided, left = state.halves[:through], state.halves[through:]
    assert decided, "commit of nothing"
    offset = state.next_offset
    placed = []
    outcomes = []
    for half in decided:
        placed.append((offset, half))
        offset += half.offsets
        outcomes.append(
            HalfOutcome(batch_no=half.batch_no, digest=half.digest, verdict=Verdict.COMMIT, next_offset=offset)
        )
    after = replace(
        state,
        last_batch=decided[-1].batch_no,
        last_sequence=decided[-1].last_sequence,
        next_offset=offset,
        halves=left,
        outcomes=(*state.outcomes, *outcomes)[-OUTCOMES_MAX:],
    )
    return after, tuple(placed)


def roll_back(state: HalfState, batch_no: int) -> tuple[HalfState, tuple[HalfMessage, ...]]:
    """Remove half messages from `batch_no` on, as later ones depend on it; return the new state and those removed."""
    keep = batch_no - state.last_batch - 1
    left, removed = state.halves[:keep], state.halves[keep:]
    assert removed, "rollback of nothing"
    outcomes = tuple(
        HalfOutcome(batch_no=h.batch_no, digest=h.digest, verdict=Verdict.ROLLBACK, next_offset=state.next_offset)
        for h in removed
    )
    return replace(state, halves=left, outcomes=(*state.outcomes, *outcomes)[-OUTCOMES_MAX:]), tuple(removed)
