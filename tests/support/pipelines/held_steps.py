"""Steps of a switch at which a lock of another session holds the command (`venus cutover --fall-back`, `fallback`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.patching import SourceEdit
from tests.support.pipelines.pipeline import Pipeline
from tests.support.pipelines.switched_pair import QUIET


@dataclass(frozen=True)
class HeldStep:
    """A step at which a lock holds the command, and what a kill leaves there.

    `before`: the database and its state from which on the lock is taken; None = before the command.
    """

    command: tuple[str, ...]
    database: str
    lock: str
    before: tuple[str, str] | None
    records: tuple[str | None, str | None]
    writable: list[str]

    def start(self, pipeline: Pipeline, hold: Callable[[str], object], state_of: Callable[[str], str | None]) -> int:
        """Start the command and take the lock before it reaches the step; return where its log begins."""
        if self.before is None:
            hold(self.lock)
        start = pipeline.log.stat().st_size
        pipeline.start("switch", *self.command, *QUIET)
        if self.before is not None:
            database, state = self.before
            pipeline.until(lambda: state_of(database) == state, f"{database} to be {state}", every_s=0.001)
            hold(self.lock)
        return start

    @property
    def owner(self) -> str:
        """The database that accepts writes after the switch."""
        return "old" if self.command == ("fallback",) else "new"


def until_reported(pipeline: Pipeline, start: int, report: str = "") -> None:
    """Wait until the command says that it waits for a lock, in words that contain `report`."""
    line = re.compile(f"^(waits: |waiting for ).*{report}", re.MULTILINE)
    pipeline.until(lambda: line.search(pipeline.log.read_text()[start:]), "the command to report that it waits")


#: Sessions of a switch wait for locks of PostgreSQL for half a second, so that a test need not hold one for long.
SHORT_WAITS = (
    SourceEdit(
        where="venus.adapters.targets.postgresql.cutover.side:PostgresSide._limit_lock_waits",
        old="str(milliseconds)",
        new="'500'",
    ),
    SourceEdit(
        where="venus.adapters.targets.postgresql.cutover.cutover_session:PostgresCutover.begin_mark",
        old="str(LOCK_TIMEOUT_MS)",
        new="'500'",
    ),
)
