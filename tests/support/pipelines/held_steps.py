"""Steps of a switch (`venus cutover --fall-back`, `fallback`) at which another session's lock blocks the command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.simulation.patching import SourceEdit
from tests.support.pipelines.pipeline import Pipeline
from tests.support.pipelines.switched_pair import BACK, FORWARD, QUIET, SwitchedPair, run_statements

#: Names of the two databases in commands.
_NAMES = {"old": "@source", "new": "main"}


@dataclass(frozen=True)
class HeldStep:
    """A step at which a lock blocks the command, and the state that a kill leaves there.

    `before`: the command waits in this state of this database until the test has the lock; None = the test locks first.
    """

    command: tuple[str, ...]
    database: str
    lock: str
    before: tuple[str, str] | None
    records: tuple[str | None, str | None]
    writable: list[str]

    def start(self, pipeline: Pipeline, hold: Callable[[str], object], state_of: Callable[[str], str | None]) -> int:
        """Start the command, and take the lock before it reaches the step; return the position where its log begins."""
        if self.before is None:
            hold(self.lock)
        start = pipeline.log.stat().st_size
        if self.before is None:
            pipeline.start("switch", *self.command, *QUIET)
            return start
        database, state = self.before
        gate = pipeline.folder / "locked"
        gate.unlink(missing_ok=True)
        words = (_NAMES[database], state, str(gate), *self.command, *QUIET)
        pipeline.start("switch", *words, module="tests.support.pipelines.gated_command")
        pipeline.until(lambda: state_of(database) == state, f"{database} to be {state}")
        hold(self.lock)
        gate.touch()
        return start

    @property
    def owner(self) -> str:
        """Return the database that accepts writes after the switch."""
        return "old" if self.command == BACK else "new"

    @property
    def has_begun(self) -> bool:
        """Return whether a kill at this step leaves an unfinished switch."""
        return self.records not in ((None, "FOLLOWING"), ("FOLLOWING", "OPEN"))


#: A transaction that may write would delay the command before its first step, so this lock has another mode.
NEW_READ = "BEGIN; LOCK TABLE orders IN SHARE UPDATE EXCLUSIVE MODE"
NEW_WRITE = "BEGIN; LOCK TABLE orders IN ROW EXCLUSIVE MODE"


def build_steps(spell: Callable[[str], str] = str) -> dict[str, HeldStep]:
    """Return all steps between an old database, whose table names `spell` writes, and PostgreSQL."""
    read = f"START TRANSACTION; SELECT * FROM {spell('orders')}"
    record = f"START TRANSACTION; SELECT * FROM {spell('venus_side')} FOR UPDATE"
    new_record = "BEGIN; SELECT FROM venus.side FOR UPDATE"
    applied = "BEGIN; LOCK TABLE venus.applied IN EXCLUSIVE MODE"
    stopped = ("new", "STOPPED")
    return {
        "close": HeldStep(FORWARD, "old", read, None, (None, "FOLLOWING"), ["old"]),
        # a lock on the checkpoint can stop capture between half message and commit, and the command waits for capture
        "stop": HeldStep(FORWARD, "old", record, ("old", "CLOSED"), ("CLOSED", "FOLLOWING"), []),
        "open": HeldStep(FORWARD, "new", NEW_WRITE, ("new", "FOLLOWING"), ("STOPPED", "FOLLOWING"), []),
        "follow": HeldStep(FORWARD, "old", record, ("old", "STOPPED"), ("STOPPED", "OPEN"), ["new"]),
        "back-close": HeldStep(BACK, "new", NEW_READ, None, ("FOLLOWING", "OPEN"), ["new"]),
        "back-stop": HeldStep(BACK, "new", new_record, ("new", "CLOSED"), ("FOLLOWING", "CLOSED"), []),
        "back-open": HeldStep(BACK, "old", record, stopped, ("FOLLOWING", "STOPPED"), []),
        "back-follow": HeldStep(BACK, "new", applied, stopped, ("OPEN", "STOPPED"), ["old"]),
    }


def choose_steps(steps: Iterable[str], *full: str) -> list[Any]:
    """Return steps as parameters of a test; all but those of the level `full` are marked slow.

    The steps are the same for all kinds of databases, and each costs about a minute.
    """
    return [step if step in full else pytest.param(step, marks=pytest.mark.slow) for step in steps]


_CAPTURING = re.compile("capture: started.*capture: capturing", re.DOTALL)


def start_pair(pair: SwitchedPair, held: HeldStep, tables: str) -> None:
    """Prepare a pair up to the start of the command, and wait until the owner is captured."""
    pair.start(tables)
    begin = 0
    if held.command == BACK:
        begin = pair.pipeline.log.stat().st_size
        pair.switch(*FORWARD)
    pair.pipeline.until(lambda: _CAPTURING.search(pair.pipeline.log.read_text()[begin:]), "capture to begin")


@contextmanager
def hold_step(pair: SwitchedPair, held: HeldStep) -> Iterator[int]:
    """Start the command, and block it at this step within the block; yield the position at which its log begins."""
    with closing(pair.connect(held.database)) as holder:
        if held.database == "new":
            run_statements(holder, "SET idle_in_transaction_session_timeout = 0")
        yield held.start(pair.pipeline, lambda lock: run_statements(holder, lock), pair.state_of)


def kill_at_step(pair: SwitchedPair, held: HeldStep) -> None:
    """Kill the command while a lock blocks it at this step, and check the state that it leaves."""
    pipeline = pair.pipeline
    with hold_step(pair, held) as begin:
        pipeline.until(
            lambda: pair.states == held.records and pair.is_waiting(held.database, begin),
            "the command to wait",
            every_s=0.2,
        )
        pipeline.kill("switch")
    pipeline.until(lambda: pair.states == held.records, "the records to stay")
    assert pair.writable() == held.writable
    advice = [p for p in pipeline.ask("status", code=(0, 1))["problems"] if "is not finished" in p]
    assert bool(advice) == held.has_begun
    assert all(f"`{' '.join(('venus', *held.command))}` completes it" in p for p in advice)


def write_to_owner(pair: SwitchedPair, held: HeldStep, text: str) -> None:
    """Check that only the database opened by the command accepts writes, and write to it."""
    assert pair.writable() == [held.owner]
    (pair.new if held.owner == "new" else pair.old)(text)


def kill_and_complete(pair: SwitchedPair, held: HeldStep, tables: str, text: str) -> None:
    """Kill the command at this step, complete the switch by the same command, and write to the owner."""
    start_pair(pair, held, tables)
    kill_at_step(pair, held)
    pair.switch(*held.command)
    write_to_owner(pair, held, text)


def wait_until_reported(pipeline: Pipeline, start: int, report: str = "") -> None:
    """Wait until the command reports that it waits for a lock, in a text that contains `report`."""
    line = re.compile(f"^(waits: |waiting for ).*{report}", re.MULTILINE)
    pipeline.until(lambda: line.search(pipeline.log.read_text()[start:]), "the command to report that it waits")


#: Sessions of a switch wait half a second for locks of PostgreSQL, so that a test need not hold a lock for long.
SHORT_WAITS = (
    SourceEdit(
        where="venus.adapters.targets.postgresql.session:limit_lock_waits",
        old="str(milliseconds)",
        new="'500'",
    ),
)
