"""Brings a table that did not follow back into the stream, in order, with no gap and no doubling (features 2.16).

Its changes from `held_from` on are read again by a reader of its own, cut by cut, while the other tables go on. Each
transaction moves `held_from`; when that has reached the applied offset, the table follows again.
"""

from __future__ import annotations

import logging
from functools import partial

from venus.adapters.targets.postgresql import catalogue as catalogues
from venus.adapters.targets.postgresql.apply.transaction import ApplyTransaction
from venus.adapters.targets.postgresql.catalogue import Catalogue
from venus.adapters.targets.postgresql.database import ACTIVE, Position, PostgresTarget
from venus.adapters.targets.postgresql.rows.verdicts import CommitRefused, RowsRefused, Verdicts
from venus.adapters.targets.postgresql.session import Session
from venus.adapters.under.cuts import Assembler, Cut, piece_of, pieces_of
from venus.rpc.subscriber import Subscriber

logger = logging.getLogger(__name__)

_POLL_S = 0.005


class CatchUp:
    """One table on its way back. Belongs to one session; whatever fails, it is rebuilt from what is durable."""

    def __init__(self, target: PostgresTarget, session: Session, table_id: int, held_from: int) -> None:
        self._target = target
        self._session = session
        self.table_id = table_id
        self._held_from = held_from
        self._assembler = Assembler(held_from, dense=False)
        self._subscriber = Subscriber(
            target.broker, target.business, f"{target.group}/table {table_id}",
            credit_bytes=max(1 << 20, target.settings.apply.credit_bytes // 4), transient=True,
        )  # fmt: skip
        self._opened = False

    def close(self) -> None:
        """End the reader."""
        self._subscriber.close()

    def step(self, catalogue: Catalogue, *, defer_constraints: bool) -> bool:
        """Apply the next cuts, or join the stream; return whether the catalogue must be read again."""
        applied = catalogue.position.offset
        if self._held_from > applied:
            return False  # made equal to a later cut; the stream has not come to it yet
        if self._held_from == applied:
            return self._joined(catalogue)
        self._read(catalogue.position)
        cuts = self._complete_cuts(applied)
        if cuts:
            return self._apply(catalogue, cuts, defer_constraints=defer_constraints)
        if self._subscriber.position >= applied and not self._assembler.rows:
            return self._joined(catalogue)
        return False

    def _read(self, position: Position) -> None:
        applied = position.offset
        if not self._opened:
            self._subscriber.open(self._held_from, 0, [self.table_id], rows=position.rows, rows_at=applied)
            self._opened = True
        if self._assembler.rows < self._target.settings.apply.cut_group_rows_max or not self._assembler.has_complete:
            for increment in self._subscriber.increments(_POLL_S):
                self._assembler.add(piece_of(increment))
        if self._subscriber.position >= applied:
            self._assembler.close_below(applied)  # the applied offset is the end of a cut

    def _complete_cuts(self, applied: int) -> list[Cut]:
        """Take cuts up to the applied offset; what lies behind it will come by the stream."""
        return self._assembler.group(self._target.settings.apply.cut_group_rows_max, end_max=applied)

    def _apply(self, catalogue: Catalogue, cuts: list[Cut], *, defer_constraints: bool) -> bool:
        verdicts = Verdicts()
        end = cuts[-1].end
        changed = False
        while True:
            transaction = ApplyTransaction(
                self._target, self._session, catalogue, verdicts, start=cuts[0].start,
                defer_constraints=defer_constraints, only=self.table_id,
            )  # fmt: skip
            try:
                transaction.begin()
                for piece in pieces_of(cuts):
                    transaction.add(piece)
                transaction.finish(partial(self._end_text, end, halted=bool(verdicts.halts)))
            except (RowsRefused, CommitRefused) as refused:
                self._session.rollback()
                changed = True
                catalogue = catalogues.read(self._target, self._session)  # it may have seen what was rolled back
                if len(cuts) > 1:  # which cut is it? held_from shall be exact
                    return self._one_by_one(catalogue, cuts, defer_constraints=defer_constraints)
                verdicts.add(refused, quarantine=self._target.config.on_error == "quarantine")
                continue
            self._held_from = end
            return changed or transaction.changed

    def _one_by_one(self, catalogue: Catalogue, cuts: list[Cut], *, defer_constraints: bool) -> bool:
        """Apply cuts alone, up to the first one that changes what is known of the table."""
        for cut in cuts:
            if self._apply(catalogue, [cut], defer_constraints=defer_constraints):
                break
        return True

    def _end_text(self, end: int, *, halted: bool) -> str:
        if halted:
            return "SELECT"
        return self._target.own_text(self._session, "set_held", table_id=self.table_id, held_from=end)

    def _joined(self, catalogue: Catalogue) -> bool:
        """Let the table follow the stream again, from exactly the applied offset on."""
        state = catalogue.tables[self.table_id]
        transaction = ApplyTransaction(
            self._target, self._session, catalogue, Verdicts(), start=catalogue.position.offset,
            defer_constraints=False, only=self.table_id,
        )  # fmt: skip
        transaction.begin()
        self._target.set_state(self._session, self.table_id, ACTIVE)
        self._target.own(self._session, "clear_halted", table_id=self.table_id)
        self._session.run("COMMIT")
        logger.info("table %s follows again from offset %s", state.source_name, catalogue.position.offset)
        return True
