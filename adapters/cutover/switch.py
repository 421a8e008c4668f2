"""One switch of the application from one database to the other, step by step (switching.py); idempotent.

This process ends the former owner's capture by the protocol of capture itself: it takes over as the producer, decides
the undecided half messages, and seals the checkpoint. No batch can be committed after the seal, so the broker's next
offset is the position that both databases have in common. The new owner continues the same business from that position:
batch numbers, Sequences and offsets continue, and the broker's full data stays valid.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import closing, contextmanager, suppress
from typing import Any, Self, TypeVar

from venus.adapters.cutover.direction import FallBackPair
from venus.adapters.cutover.lock_patience import LockPatience
from venus.adapters.dialects.contract import RegisteredTable, Source
from venus.adapters.targets.cutover_contract import (
    CutoverObstacle,
    CutoverTarget,
    FallBackSide,
    FollowStart,
    SchemaDifference,
    SideOpening,
)
from venus.adapters.targets.switching import SideRecord, SideState, Step, SwitchPosition, find_step, switch_command
from venus.adapters.targets.views import TargetTable
from venus.adapters.targets.way_back import WayBackLoss, find_losses
from venus.adapters.upper.capture import connect_producer, read_broker_status
from venus.adapters.upper.session import SourceClaim, open_session
from venus.config import Settings
from venus.errors import Fenced, Refused, Unavailable, VenusError
from venus.model import TableSchema
from venus.rpc.address import broker_address
from venus.rpc.admin import AdminClient
from venus.rpc.nearest_subscriber import open_subscriber

#: How many times to retry the take-over from a capture that starts again at the same time.
_TRIES = 5
_PAUSE_S = 0.2
_DECIDE_TIMEOUT_S = 30.0

T = TypeVar("T")
Check = Callable[[Seq[TargetTable]], None]


@contextmanager
def advise(advice: str) -> Iterator[None]:
    """Add advice to an error that the block raises."""
    try:
        yield
    except VenusError as error:
        error.hint = "; ".join(filter(None, (error.hint, advice)))
        raise


class Switch:
    """Switch of the application from its present database, the owner, to the follower, database `name` of the pair."""

    def __init__(
        self,
        pair: FallBackPair,
        name: str,
        source: Source,
        patience: LockPatience,
        *,
        owner: FallBackSide,
        follower: FallBackSide,
    ) -> None:
        self._pair = pair
        self._settings = pair.settings_to(name)
        self._source = source
        self._patience = patience
        self.name = name
        self.owner = owner
        self.follower = follower

    @classmethod
    def connect(cls, pair: FallBackPair, name: str, source: Source, patience: LockPatience) -> Self:
        """Connect to both databases."""
        follower = pair.open_target(name).open_side()
        try:
            owner = pair.open_target(pair.other(name)).open_side()
        except VenusError:
            follower.close()
            raise
        return cls(pair, name, source, patience, owner=owner, follower=follower)

    def close(self) -> None:
        """Close the connections to both databases."""
        self.follower.close()
        self.owner.close()

    @property
    def step(self) -> Step:
        """The next step. Raises Refused if the records contradict each other."""
        return find_step(self.owner.read(), self.follower.read())

    @property
    def _number(self) -> int:
        """The number of this switch; each switch between the two databases increments it."""
        record = self.follower.read()
        assert record is not None
        return record.switch if record.state is SideState.OPEN else record.switch + 1

    def _record(self, side: FallBackSide, state: SideState, switch: int, offset: int = 0) -> SideRecord:
        """Return the record that this switch stores in a database."""
        return SideRecord(
            business=self._settings.business.name,
            name=side.name,
            peer=self._pair.other(side.name),
            state=state,
            switch=switch,
            offset=offset,
        )

    # -- before the switch -----------------------------------------------------------------------------------------

    def find_obstacles(self) -> list[CutoverObstacle]:
        """Return what would prevent changes at the new owner from coming back. Reads only."""
        captured, released = self._read_tables()
        handover = self.follower.plan_handover(captured, released)
        found = [CutoverObstacle(what=f"{line}: changes could not come back") for line in handover.obstacles]
        return found + self.owner.find_obstacles([t.schema for t in captured])

    def find_losses(self, differences: Seq[SchemaDifference]) -> list[WayBackLoss]:
        """Return what could not come back once the follower is the application's database. Reads only."""
        tables = self._schemas
        there = self._source.dictionary.read_table_names()
        return find_losses(
            tables,
            self.owner.read_limits(tables),
            self.follower.read_limits(tables),
            only_new=self.follower.find_own_objects(tables, there),
            differences=differences,
        )

    def prepare(self) -> None:
        """Let the follower reject writes of the application, unless it already does."""
        self.run_step(self.owner, self.owner.install)
        self.run_step(self.follower, self.follower.install)
        if self.step is Step.PREPARE:
            self._reject_writes(self.follower, self._record(self.follower, SideState.FOLLOWING, 0), self._schemas)

    def run_step(self, side: FallBackSide, step: Callable[[], T]) -> T:
        """Run a step at this database; repeat it while another session's lock prevents it. Raises LockTimeout."""
        return self._patience.run(step, side.describe_open_transactions)

    def _reject_writes(self, side: FallBackSide, record: SideRecord, schemas: Seq[TableSchema]) -> None:
        self.run_step(side, lambda: side.reject_writes(record, schemas))

    def _read_tables(self) -> tuple[list[RegisteredTable], list[RegisteredTable]]:
        """Return the captured tables, and those that were released from capture."""
        registry = self._source.registry
        return registry.read_registered_tables(), registry.read_released_tables()

    @property
    def _schemas(self) -> list[TableSchema]:
        return [t.schema for t in self._read_tables()[0]]

    # -- the switch ------------------------------------------------------------------------------------------------

    @contextmanager
    def reopen_on_failure(self, session: CutoverTarget) -> Iterator[None]:
        """Let the owner accept writes again if the block fails, unless the follower has been opened.

        After a crash, the databases' records show at which step the next run continues.
        """
        try:
            yield
        except BaseException:
            command = switch_command(self.name)
            with advise(
                f"the switch is not finished, and neither database may accept writes: `{command}` completes it, "
                f"`{command} --undo` lets {self.owner.name} accept writes again"
            ):
                session.lock_switch()
                if self.step in (Step.STOP, Step.OPEN):
                    self.reopen(session)
            raise

    def close_owner(self, drain: Callable[[], None]) -> SwitchPosition:
        """Let the owner reject writes, drain it, and seal its capture at the position that both have in common."""
        if self.step is Step.CLOSE:
            self._reject_writes(self.owner, self._record(self.owner, SideState.CLOSED, self._number), self._schemas)
        drain()
        return self.run_step(self.owner, self._seal_capture) if self.step is Step.STOP else self._stopped_position()

    def reopen(self, session: CutoverTarget) -> None:
        """Let the owner accept writes again. Raises Refused if the follower is already the application's.

        The lock waits for a transaction that may still open the follower, and prevents another process from opening it.
        """
        session.lock_switch()
        step = self.step
        if step not in (Step.STOP, Step.OPEN):
            raise Refused(
                f"the switch to {self.name} is not under way: there is nothing to undo",
                hint=f"`{switch_command(self.owner.name)}` goes back with every write" if step is Step.DONE else "",
            )
        record = self._record(self.owner, SideState.OPEN, self._number - 1)
        self.run_step(self.follower, self.follower.keep_following)
        self.run_step(self.owner, lambda: self.owner.reopen(record))

    def open(self, session: CutoverTarget, certificate: dict[str, Any], check: Check, at: SwitchPosition) -> None:
        """Make the follower the application's database, in one transaction with its mark."""
        record = self._record(self.follower, SideState.OPEN, self._number, at.offset)

        def put_mark() -> None:
            plan = self.follower.plan_handover(*self._read_tables())
            opening = SideOpening(record=record, position=at, statements=plan.statements, preparation=plan.preparation)
            session.put_mark(certificate, check, opening)

        self.run_step(self.follower, put_mark)

    def complete(self) -> None:
        """Let the former owner follow from the position of the switch, unless it already does."""
        step = self.step
        if step is Step.DONE:
            return
        if step is not Step.FOLLOW:
            raise Refused(
                f"target {self.name} was cut over without --fall-back: the way back begins at the cut, and cannot be "
                "added later",
                hint=f"`venus cutover --target {self.name} --undo`, if it has not been written to",
            )
        with advise(f"{self.name} accepts writes; `{switch_command(self.name)}` lets {self.owner.name} follow it"):
            self._start_following()

    def _start_following(self) -> None:
        """Let the former owner follow from the position of the switch."""
        with closing(self._pair.open_source(self.owner.name)) as source:
            # store a version for changes that the last step has made there
            self.run_step(self.follower, source.capture.refresh_schemas)
        start = self.follower.read_start()
        self._register_former_owner(start)
        record = self._record(self.owner, SideState.FOLLOWING, self._number, start.offset)
        self.run_step(self.owner, lambda: self.owner.follow(record, start))
        self.follower.tidy()

    def _register_former_owner(self, start: FollowStart) -> None:
        """Register the former owner at the broker, which then keeps the queue for it; forget the new owner's group."""
        business = self._settings.business.name
        back = self._pair.settings_to(self.owner.name)
        group = f"{business}/{self.owner.name}"
        with closing(open_subscriber(broker_address(back), business, group, credit_bytes=1 << 20)) as stream:
            stream.open(start.offset, start.epoch, kept=start.offset, rows=start.rows)
        with AdminClient(broker_address(back)) as admin, suppress(VenusError):
            admin.forget(business, f"{business}/{self.follower.name}")

    # -- the position ----------------------------------------------------------------------------------------------

    def _seal_capture(self) -> SwitchPosition:
        """End the owner's capture at the position that this returns: no later cut can be committed there."""
        for left in range(_TRIES, 0, -1):
            epoch, offset = self._take_over()
            record = self._record(self.owner, SideState.STOPPED, self._number, offset)
            try:
                return self.owner.seal(record, epoch, self._schemas)
            except Fenced:
                if left == 1:
                    raise
                self._pause()
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _take_over(self) -> tuple[int, int]:
        """Become the producer, decide every half message, and return the epoch and the broker's next offset."""
        settings = self._settings
        claim = SourceClaim(owner=uuid.uuid4().hex, take_over=True)
        with closing(connect_producer(settings)) as producer:
            session = open_session(self._source, producer, claim, timeout_s=settings.capture.cut_timeout_s)
            return session.epoch, self._wait_until_decided(settings)

    def _wait_until_decided(self, settings: Settings) -> int:
        """Wait until the broker has decided all batches of the source; return its next offset."""
        last_batch = self._source.registry.read_state().last_batch
        deadline = time.monotonic() + _DECIDE_TIMEOUT_S
        while True:
            status = read_broker_status(settings)
            if status.last_batch >= last_batch and not status.halves:
                return int(status.next_offset)
            if time.monotonic() > deadline:
                raise Unavailable("half messages stay undecided at the broker", hint="venus half list")
            self._pause()

    @staticmethod
    def _pause() -> None:
        time.sleep(_PAUSE_S)

    def _stopped_position(self) -> SwitchPosition:
        """Return the position at which an earlier run has sealed the capture."""
        record, state = self.owner.read(), self._source.registry.read_state()
        assert record is not None
        return SwitchPosition(
            offset=record.offset, epoch=abs(state.epoch), next_sequence=state.next_sequence, last_batch=state.last_batch
        )
