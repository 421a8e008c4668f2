"""State of the apply loop that outlives a session with the target: its stream from the broker, and its reports.

The stream assembles increments into whole cuts (VENUS 3.4). The state includes the cleanup of the quarantine, which
deletes changes that were decided long ago, but never changes that still wait. Each cleanup statement examines a bounded
number of changes, in the order of their arrival.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from venus.adapters.targets.contract import FollowReport
from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.database import RelationalDatabase
from venus.adapters.targets.relational.session import RelationalSession
from venus.adapters.targets.relational.states import TableState
from venus.adapters.targets.relational.verdicts import Verdicts
from venus.adapters.under.circuit import TargetCircuit
from venus.adapters.under.cut_assembler import CutAssembler, DecisionNeeded
from venus.adapters.under.row_changes import ChangedKeys
from venus.errors import Diverged
from venus.network.row_filters import RowsIdentity
from venus.rpc import reports
from venus.rpc.conditions import TableCondition, switch_conditions
from venus.rpc.nearest_subscriber import open_subscriber

logger = logging.getLogger(__name__)

REPORT_S = 0.5
#: Limits in rows and bytes for a transaction of a first load that lags behind the read of the source.
FIRST_LOAD_ROWS, FIRST_LOAD_BYTES = 200_000, 16 << 20
BACK_OFF_S = 60.0
#: How many changes one cleanup statement examines, and the pause between two statements.
PIECE_ROWS = 1_000
PIECE_EVERY_S = 1.0
#: The pause between two passes over the whole quarantine.
ROUND_EVERY_S = 3600.0


class QuarantineCleanup:
    """Periodic deletion of old decided changes from the quarantine; its progress outlives a session."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._after = 0
        self._gone = 0
        self._due: float | None = None

    def step(self, target: RelationalDatabase, session: RelationalSession) -> None:
        """Delete old decided changes among the next rows of the quarantine if that is due."""
        now = self._monotonic()
        if self._due is not None and now < self._due:
            return
        piece = {"after": self._after, "rows_max": PIECE_ROWS, "keep_s": target.config.quarantine_keep_s}
        ((reached, gone),) = target.read_own_rows(session, "clear_quarantine", **piece)
        self._gone += gone
        if reached is not None:
            self._after, self._due = reached, now + PIECE_EVERY_S
            return
        if self._gone:
            logger.info("target %s: removed %s old decided changes from the quarantine", target.name, self._gone)
        self._after, self._gone, self._due = 0, 0, now + ROUND_EVERY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyReport(FollowReport):
    """Report of a relational target's apply loop to its caller."""

    circuit: str
    held: tuple[TableState, ...] = ()
    constraints: str = ""


Report = Callable[[ApplyReport], None]
#: Returns the offset at which a first load ends; None while that is unknown.
End = Callable[[], int | None]


class ApplyLoop(TargetCircuit):
    """State of one apply loop: counters, the circuit, verdicts on refused rows, the stop signal.

    The loop of a first load ends at `end`, and writes only decided cuts, because no reader waits for the rows yet.
    """

    def __init__(self, target: str, stop: threading.Event, report: Report | None, end: End | None = None) -> None:
        super().__init__(target)
        self.stop = stop
        self._end = end
        self.changed_keys = ChangedKeys() if end is not None else None
        #: Verdicts on refused rows of the current cut; they outlive a session.
        self.verdicts = Verdicts()
        self.clearing = QuarantineCleanup(time.monotonic)
        self._report = report
        self._constraints = ""
        self._rows = self._transactions = 0
        self._reported = 0.0
        self._offset = 0
        self._ahead_from = 0.0 if end is None else float("inf")
        #: Tables whose cuts must not be merged piece by piece.
        self.whole: set[int] = set()
        #: What to do about an unfinished switch of the application, as text; empty = nothing.
        self.describe_switch: Callable[[], str] = lambda: ""

    @property
    def goes_ahead(self) -> bool:
        """Whether the session writes cuts before the broker knows that the source has committed them."""
        return time.monotonic() >= self._ahead_from

    def back_off(self, reason: str) -> None:
        """For the next minute, write cuts only after their decision."""
        logger.info("target %s: a cut waits for its decision: %s", self._target, reason)
        self._ahead_from = time.monotonic() + BACK_OFF_S

    def merge_whole(self, table_id: int) -> None:
        """Merge every later cut of this table as a whole, instead of piece by piece."""
        logger.info("target %s: merging cuts of table %s as a whole from now on", self._target, table_id)
        self.whole.add(table_id)

    @property
    def is_stopped(self) -> bool:
        return self.stop.is_set()

    @property
    def is_first_load(self) -> bool:
        """Whether the loop belongs to a first load, which overlaps the first read of the source."""
        return self._end is not None

    def group_rows_max(self, configured: int) -> int:
        """Return the limit of a transaction in rows, which is higher for a first load."""
        return max(configured, FIRST_LOAD_ROWS) if self.is_first_load else configured

    @property
    def group_bytes_max(self) -> int | None:
        """The limit of a transaction in bytes; None means the usual one."""
        return FIRST_LOAD_BYTES if self.is_first_load else None

    @property
    def end(self) -> int | None:
        """The offset at which the first load ends; None while that is unknown, and for other loops."""
        return self._end() if self._end is not None else None

    @property
    def is_at_end(self) -> bool:
        """Whether everything below the end of the first load is applied."""
        end = self.end
        return end is not None and self._offset >= end

    def wait(self, seconds: float) -> None:
        """Wait until the time is over or the loop stops."""
        self.stop.wait(seconds)

    def record_start(self, offset: int) -> None:
        """Record the offset at which a session begins."""
        self.record_session()
        self._offset = offset

    def record_applied(self, offset: int, rows: int) -> None:
        """Record a committed transaction."""
        self.verdicts = Verdicts()
        self.breaker.record_success(0.0, time.monotonic())
        self._offset = offset
        self._rows += rows
        self._transactions += 1

    def record_latency(self, latency_s: float) -> str:
        """Record how long the target took for a few rows; a slow target is isolated for a while."""
        error = super().record_latency(latency_s)
        if error:
            self.report((), error=error, now=True)
        return error

    def log_constraints(self, text: str) -> None:
        """Log how foreign keys are treated, once for each change."""
        if text != self._constraints:
            self._constraints = text
            logger.info("target %s: %s", self._target, text)

    def on_retry(self, error: BaseException | None) -> None:
        """Log and report an error before the next try."""
        super().on_retry(error)
        self.report((), error=str(error), now=True)

    def report(self, held: Sequence[TableState], *, error: str = "", now: bool = False) -> None:
        """Report to the caller, at most every `REPORT_S` seconds unless `now`."""
        if self._report is None or (not now and time.monotonic() - self._reported < REPORT_S):
            return
        self._reported = time.monotonic()
        self._report(
            ApplyReport(
                target=self._target,
                offset=self._offset,
                rows=self._rows,
                transactions=self._transactions,
                circuit=self.breaker.state.value,
                error=error,
                held=tuple(held),
                constraints=self._constraints,
            )
        )


