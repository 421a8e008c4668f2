"""A switch between PostgreSQL databases that is killed at a step, or that other sessions' locks delay there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.story.test_fall_back import Pair, cut_over, open_pair, query
from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.held_steps import SHORT_WAITS, HeldStep, choose_steps, wait_until_reported
from tests.support.pipelines.switched_pair import BACK, FORWARD, QUIET

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

#: A transaction that may write would delay the command before its first step, so this lock has another mode.
_READ = "LOCK TABLE orders IN SHARE UPDATE EXCLUSIVE MODE"
_WRITE = "LOCK TABLE orders IN ROW EXCLUSIVE MODE"
#: Not the checkpoint: that would stop capture between half message and commit, and the command waits for its decision.
_RECORD = "SELECT FROM venus.side FOR UPDATE"
_APPLIED = "LOCK TABLE venus.applied IN EXCLUSIVE MODE"
STEPS = {
    "close": HeldStep(FORWARD, "old", _READ, None, (None, "FOLLOWING"), ["old"]),
    "stop": HeldStep(FORWARD, "old", _RECORD, ("old", "CLOSED"), ("CLOSED", "FOLLOWING"), []),
    "open": HeldStep(FORWARD, "new", _WRITE, ("new", "FOLLOWING"), ("STOPPED", "FOLLOWING"), []),
    "enforce": HeldStep(FORWARD, "new", "SELECT FROM orders", None, ("STOPPED", "OPEN"), ["new"]),
    "follow": HeldStep(FORWARD, "old", _APPLIED, ("old", "STOPPED"), ("STOPPED", "OPEN"), ["new"]),
    "back-close": HeldStep(BACK, "new", _READ, None, ("FOLLOWING", "OPEN"), ["new"]),
    "back-stop": HeldStep(BACK, "new", _RECORD, ("new", "CLOSED"), ("FOLLOWING", "CLOSED"), []),
    "back-open": HeldStep(BACK, "old", _WRITE, ("new", "STOPPED"), ("FOLLOWING", "STOPPED"), []),
    "back-follow": HeldStep(BACK, "new", _APPLIED, ("new", "STOPPED"), ("OPEN", "STOPPED"), ["old"]),
}


@pytest.fixture
def pair(tmp_path: Path, postgres_server: Server) -> Iterator[Pair]:
    with open_pair(tmp_path, postgres_server) as found:
        yield found


def state_of(pair: Pair, name: str) -> str | None:
    """Return the state that the record of a database names."""
    url = getattr(pair, name)
    has_record = query(url, "SELECT to_regclass('venus.side') IS NOT NULL") == [(True,)]
    return next((state for (state,) in query(url, "SELECT state FROM venus.side")), None) if has_record else None


def read_states(pair: Pair) -> tuple[str | None, str | None]:
    """Return the states in the records of the old and the new database."""
    return state_of(pair, "old"), state_of(pair, "new")


class Holder:
    """A transaction that holds locks."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = psycopg2.connect(libpq(url), options="-c idle_in_transaction_session_timeout=0")
        self._pid = self._connection.info.backend_pid

    def hold(self, text: str) -> None:
        """Take a lock."""
        self._connection.cursor().execute(text)

    def holds_command(self) -> bool:
        """Return whether another session waits for this one."""
        return query(self._url, f"SELECT 1 FROM pg_stat_activity WHERE {self._pid} = ANY (pg_blocking_pids(pid))") != []

    def is_waiting(self) -> bool:
        """Return whether this session waits for a lock."""
        return query(self._url, f"SELECT cardinality(pg_blocking_pids({self._pid})) > 0") == [(True,)]

    def end(self) -> None:
        """End the session, even while it waits."""
        query(self._url, f"SELECT pg_terminate_backend({self._pid})")

    def close(self) -> None:
        self._connection.close()


@contextmanager
def hold_step(pair: Pair, held: HeldStep) -> Iterator[tuple[Holder, int]]:
    """Start the command, and block it at this step within the block; yield the position at which its log begins."""
    with closing(Holder(getattr(pair, held.database))) as holder:
        yield holder, held.start(pair.pipeline, holder.hold, lambda name: state_of(pair, name))


