"""Tables of a target that do not follow the stream: they catch up, or halt if the broker has trimmed their increments.

A table that catches up has its own reader, which rereads the table's changes from `held_from`, cut by cut, while the
other tables continue. Each transaction moves `held_from`. When `held_from` reaches the applied offset, the table
follows the stream again, with no gap and no duplicate.

Once the broker has forgotten the target's consumer group (`consumer_ttl_s`, `venus forget`), it may trim increments
that a held table needs. In that case only the held table halts, and its reason names the command that repairs it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from venus.adapters.targets.relational import catalogue as catalogues
from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.database import RelationalDatabase
from venus.adapters.targets.relational.session import DdlNeeded, RelationalSession, Superseded
from venus.adapters.targets.relational.states import ACTIVE, CATCHUP, HALTED, RESYNC, TableState, TargetPosition
from venus.adapters.targets.relational.transaction import ApplyTransaction
from venus.adapters.targets.relational.verdicts import CommitRefused, RowsRefused, Verdicts
from venus.adapters.under.cut_assembler import CutAssembler, CutPiece, DeliveredCut, decode_piece, list_pieces
from venus.adapters.under.row_changes import MergeWhole
from venus.errors import OffsetTrimmed, Unavailable
from venus.rpc.subscriber import Subscriber

logger = logging.getLogger(__name__)

_POLL_S = 0.005
_WAIT_S = 1.0
#: A large cut arrives without a pause; after a silence of this length the reader is opened again.
_SILENCE_S = 60.0
#: How many tables catch up at once, those that lag furthest first: each has a stream and a group of cuts in memory.
CATCH_UPS_MAX = 8


@dataclass(slots=True)
class CatchUpFindings:
    """Facts about a table's next cut that a failed transaction has shown; the table's next catch-up uses them."""

    verdicts: Verdicts = field(default_factory=Verdicts)
    #: The cut must not be merged piece by piece.
    whole: bool = False


class CatchUp:
    """Catch-up of one table within one session. After a failure, it is rebuilt from the durable state.

    `stopped` returns whether the process is stopping.
    """

    def __init__(
        self,
        target: RelationalDatabase,
        session: RelationalSession,
        table_id: int,
        held_from: int,
        learned: CatchUpFindings,
        stopped: Callable[[], bool],
    ) -> None:
        self._target = target
        self._learned, self._stopped = learned, stopped
        self._session = session
        self.table_id = table_id
        self._held_from = held_from
        self._assembler = CutAssembler(held_from, dense=False)
        self._subscriber = Subscriber(
            target.broker,
            target.business,
            f"{target.group}/table {table_id}",
            credit_bytes=max(1 << 20, target.settings.apply.credit_bytes // 4),
            transient=True,
        )
        self._opened = False

    def close(self) -> None:
        """Close the reader."""
        self._subscriber.close()

    def step(self, catalogue: TargetCatalogue, *, defer_constraints: bool) -> bool:
        """Apply the table's next cuts, or let it join the stream; return whether the catalogue must be read again."""
        applied = catalogue.position.offset
        if self._held_from > applied:
            return False  # a resync brought a later cut, which the stream has not reached yet
        if self._held_from == applied:
            return self._join_stream(catalogue)
        self._read(catalogue.position)
        cuts = self._take_complete_cuts(applied)
        if cuts:
            return self._apply(catalogue, cuts, defer_constraints=defer_constraints)
        if self._assembler.is_open_full(self._rows_max) and self._assembler.start < applied:
            return self._stream_cut(catalogue, defer_constraints=defer_constraints)
        if self._subscriber.position >= applied and not self._assembler.rows:
            return self._join_stream(catalogue)
        return False

    def _read(self, position: TargetPosition) -> None:
        """Read increments of the table from the broker, up to the limit of a transaction."""
        applied = position.offset
        if not self._opened:
            self._subscriber.open(self._held_from, 0, [self.table_id], rows=position.rows, rows_at=applied)
            self._opened = True
        if not self._assembler.is_full(self._rows_max):
            for increment in self._subscriber.increments(_POLL_S):
                self._assembler.add(decode_piece(increment))
        if self._subscriber.position >= applied:
            self._assembler.close_below(applied)  # the applied offset is the end of a cut

    @property
    def _rows_max(self) -> int:
        return self._target.settings.apply.cut_group_rows_max

    def _take_complete_cuts(self, applied: int) -> list[DeliveredCut]:
        """Take cuts up to the applied offset; the stream delivers the later ones."""
        return self._assembler.take_group(self._rows_max, end_max=applied)

    def _transaction(
        self,
        catalogue: TargetCatalogue,
        verdicts: Verdicts,
        start: int,
        *,
        defer_constraints: bool = False,
        whole: frozenset[int] | None = None,
    ) -> ApplyTransaction:
        """Return a transaction that applies changes to this table only."""
        target, session, only = self._target, self._session, self.table_id
        return ApplyTransaction(
            target,
            session,
            catalogue,
            verdicts,
            start=start,
            defer_constraints=defer_constraints,
            only=only,
            whole=whole,
        )

    def _apply(self, catalogue: TargetCatalogue, cuts: list[DeliveredCut], *, defer_constraints: bool) -> bool:
        """Apply whole cuts to the table, and move `held_from`; return whether the catalogue must be read again."""
        verdicts = Verdicts()
        end = cuts[-1].end
        changed = False
        while True:
            transaction = self._transaction(catalogue, verdicts, cuts[0].start, defer_constraints=defer_constraints)
            try:
                transaction.begin()
                for piece in list_pieces(cuts):
                    transaction.add(piece)
                transaction.finish(partial(self._set_held_text, end, halted=bool(verdicts.halts)))
            except DdlNeeded:
                if len(cuts) == 1:
                    raise
                self._session.rollback()
                catalogue = catalogues.read_catalogue(self._target, self._session)
                return self._apply_one_by_one(catalogue, cuts, defer_constraints=defer_constraints)
            except (RowsRefused, CommitRefused) as refused:
                self._session.rollback()
                changed = True
                catalogue = catalogues.read_catalogue(
                    self._target, self._session
                )  # the catalogue may contain changes that were rolled back
                if len(cuts) > 1:  # search for the cut, because held_from must be exact
                    return self._apply_one_by_one(catalogue, cuts, defer_constraints=defer_constraints)
                verdicts.record_refusal(refused, quarantine=self._target.config.on_error == "quarantine")
                continue
            self._held_from = end
            return changed or transaction.has_changed_catalogue

    def _apply_one_by_one(
        self, catalogue: TargetCatalogue, cuts: list[DeliveredCut], *, defer_constraints: bool
    ) -> bool:
        """Apply the cuts one by one, up to the first that changes the table's state."""
        for cut in cuts:
            if self._apply(catalogue, [cut], defer_constraints=defer_constraints):
                break
        return True

    def _stream_cut(self, catalogue: TargetCatalogue, *, defer_constraints: bool) -> bool:
        """Apply a cut while it arrives, because it is too large for memory. The cut ends below the applied offset."""
        verdicts, whole = self._learned.verdicts, None if self._learned.whole else frozenset[int]()
        start = self._assembler.start
        transaction = self._transaction(catalogue, verdicts, start, defer_constraints=defer_constraints, whole=whole)
        try:
            transaction.begin()
            end = self._stream_into(transaction, catalogue.position.offset)
            if end is None:
                self._session.rollback()
                return True
            transaction.finish(partial(self._set_held_text, end, halted=bool(verdicts.halts)))
        except MergeWhole:
            self._session.rollback()
            self._learned.whole = True
            return True
        except (RowsRefused, CommitRefused) as refused:
            self._session.rollback()
            verdicts.record_refusal(refused, quarantine=self._target.config.on_error == "quarantine")
            return True
        self._learned.verdicts = Verdicts()
        return True  # the next catch-up continues from the durable state

    def _stream_into(self, transaction: ApplyTransaction, applied: int) -> int | None:
        """Add the first cut to a transaction; return its end, or None if the process is stopping."""
        last: CutPiece | None = None
        heard = time.monotonic()
        while not self._stopped():
            for piece in self._assembler.take_open_pieces():
                transaction.add(piece)
                last, heard = piece, time.monotonic()
            if last is not None and (last.batch.cut_end or self._subscriber.position >= applied):
                return last.end
            for increment in self._subscriber.increments(_WAIT_S):
                self._assembler.add(decode_piece(increment))
            if time.monotonic() - heard > _SILENCE_S:
                raise Unavailable(f"the broker does not send the rest of a cut for table {self.table_id}")
        return None

    def _set_held_text(self, end: int, *, halted: bool) -> str:
        """Return the statement that moves `held_from` to `end`; one without effect if the table has halted."""
        if halted:
            return "SELECT 1"
        return self._target.own_text(self._session, "set_held", table_id=self.table_id, held_from=end)

    def _join_stream(self, catalogue: TargetCatalogue) -> bool:
        """Let the table follow the stream again, exactly from the applied offset."""
        state = catalogue.tables[self.table_id]
        verdicts = Verdicts()
        while True:
            transaction = self._transaction(catalogue, verdicts, catalogue.position.offset)
            transaction.begin()
            if verdicts.halts:
                self._session.run("COMMIT")
                return True
            try:
                self._target.set_state(self._session, self.table_id, ACTIVE)
                transaction.evolve_to_newest(self.table_id)
            except RowsRefused as refused:
                self._session.rollback()
                verdicts.record_refusal(refused, quarantine=False)
                continue
            self._target.run_own(self._session, "clear_halted", table_id=self.table_id)
            self._session.run("COMMIT")
            logger.info("table %s follows again from offset %s", state.source_name, catalogue.position.offset)
            return True


