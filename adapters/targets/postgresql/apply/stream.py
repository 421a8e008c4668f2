"""The stream from the broker that an apply session follows: increments come in, whole cuts go out (VENUS 3.4)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from venus.adapters.targets.postgresql.catalogue import Catalogue
from venus.adapters.targets.postgresql.database import PostgresTarget
from venus.adapters.under.cuts import Assembler, Hesitate
from venus.conditions import TableCondition
from venus.errors import Diverged
from venus.network.rows_identity import RowsIdentity
from venus.rpc import reports
from venus.rpc.subscriber import Subscriber

#: How long a quiet stream is listened to before its session looks at what operators have asked for.
IDLE_S = 1.0
#: A transaction with changes that are not decided is kept open so long after the last word about them.
DECISION_WAIT_S = 5.0


class Stream:
    """One stream, from the target's applied offset on. `ahead` = also what is not decided yet."""

    def __init__(self, target: PostgresTarget, catalogue: Catalogue, *, ahead: bool) -> None:
        settings = target.settings.apply
        self._target = target
        self._rows_max = settings.cut_group_rows_max
        self._told = (0, 0)
        self.ahead = ahead
        #: About how many rows the target's tables have, and when that was read.
        self.row_counts: dict[int, int] = {}
        self.counted_at_us = 0
        #: Which rows the broker's set has at the applied offset; None = it does not say.
        self.rows: RowsIdentity | None = None
        self.cuts = Assembler(catalogue.position.offset)
        self._subscriber = Subscriber(
            target.broker, target.business, target.group, credit_bytes=settings.credit_bytes, ahead=ahead
        )

    def open(self, catalogue: Catalogue) -> int:
        """Open it; return where the queue begins. Raises Diverged with the way out."""
        position = catalogue.position
        try:
            opened = self._subscriber.open(position.offset, position.epoch, kept=catalogue.kept(), rows=position.rows)
        except Diverged as error:
            raise self._target.diverged(error) from error
        self.rows = reports.said_in(opened)
        return opened.log_start

    @property
    def nearer_is_back(self) -> bool:
        """Whether a nearer set of brokers serves again."""
        return self._subscriber.nearer_is_back

    def close(self) -> None:
        """Leave the broker."""
        self._subscriber.close()

    # -- what the broker is told -----------------------------------------------------------------------------------

    def report(self, catalogue: Catalogue, *, waits: Sequence[TableCondition] = ()) -> None:
        """Tell how the tables stand, and for whom they wait."""
        condition = catalogue.condition()
        figures = replace(condition.figures, rows=self.row_counts, counted_at_us=self.counted_at_us)
        self._subscriber.report(replace(condition, tables=(*waits, *condition.tables), figures=figures))

    def acknowledge(self, applied: int, kept: int, unaccounted: int | None = None) -> None:
        """Tell what is applied, and from where on the broker must keep the queue."""
        self._told = applied, kept
        self._subscriber.acknowledge(applied, kept=kept, unaccounted=unaccounted)

    def told(self, applied: int, kept: int) -> bool:
        """Whether the broker has heard that already."""
        return self._told == (applied, kept)

    # -- what comes ------------------------------------------------------------------------------------------------

    def receive(self, *, busy: bool) -> bool:
        """Take what has arrived; return whether something can be applied. `busy` = there is something else to do."""
        cuts = self.cuts
        timeout_s = 0.0 if cuts.has_complete else 0.01 if busy else IDLE_S
        while not cuts.is_full(self._rows_max):
            increments = self._subscriber.increments(timeout_s)
            for increment in increments:
                cuts.arrive(increment)
            if not increments or not cuts.has_complete:
                break
            timeout_s = 0.0
        return cuts.has_complete or cuts.is_open_full(self._rows_max)

    def hear(self, heard: float) -> float:
        """Take what arrives next; return when something arrived last. A silent producer must not hold our locks."""
        increments = self._subscriber.increments(IDLE_S)
        for increment in increments:
            self.cuts.arrive(increment)
        if increments:
            return time.monotonic()
        if self.cuts.ahead and time.monotonic() - heard > DECISION_WAIT_S:
            raise Hesitate(f"nothing was heard of it for {DECISION_WAIT_S:g} s")
        return heard
