"""The thread in which capture compares tables with the full data, one at a time (verify/differences.py).

Capture continues during a comparison and ships the rows that it finds. The registry stores the requests for
comparisons, so this module keeps no state across a restart: an unfinished request is offered again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq

from venus.adapters.dialects.contract import RegisteredTable
from venus.config import Settings
from venus.errors import VenusError
from venus.model import Sequence

logger = logging.getLogger(__name__)

#: Compares one table. Arguments: settings, table, the Sequence below which all was captured, whether to stop.
Compare = Callable[[Settings, RegisteredTable, Sequence, Callable[[], bool]], None]

#: Pause after a comparison that has failed, for example because the broker was away.
RETRY_S = 3.0
#: How long a stop waits for the comparison.
JOIN_S = 5.0


def compare_fill(
    settings: Settings, table: RegisteredTable, sent_before: Sequence, is_stopping: Callable[[], bool]
) -> None:
    """Compare a table with the full data. Imports the comparison only here: most capture processes never need it."""
    from venus.adapters.verify import differences

    differences.compare_fill(settings, table, sent_before, is_stopping)


class FillComparisons:
    """Comparisons of one capture process, which run in a thread of their own, one at a time."""

    def __init__(
        self,
        settings: Settings,
        stop: threading.Event,
        compare: Compare = compare_fill,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._stop = stop
        self._compare = compare
        self._monotonic = monotonic
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._retry_at = float("-inf")
        #: The last finished request of each table; the caller may not have read the registry since.
        self._over: dict[int, str] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a table is being compared."""
        return self._thread is not None and self._thread.is_alive()

    def offer(self, tables: Seq[RegisteredTable], next_sequence: Sequence) -> None:
        """Start to compare the first of these tables, unless a comparison runs. Capture is at `next_sequence`."""
        if not tables or self.is_busy or self._monotonic() < self._retry_at:
            return
        waiting = [table for table in tables if self._over.get(table.schema.table_id) != table.reason]
        if waiting:
            self._thread = threading.Thread(
                target=self._compare_table, args=(waiting[0], next_sequence), name="venus-comparison", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Stop the comparison; the next capture begins it again."""
        self._is_closed = True
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _compare_table(self, table: RegisteredTable, next_sequence: Sequence) -> None:
        """Compare a table in the thread. After an error, the table is offered again after RETRY_S."""
        name = table.schema.qualified_name
        logger.info("%s: %s", name, table.reason)
        try:
            self._compare(self._settings, table, next_sequence, lambda: self._is_closed or self._stop.is_set())
            self._over[table.schema.table_id] = table.reason
        except VenusError as error:
            logger.warning("%s will be compared again: %s", name, error)
        finally:
            if self._over.get(table.schema.table_id) != table.reason:
                self._retry_at = self._monotonic() + RETRY_S