#: How long a session waits on a quiet stream before it looks for operators' commands.
IDLE_S = 1.0
#: How long a transaction with undecided changes stays open after the last increment.
DECISION_WAIT_S = 5.0


class ApplyStream:
    """One stream from the broker that begins at the applied offset. `ahead`: it includes undecided increments.

    At most about `rows_max` changes wait in memory.
    """

    def __init__(
        self,
        target: RelationalDatabase,
        catalogue: TargetCatalogue,
        rows_max: int,
        *,
        ahead: bool,
        bytes_max: int | None = None,
    ) -> None:
        settings = target.settings.apply
        self._target = target
        self._rows_max = rows_max
        self._acknowledged = (0, 0)
        self.ahead = ahead
        #: Approximate row counts of the target's tables, and when they were read.
        self.row_counts: dict[int, int] = {}
        self.counted_at_us = 0
        #: What to do about an unfinished switch, as last reported.
        self.switch = ""
        #: Rows identity of the broker's set at the applied offset; None = unknown.
        self.rows: RowsIdentity | None = None
        self.cuts = CutAssembler(catalogue.position.offset, bytes_max=bytes_max)
        self._subscriber = open_subscriber(
            target.broker, target.business, target.group, credit_bytes=settings.credit_bytes, ahead=ahead
        )

    def open(self, catalogue: TargetCatalogue) -> int:
        """Open the stream; return the offset at which the queue begins. Raises Diverged with the remedy."""
        position = catalogue.position
        try:
            opened = self._subscriber.open(
                position.offset, position.epoch, kept=catalogue.keep_from(), rows=position.rows
            )
        except Diverged as error:
            raise self._target.diverged_error(error) from error
        self.rows = reports.rows_identity(opened)
        return opened.log_start

    @property
    def can_move_nearer(self) -> bool:
        """Whether a nearer set of brokers is available again."""
        return self._subscriber.can_move_nearer

    def close(self) -> None:
        """Close the connection to the broker."""
        self._subscriber.close()

    # -- reports to the broker -------------------------------------------------------------------------------------

    def report(self, catalogue: TargetCatalogue, *, waits: Sequence[TableCondition] = ()) -> None:
        """Report the states of the tables, and the locks that they wait for, to the broker."""
        condition = catalogue.condition()
        figures = replace(condition.figures, rows=self.row_counts, counted_at_us=self.counted_at_us)
        tables = (*switch_conditions(self.switch), *waits, *condition.tables)
        self._subscriber.report(replace(condition, tables=tables, figures=figures))

    def report_switch(self, catalogue: TargetCatalogue, switch: str) -> None:
        """Report to the broker what to do about an unfinished switch of the application, if that has changed."""
        if switch != self.switch:
            self.switch = switch
            self.report(catalogue)

    def acknowledge(self, applied: int, kept: int, unaccounted: int | None = None) -> None:
        """Acknowledge the applied offset, and the offset from which the broker must keep the queue."""
        self._acknowledged = applied, kept
        self._subscriber.acknowledge(applied, kept=kept, unaccounted=unaccounted)

    def is_acknowledged(self, applied: int, kept: int) -> bool:
        """Return whether these offsets were acknowledged already."""
        return self._acknowledged == (applied, kept)

    # -- increments ------------------------------------------------------------------------------------------------

    def receive(self, *, busy: bool) -> bool:
        """Take the arrived increments; return whether a cut can be applied. With `busy`, wait only briefly."""
        cuts = self.cuts
        timeout_s = 0.0 if cuts.has_complete else 0.01 if busy else IDLE_S
        while not cuts.is_full(self._rows_max):
            increments = self._subscriber.increments(timeout_s)
            for increment in increments:
                cuts.on_increment(increment)
            if not increments or not cuts.has_complete:
                break
            timeout_s = 0.0
        return cuts.has_complete or cuts.is_open_full(self._rows_max)

    def receive_rest(self, heard: float) -> float:
        """Receive more increments of an open cut; return the time at which the last one arrived.

        Raises DecisionNeeded if the stream is silent for too long, because the open transaction holds locks.
        """
        increments = self._subscriber.increments(IDLE_S)
        for increment in increments:
            self.cuts.on_increment(increment)
        if increments:
            return time.monotonic()
        if self.cuts.is_ahead and time.monotonic() - heard > DECISION_WAIT_S:
            raise DecisionNeeded(f"no increment arrived for {DECISION_WAIT_S:g} s")
        return heard
