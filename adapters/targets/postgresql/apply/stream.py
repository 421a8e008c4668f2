"""The stream that an apply session receives from the broker: increments are assembled into whole cuts (VENUS 3.4)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from venus.adapters.targets.postgresql.catalogue import TargetCatalogue
from venus.adapters.targets.postgresql.database import PostgresDatabase
from venus.adapters.under.cut_assembler import CutAssembler, DecisionNeeded
from venus.errors import Diverged
from venus.network.rows_identity import RowsIdentity
from venus.rpc import reports
from venus.rpc.conditions import TableCondition
from venus.rpc.subscriber import Subscriber

#: How long a session waits on a quiet stream before it looks for operators' commands.
IDLE_S = 1.0
#: How long a transaction with undecided changes stays open after the last increment.
DECISION_WAIT_S = 5.0


class ApplyStream:
    """One stream from the target's applied offset on. `ahead` includes increments that are not decided yet."""

    def __init__(self, target: PostgresDatabase, catalogue: TargetCatalogue, *, ahead: bool) -> None:
        settings = target.settings.apply
        self._target = target
        self._rows_max = settings.cut_group_rows_max
        self._acknowledged = (0, 0)
        self.ahead = ahead
        #: Approximate row counts of the target's tables, and when they were read.
        self.row_counts: dict[int, int] = {}
        self.counted_at_us = 0
        #: Rows identity of the broker's set at the applied offset; None = unknown.
        self.rows: RowsIdentity | None = None
        self.cuts = CutAssembler(catalogue.position.offset)
        self._subscriber = Subscriber(
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
        self.rows = reports.rows_in(opened)
        return opened.log_start

    @property
    def nearer_is_back(self) -> bool:
        """Whether a nearer set of brokers serves again."""
        return self._subscriber.nearer_is_back

    def close(self) -> None:
        """Close the connection to the broker."""
        self._subscriber.close()

    # -- reports to the broker -------------------------------------------------------------------------------------

    def report(self, catalogue: TargetCatalogue, *, waits: Sequence[TableCondition] = ()) -> None:
        """Report the states of the tables and what they wait for."""
        condition = catalogue.condition()
        figures = replace(condition.figures, rows=self.row_counts, counted_at_us=self.counted_at_us)
        self._subscriber.report(replace(condition, tables=(*waits, *condition.tables), figures=figures))

    def acknowledge(self, applied: int, kept: int, unaccounted: int | None = None) -> None:
        """Acknowledge the applied offset, and the offset from which the broker must keep the queue."""
        self._acknowledged = applied, kept
        self._subscriber.acknowledge(applied, kept=kept, unaccounted=unaccounted)

    def is_acknowledged(self, applied: int, kept: int) -> bool:
        """Return whether these offsets were acknowledged already."""
        return self._acknowledged == (applied, kept)

    # -- increments ------------------------------------------------------------------------------------------------

    def receive(self, *, busy: bool) -> bool:
        """Take the arrived increments; return whether a cut can be applied. `busy` means not to wait for long."""
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
        """Take the next increments; return when the last one arrived.

        Raises DecisionNeeded if the stream is silent for too long, because the open transaction holds locks.
        """
        increments = self._subscriber.increments(IDLE_S)
        for increment in increments:
            self.cuts.on_increment(increment)
        if increments:
            return time.monotonic()
        if self.cuts.ahead and time.monotonic() - heard > DECISION_WAIT_S:
            raise DecisionNeeded(f"no increment arrived for {DECISION_WAIT_S:g} s")
        return heard
