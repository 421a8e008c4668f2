"""The apply loop of a relational target: one session with it and one stream from the broker (VENUS 3.4).

The session applies a complete cut immediately. If more cuts wait, small ones are grouped into one transaction. A cut
that is larger than memory allows is streamed into one transaction. Between transactions, the session lets tables catch
up, advances resyncs and reads commands. `run_apply` opens sessions until it stops, and retries after transient errors.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from venus.adapters.targets.relational import catalogue as catalogues
from venus.adapters.targets.relational.apply_loop import IDLE_S, ApplyLoop, ApplyReport, ApplyStream, End, Report
from venus.adapters.targets.relational.database import Closable, RelationalDatabase, open_database
from venus.adapters.targets.relational.held_tables import HeldTables
from venus.adapters.targets.relational.lock_waits import LockWaitMonitor
from venus.adapters.targets.relational.resync import Resyncs
from venus.adapters.targets.relational.session import DdlNeeded, Superseded
from venus.adapters.targets.relational.start_over import apply_configuration, start_over
from venus.adapters.targets.relational.transaction import ApplyTransaction
from venus.adapters.targets.relational.verdicts import CommitRefused, RowsRefused
from venus.adapters.targets.relational.writer import advance_text
from venus.adapters.under.cut_assembler import (
    CutPiece,
    DecisionNeeded,
    DeliveredCut,
    Withdrawn,
    list_pieces,
    log_applied,
)
from venus.adapters.under.row_changes import MergeWhole
from venus.config import Settings
from venus.errors import Diverged, OffsetTrimmed, VenusError
from venus.network.row_filters import RowsIdentity
from venus.process import tracing
from venus.rpc.conditions import ROWS_EVERY_S, TableCondition
from venus.rpc.stopwatch import Stopwatch

logger = logging.getLogger(__name__)

#: How often the session looks for operators' commands while the stream is quiet.
LOOK_S = 1.0
#: How often the counters are compared with the applied offset while it moves.
ACCOUNT_S = 1.0
#: How often they are compared while it does not move.
ACCOUNT_QUIET_S = 10.0


class ApplySession:
    """One session with the target and one stream from the broker."""

    def __init__(self, target: RelationalDatabase, loop: ApplyLoop) -> None:
        self._loop = loop
        self._target = target
        self._session = self._target.connect()
        self._opened: ApplyStream | None = None
        self._held = HeldTables(self._target, lambda: loop.is_stopped)
        self._resyncs = Resyncs(self._target)
        self._defer = False
        self._looked_at = 0.0
        self._accounted = 0.0
        self._accounted_offset = -1
        self._unaccounted: int | None = None
        self._count_at = float("-inf")
        self._watch: Closable | None = None

    def __enter__(self) -> ApplySession:
        return self

    def __exit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.close()
        self._held.reset()
        self._resyncs.close()
        if self._opened is not None:
            self._opened.close()
        self._session.close()

    def run(self) -> bool:
        """Follow until stop (returns False) or until a cut must be read again from the broker (returns True)."""
        try:
            return self._follow()
        except DdlNeeded as needed:
            self._session.rollback()
            logger.info("target %s: %s", self._target.name, needed)
            needed.run()
            return True

    def _follow(self) -> bool:
        """Do the work of `run`, which handles the DDL that a target needs outside a transaction."""
        self._lock_target()
        self._reload()
        while apply_configuration(self._target, self._session, self._catalogue):
            self._reload()
        self._subscribe()
        while not self._loop.is_stopped and not self._has_ended():
            if self._wait_while_paused() or self._wait_while_isolated():
                continue
            try:
                busy = self._held.is_active or self._resyncs.is_active or self._loop.is_first_load
                if self._stream.receive(busy=busy) and not self._apply():
                    return True
            except (Withdrawn, OffsetTrimmed):  # a mirror that was filled again no longer has the next increments
                self._session.rollback()
                return True
            except MergeWhole as failed:
                self._session.rollback()
                self._loop.merge_whole(failed.table_id)
                return True
            except DecisionNeeded as reason:
                self._session.rollback()
                self._loop.back_off(str(reason))
                return True
            self._do_housekeeping()
            goes_ahead = self._loop.goes_ahead and not self._stream.ahead
            if (goes_ahead or self._stream.can_move_nearer) and not self._stream.cuts.rows:
                return True
        return False

    def _has_ended(self) -> bool:
        """Return whether a first load has reached its end, including tables that catch up or are resynced."""
        return self._loop.is_at_end and not self._catalogue.has_late_tables

    # -- opening ---------------------------------------------------------------------------------------------------

    def _lock_target(self) -> None:
        """Lock the target for this session, and log how foreign keys are treated."""
        self._defer = self._target.lock(self._session, self._loop.stop)
        self._loop.log_constraints(self._target.constraints_text(is_deferred=self._defer))

    def _reload(self) -> None:
        """Read VENUS's own tables at the target again."""
        self._catalogue = catalogues.read_catalogue(self._target, self._session)
        self._accounted_offset = -1  # a changed state may have changed the counters
        if self._defer:
            self._target.refuse_acting_foreign_keys(self._session, list(self._catalogue.tables.values()))
        if self._opened is not None:
            self._opened.report(self._catalogue)

    def _subscribe(self) -> None:
        """Open the stream, report the tables to the broker, and watch for lock waits."""
        log_start = self._open_stream()
        assert self._opened is not None
        self._save_rows_identity(self._opened.rows)
        if self._held.halt_trimmed(self._session, self._catalogue, log_start):
            self._reload()
        self._acknowledge()
        self._opened.report(self._catalogue)
        self._loop.record_start(self._catalogue.position.offset)
        watched = self._target, self._session, lambda: self._catalogue.tables, self._report_waits
        self._watch = self._target.watch_lock_waits(*watched[1:]) or LockWaitMonitor(*watched)

    def _open_stream(self) -> int:
        """Open the stream and return where the queue begins; start over from the full data if the offset is trimmed."""
        try:
            return self._new_stream().open(self._catalogue)
        except Diverged as error:
            if not start_over(self._target, self._session, self._catalogue, error):
                raise
        self._stream.close()
        self._opened = None
        self._reload()
        return self._new_stream().open(self._catalogue)

    def _new_stream(self) -> ApplyStream:
        """Replace the stream by a new one from the applied offset, and return it."""
        loop = self._loop
        self._opened = ApplyStream(
            self._target, self._catalogue, self._rows_max, ahead=loop.goes_ahead, bytes_max=loop.group_bytes_max
        )
        return self._opened

    def _report_waits(self, found: list[TableCondition]) -> None:
        """Report the locks that this session waits for; the watching thread calls it, as the session is blocked."""
        self._stream.report(self._catalogue, waits=found)
        if found:
            error = "; ".join(f"{one.name} waits {one.reason}" for one in found)
            self._loop.report(self._catalogue.held_tables(), error=error, now=True)

    def _save_rows_identity(self, rows: RowsIdentity | None) -> None:
        """Store the rows identity of the broker's set beside the applied offset at the target."""
        if rows == self._catalogue.position.rows:
            return
        target, session = self._target, self._session
        session.run(
            f"BEGIN; {target.own_text(session, 'hold_position')}; {target.set_rows_text(session, rows)}; COMMIT"
        )
        self._catalogue.set_rows_identity(rows)

    @property
    def _stream(self) -> ApplyStream:
        assert self._opened is not None
        return self._opened

    @property
    def _rows_max(self) -> int:
        return self._loop.group_rows_max(self._target.settings.apply.cut_group_rows_max)

    def _acknowledge(self, unaccounted: int | None = None) -> None:
        self._stream.acknowledge(*self._positions(), unaccounted)

    def _positions(self) -> tuple[int, int]:
        """Return the applied offset, and the offset from which the broker must keep the queue."""
        return self._catalogue.position.offset, self._held.keep_from(self._catalogue)

    # -- the loop --------------------------------------------------------------------------------------------------

    def _wait_while_paused(self) -> bool:
        if not self._catalogue.position.paused:
            return False
        self._loop.report(self._catalogue.held_tables())
        self._loop.wait(IDLE_S)
        self._reload_if_superseded()
        return True

    def _wait_while_isolated(self) -> bool:
        """Wait while a slow target is isolated; probe it with a small query when the isolation ends."""
        if self._loop.is_isolated:
            self._loop.wait(min(IDLE_S, self._loop.left_s))
            return True
        if self._loop.is_probe():
            self._looked_at = 0.0
            self._reload_if_superseded()
        return False

    def _apply(self) -> bool:
        """Apply the waiting cuts; return False if the stream must be opened again."""
        group: list[DeliveredCut] = []
        try:
            if self._stream.cuts.has_complete:
                cuts, end = self._stream.cuts, self._loop.end
                # a cut around the end of a first load is applied as a whole
                group = cuts.take_group(self._rows_max, end_max=end) or cuts.take_group(self._rows_max)
                self._apply_group(group)
                return True
            return self._stream_cut()
        except Superseded:
            self._session.rollback()
            logger.info("target %s: an operator has changed a state; reading the states again", self._target.name)
            return self._read_states_again(group)

    def _read_states_again(self, group: list[DeliveredCut]) -> bool:
        """Reload states that a command has changed; put back the unapplied cuts, or return False if they are lost."""
        self._reload()
        self._held.reset()
        offset = self._catalogue.position.offset
        left = [cut for cut in group if cut.end > offset]
        if not left or left[0].start != offset:
            return False
        self._stream.cuts.put_back(left)
        return True

    def _apply_group(self, cuts: list[DeliveredCut]) -> None:
        """Apply whole cuts in one transaction; after a refusal, apply each cut separately."""
        pieces = list_pieces(cuts)
        at_once = not self._loop.verdicts and not self._loop.is_first_load
        took, begun_us = Stopwatch.coarse(), tracing.step_time_us()
        if at_once and self._target.apply_at_once(self._session, self._catalogue, cuts, defer_constraints=self._defer):
            log_applied(self._target.business, self._target.name, cuts, begun_us)
            self._record_applied(cuts[-1], sum(c.rows for c in cuts), reload=False)
            self._loop.record_latency(took.awake_s())
            return
        while True:
            try:
                transaction = self._transaction(cuts[0].start)
                transaction.begin()
                for piece in pieces:
                    transaction.add(piece)
                self._finish(transaction, cuts[-1], sum(c.rows for c in cuts))
            except (RowsRefused, CommitRefused, DdlNeeded) as reason:
                self._session.rollback()
                if len(cuts) > 1:  # search for the cut: held_from must be exact, and DDL must follow the earlier cuts
                    self._reload()
                    for cut in cuts:
                        self._apply_group([cut])
                    return
                if isinstance(reason, DdlNeeded):
                    raise
                self._reload()
                self._record_refusal(reason)
            else:
                log_applied(self._target.business, self._target.name, cuts, begun_us)
                return

    def _stream_cut(self) -> bool:
        """Apply a cut while it arrives, because it is larger than memory allows or not decided yet."""
        transaction = self._transaction(self._catalogue.position.offset, frozenset(self._loop.whole))
        last: CutPiece | None = None
        rows = 0
        heard = time.monotonic()
        try:
            transaction.begin()
            while not self._loop.is_stopped:
                if last is None or not last.batch.cut_end:
                    for piece in self._stream.cuts.take_open_pieces():
                        transaction.add(piece)
                        piece.drop_changes()
                        rows += piece.batch.count
                        last = piece
                        if piece.batch.cut_end:
                            transaction.flush()
                if last is not None and last.batch.cut_end and last.decided:
                    whole = DeliveredCut(number=last.batch.cut, pieces=[last], rows=rows)
                    self._finish(transaction, whole, rows)
                    log_applied(self._target.business, self._target.name, [whole])
                    return True
                heard = self._stream.receive_rest(heard)
        except (RowsRefused, CommitRefused) as refused:
            if self._stream.cuts.is_ahead:
                raise DecisionNeeded(f"the target refuses a row of it: {refused}") from refused
            self._session.rollback()
            self._record_refusal(refused)
            return False
        self._session.rollback()
        return True

    def _transaction(self, start: int, whole: frozenset[int] | None = None) -> ApplyTransaction:
        """Return a transaction that starts at this offset; `whole`: tables to merge as a whole, None = all."""
        return ApplyTransaction(
            self._target,
            self._session,
            self._catalogue,
            self._loop.verdicts,
            start=start,
            defer_constraints=self._defer,
            whole=whole,
            changed_keys=self._loop.changed_keys,
        )

    def _finish(self, transaction: ApplyTransaction, cut: DeliveredCut, rows: int) -> None:
        """Commit a transaction together with the applied offset after `cut`."""
        last = cut.pieces[-1]
        transaction.finish(
            lambda: advance_text(self._target, self._session, self._catalogue, last, transaction.walk, transaction.rows)
        )
        self._record_applied(cut, rows, reload=transaction.has_changed_catalogue)

    def _record_refusal(self, refused: RowsRefused | CommitRefused) -> None:
        self._loop.verdicts.record_refusal(refused, quarantine=self._target.config.on_error == "quarantine")

    def _record_applied(self, cut: DeliveredCut, rows: int, *, reload: bool) -> None:
        """Record a committed cut and acknowledge it; `reload`: it has changed VENUS's own tables."""
        self._loop.record_applied(cut.end, rows)
        self._catalogue.record_position(cut.end, cut.pieces[-1].epoch)
        if reload:
            self._reload()
            self._loop.report(self._catalogue.held_tables(), now=True)
        self._acknowledge()

    # -- housekeeping ----------------------------------------------------------------------------------------------

    def _do_housekeeping(self) -> None:
        """Advance catch-ups and resyncs, read operators' commands, clean up and report."""
        if not self._stream.cuts.has_complete:
            self._reload_if_superseded()
        if self._held.step(self._session, self._catalogue, defer_constraints=self._defer):
            self._reload()
        self._advance_resyncs()
        self._check_account()
        self._count_rows()
        self._stream.report_switch(self._catalogue, self._loop.describe_switch())
        self._loop.clearing.step(self._target, self._session)
        if not self._stream.is_acknowledged(*self._positions()):
            self._acknowledge()  # if a table follows again, the broker need not keep its changes, even on a quiet queue
        self._loop.report(self._catalogue.held_tables())

    def _check_account(self) -> None:
        """Compare the counters with the applied offset and report the number of missing changes to the broker."""
        offset = self._catalogue.position.offset
        every_s = ACCOUNT_S if offset != self._accounted_offset else ACCOUNT_QUIET_S
        if time.monotonic() - self._accounted < every_s:
            return
        self._accounted, self._accounted_offset = time.monotonic(), offset
        missing = self._target.count_unaccounted(self._session)
        if missing is None or missing == self._unaccounted:
            return
        if missing:
            logger.error(
                "target %s: %s changes below its applied offset are unaccounted for", self._target.name, missing
            )
        self._unaccounted = missing
        self._acknowledge(missing)

    def _count_rows(self) -> None:
        """Read the approximate row counts of the tables and report them to the broker."""
        if time.monotonic() < self._count_at:
            return
        self._count_at = time.monotonic() + ROWS_EVERY_S
        self._stream.row_counts = self._target.read_row_counts(self._session)
        self._stream.counted_at_us = time.time_ns() // 1000
        self._stream.report(self._catalogue)

    def _advance_resyncs(self) -> None:
        try:
            changed = self._resyncs.step(self._session, self._catalogue)
        except Superseded:
            self._session.rollback()
            changed = True
        if changed:
            self._reload()
            self._held.reset()

    def _reload_if_superseded(self) -> None:
        """Reload after an operator's command. A busy session need not: each transaction checks `control`."""
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at, took = time.monotonic(), Stopwatch.coarse()
        position = self._target.read_position(self._session)
        self._loop.record_latency(took.awake_s())
        if position is None or position.control != self._catalogue.position.control:
            self._reload()
            self._held.reset()


__all__ = ["ApplyReport", "Report", "run_apply"]


def run_apply(
    settings: Settings,
    name: str,
    stop: threading.Event,
    report: Report | None = None,
    *,
    end: End | None = None,
    describe_switch: Callable[[], str] = lambda: "",
) -> None:
    """Follow the broker until `stop` and retry after transient errors. Raises all other errors.

    `end` completes a first load: `end` returns the offset at which the load ends, or None while it is unknown.
    """
    target = open_database(settings, name, first_load=end is not None)
    loop = ApplyLoop(name, stop, report, end)
    loop.describe_switch = describe_switch
    try:
        loop.retrying(stop)(_follow, target, loop)
    except VenusError as error:
        if not (error.retryable and loop.is_stopped):
            raise


def _follow(target: RelationalDatabase, loop: ApplyLoop) -> None:
    """Run one session after the other until stop."""
    again = True
    while again and not loop.is_stopped:
        with ApplySession(target, loop) as opened:
            again = opened.run()
