"""Removes changes from the quarantine that were decided long ago; what waits is never removed (features 2.16).

Piece by piece, in the order in which they came: a statement looks at so many and no more, however many there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from venus.adapters.targets.postgresql.database import PostgresTarget
from venus.adapters.targets.postgresql.session import Session

logger = logging.getLogger(__name__)

#: So many are looked at by one statement, and so long after the one before.
PIECE_ROWS = 1_000
PIECE_EVERY_S = 1.0
#: When all have been looked at, they are looked at once more after this long.
ROUND_EVERY_S = 3600.0


class Clearing:
    """How far the clearing is: it outlives a session with the target."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._after = 0
        self._gone = 0
        self._due: float | None = None

    def step(self, target: PostgresTarget, session: Session) -> None:
        """Clear the next piece, if it is time for it."""
        now = self._monotonic()
        if self._due is not None and now < self._due:
            return
        piece = {"after": self._after, "rows_max": PIECE_ROWS, "keep_s": target.config.quarantine_keep_s}
        ((reached, gone),) = target.own_rows(session, "clear_quarantine", **piece)
        self._gone += gone
        if reached is not None:
            self._after, self._due = reached, now + PIECE_EVERY_S
            return
        if self._gone:
            logger.info("target %s: %s changes, decided long ago, left the quarantine", target.name, self._gone)
        self._after, self._gone, self._due = 0, 0, now + ROUND_EVERY_S
