"""The tables of a target that do not follow: they catch up, or halt when the broker no longer has their increments.

That happens when the broker has forgotten the target's group (`consumer_ttl_s`, `venus forget`) while a table was held.
The table halts alone, and says how it comes back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from venus.adapters.targets.postgresql import catalogue as catalogues
from venus.adapters.targets.postgresql.apply.catchup import CatchUp, Learned
from venus.adapters.targets.postgresql.apply.transaction import ApplyTransaction
from venus.adapters.targets.postgresql.catalogue import Catalogue
from venus.adapters.targets.postgresql.database import CATCHUP, HALTED, RESYNC, PostgresTarget, TableState
from venus.adapters.targets.postgresql.rows.verdicts import Verdicts
from venus.adapters.targets.postgresql.session import Session, Superseded
from venus.errors import OffsetTrimmed

logger = logging.getLogger(__name__)


#: So many tables catch up at once, first those furthest behind: each has a stream and a group of cuts in memory.
CATCH_UPS_MAX = 8


class HeldTables:
    """The held tables of one following. `stopped` says whether the process is to end."""

    def __init__(self, target: PostgresTarget, stopped: Callable[[], bool]) -> None:
        self._target = target
        self._stopped = stopped
        self._catch_ups: dict[int, CatchUp] = {}
        self._learned: dict[int, Learned] = {}
        self._log_start = 0  # where the queue began when the stream was opened, or a table asked in vain

    @property
    def active(self) -> bool:
        """Whether a table catches up."""
        return bool(self._catch_ups)

    def forget(self) -> None:
        """Let catch-ups start over from what the target says."""
        for catch_up in self._catch_ups.values():
            catch_up.close()
        self._catch_ups.clear()

    def kept(self, catalogue: Catalogue) -> int:
        """Return from which offset on the broker must keep the queue for this target."""
        return catalogue.kept(self._log_start)

    def begin(self, session: Session, catalogue: Catalogue, log_start: int) -> bool:
        """Halt the tables that wait for what is below the queue's start; return whether to read the catalogue again."""
        self._log_start = max(self._log_start, log_start)
        found = [
            state
            for state in _gone(catalogue, self._log_start)
            if state.reason != self._reason(state) and not _is_resynced(catalogue, state)
        ]
        if not found:
            return False
        try:
            self._halt(session, catalogue, found)
        except Superseded:
            session.rollback()
        return True

    def step(self, session: Session, catalogue: Catalogue, *, defer_constraints: bool) -> bool:
        """Let every table catch up a little; return whether the catalogue must be read again."""
        wanted = {t.table_id: t for t in catalogue.held() if t.state == CATCHUP}
        for table_id in set(self._catch_ups) - set(wanted):
            self._catch_ups.pop(table_id).close()
        self._learned = {table_id: learned for table_id, learned in self._learned.items() if table_id in wanted}
        self._open(session, wanted.values())
        for table_id in list(self._catch_ups):
            try:
                changed = self._catch_ups[table_id].step(catalogue, defer_constraints=defer_constraints)
            except Superseded:
                session.rollback()
                changed = True
            except OffsetTrimmed:
                session.rollback()
                changed = self._asked_in_vain(session, table_id)
            if changed:
                self._catch_ups.pop(table_id).close()
                return True
        return False

    def _open(self, session: Session, wanted: Iterable[TableState]) -> None:
        """Let tables begin to catch up, as many as may at once."""
        for state in sorted(wanted, key=lambda state: state.held_from or 0):
            if len(self._catch_ups) >= CATCH_UPS_MAX:
                return
            assert state.held_from is not None
            if state.table_id not in self._catch_ups:
                learned = self._learned.setdefault(state.table_id, Learned())
                self._catch_ups[state.table_id] = CatchUp(
                    self._target, session, state.table_id, state.held_from, learned, self._stopped
                )

    def _asked_in_vain(self, session: Session, table_id: int) -> bool:
        catalogue = catalogues.read(self._target, session)  # catching up has moved held_from since
        held_from = catalogue.tables[table_id].held_from or 0
        self.begin(session, catalogue, held_from + 1)
        return True

    def _halt(self, session: Session, catalogue: Catalogue, states: list[TableState]) -> None:
        """Halt tables in one transaction; `held_from` stays, as what is held is counted from there."""
        transaction = ApplyTransaction(
            self._target, session, catalogue, Verdicts(), start=catalogue.position.offset, defer_constraints=False
        )  # fmt: skip
        transaction.begin()
        for state in states:
            reason = self._reason(state)
            self._target.set_state(session, state.table_id, HALTED, held_from=state.held_from, reason=reason)
            logger.error("target %s: table %s is halted: %s", self._target.name, state.source_name, reason)
        session.run("COMMIT")

    def _reason(self, state: TableState) -> str:
        return (
            f"its changes from offset {state.held_from} on are gone from the queue; "
            f"`venus resync {state.source_name} --target {self._target.name}` makes it equal to the full data"
        )


def _gone(catalogue: Catalogue, log_start: int) -> list[TableState]:
    return [t for t in catalogue.held() if t.held_from is not None and t.held_from < log_start]


def _is_resynced(catalogue: Catalogue, state: TableState) -> bool:
    """Return whether a table waits for its resync and asks for nothing until then."""
    return state.state != CATCHUP and RESYNC in catalogue.sweeps.get(state.table_id, {})