def interrupt(pair: Pair, step: str) -> None:
    """Kill the command while a lock blocks it at this step."""
    held = STEPS[step]
    with hold_step(pair, held) as (holder, _):
        pair.pipeline.until(
            lambda: read_states(pair) == held.records and holder.holds_command(), "the command to wait", every_s=0.2
        )
        pair.pipeline.kill("switch")
    pair.pipeline.until(lambda: read_states(pair) == held.records, "the records to stay")


def start(pair: Pair, held: HeldStep) -> None:
    """Prepare the pair up to the start of the command."""
    pair.start()
    if held.command == BACK:
        cut_over(pair)


def check_switched(pair: Pair, held: HeldStep) -> None:
    """Check that the other database accepts writes, and that they arrive in the first one."""
    assert pair.writable() == [held.owner]
    query(getattr(pair, held.owner), "INSERT INTO customer (name) VALUES ('carl')")
    pair.until_equal()


@pytest.mark.parametrize("step", choose_steps(STEPS, "stop", "open", "follow"))
def test_a_kill_at_each_step_is_completed_by_the_same_command(pair: Pair, step: str) -> None:
    held = STEPS[step]
    start(pair, held)
    interrupt(pair, step)
    assert pair.writable() == held.writable
    command = " ".join(("venus", *held.command))
    advice = [p for p in pair.pipeline.status()["problems"] if "is not finished" in p]
    assert bool(advice) == held.has_begun
    assert all(f"`{command}` completes it" in p for p in advice)
    pair.pipeline.ask(*held.command, *QUIET)
    check_switched(pair, held)


def test_an_interrupted_switch_is_undone(pair: Pair) -> None:
    pair.start()
    interrupt(pair, "open")
    pair.pipeline.ask("cutover", "--target", "main", "--undo")
    assert pair.writable() == ["old"]
    query(pair.old, "INSERT INTO customer (name) VALUES ('carl')")
    pair.until_equal()
    assert "there is nothing to undo" in pair.pipeline.venus("cutover", "--target", "main", "--undo", code=3).err


@pytest.mark.parametrize("step", choose_steps(STEPS, "close", "back-open"))
def test_a_lock_that_is_held_for_longer_than_its_time_limit_delays_each_step(pair: Pair, step: str) -> None:
    held, pipeline = STEPS[step], pair.pipeline
    pipeline.edit_processes(SHORT_WAITS)
    pipeline.source += "&venus_lock_timeout_s=0.5"
    start(pair, held)
    with hold_step(pair, held) as (_, begin):
        wait_until_reported(pipeline, begin, "55P03")
        assert held.writable or pair.writable() == []
    assert pipeline.running.pop("switch").wait(240) == 0, pipeline.tail()
    check_switched(pair, held)


@pytest.mark.parametrize("step", ["open", pytest.param("back-open", marks=pytest.mark.slow)])
def test_a_step_that_the_server_ends_because_of_a_deadlock_is_repeated(pair: Pair, step: str) -> None:
    """The command gets the lock of the table only after the lock of the switch, which the holder waits for."""
    held, pipeline = STEPS[step], pair.pipeline
    start(pair, held)
    with hold_step(pair, held) as (holder, begin), waiting_for_switch(holder) as thread:
        pipeline.until(holder.is_waiting, "the holder to wait for the command")
        wait_until_reported(pipeline, begin, "40P01")
        assert pair.writable() == []
        assert thread.is_alive()
        holder.end()
    assert pipeline.running.pop("switch").wait(240) == 0, pipeline.tail()
    check_switched(pair, held)


#: Locks in the order of adapters/targets/postgresql/side.sql. This session itself never looks for deadlocks.
_SWITCH_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('venus switch', 7654))"


@contextmanager
def waiting_for_switch(holder: Holder) -> Iterator[threading.Thread]:
    """Let a session wait in a thread for the lock of the running switch; end it at the end of the block."""

    def wait() -> None:
        with suppress(psycopg2.Error):
            holder.hold(_SWITCH_LOCK)

    holder.hold("SET deadlock_timeout = '1h'")
    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield thread
    finally:
        holder.end()
        thread.join()