class HeldTables:
    """The tables of one apply session that do not follow the stream. `stopped`: whether the process is stopping."""

    def __init__(self, target: RelationalDatabase, stopped: Callable[[], bool]) -> None:
        self._target = target
        self._stopped = stopped
        self._catch_ups: dict[int, CatchUp] = {}
        self._learned: dict[int, CatchUpFindings] = {}
        self._log_start = 0  # the known start of the queue

    @property
    def is_active(self) -> bool:
        """Whether any table is catching up."""
        return bool(self._catch_ups)

    def reset(self) -> None:
        """Close all catch-ups, so that they start again from the durable state."""
        for catch_up in self._catch_ups.values():
            catch_up.close()
        self._catch_ups.clear()

    def keep_from(self, catalogue: TargetCatalogue) -> int:
        """Return the offset from which the broker must keep the queue for this target."""
        return catalogue.keep_from(self._log_start)

    def halt_trimmed(self, session: RelationalSession, catalogue: TargetCatalogue, log_start: int) -> bool:
        """Halt the tables that need offsets below the queue's start; return whether to read the catalogue again."""
        self._log_start = max(self._log_start, log_start)
        found = [
            state
            for state in _trimmed_tables(catalogue, self._log_start)
            if state.reason != self._halt_reason(state) and not _is_resynced(catalogue, state)
        ]
        if not found:
            return False
        try:
            self._halt(session, catalogue, found)
        except Superseded:
            session.rollback()
        return True

    def step(self, session: RelationalSession, catalogue: TargetCatalogue, *, defer_constraints: bool) -> bool:
        """Advance every catch-up; return whether the catalogue must be read again."""
        wanted = {t.table_id: t for t in catalogue.held_tables() if t.state == CATCHUP}
        for table_id in set(self._catch_ups) - set(wanted):
            self._catch_ups.pop(table_id).close()
        self._learned = {table_id: learned for table_id, learned in self._learned.items() if table_id in wanted}
        self._start_catch_ups(session, wanted.values())
        for table_id in list(self._catch_ups):
            try:
                changed = self._catch_ups[table_id].step(catalogue, defer_constraints=defer_constraints)
            except Superseded:
                session.rollback()
                changed = True
            except OffsetTrimmed:
                session.rollback()
                changed = self._on_trimmed(session, table_id)
            if changed:
                self._catch_ups.pop(table_id).close()
                return True
        return False

    def _start_catch_ups(self, session: RelationalSession, wanted: Iterable[TableState]) -> None:
        """Start catch-ups up to the allowed number."""
        for state in sorted(wanted, key=lambda state: state.held_from or 0):
            if len(self._catch_ups) >= CATCH_UPS_MAX:
                return
            assert state.held_from is not None
            if state.table_id not in self._catch_ups:
                learned = self._learned.setdefault(state.table_id, CatchUpFindings())
                self._catch_ups[state.table_id] = CatchUp(
                    self._target, session, state.table_id, state.held_from, learned, self._stopped
                )

    def _on_trimmed(self, session: RelationalSession, table_id: int) -> bool:
        """Halt a table whose increments were trimmed during its catch-up; return True."""
        catalogue = catalogues.read_catalogue(self._target, session)  # the catch-up has moved held_from since then
        held_from = catalogue.tables[table_id].held_from or 0
        self.halt_trimmed(session, catalogue, held_from + 1)
        return True

    def _halt(self, session: RelationalSession, catalogue: TargetCatalogue, states: list[TableState]) -> None:
        """Halt tables in one transaction. `held_from` stays, because held changes are counted from that offset."""
        transaction = ApplyTransaction(
            self._target, session, catalogue, Verdicts(), start=catalogue.position.offset, defer_constraints=False
        )
        transaction.begin()
        for state in states:
            reason = self._halt_reason(state)
            self._target.set_state(session, state.table_id, HALTED, held_from=state.held_from, reason=reason)
            logger.error("target %s: table %s is halted: %s", self._target.name, state.source_name, reason)
        session.run("COMMIT")

    def _halt_reason(self, state: TableState) -> str:
        return (
            f"the queue no longer has its changes from offset {state.held_from} on; "
            f"`venus resync {state.source_name} --target {self._target.name}` makes it equal to the full data"
        )


def _trimmed_tables(catalogue: TargetCatalogue, log_start: int) -> list[TableState]:
    """Return the held tables that need offsets below the queue's start."""
    return [t for t in catalogue.held_tables() if t.held_from is not None and t.held_from < log_start]


def _is_resynced(catalogue: TargetCatalogue, state: TableState) -> bool:
    """Return whether a table waits for its resync and reads nothing until then."""
    return state.state != CATCHUP and RESYNC in catalogue.sweeps.get(state.table_id, {})
