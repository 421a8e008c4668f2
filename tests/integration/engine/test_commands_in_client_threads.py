"""A client's thread carries out its own command while the commit thread is idle; the two never run at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import WAIT_S, Clock, Errors
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.pipeline.group import CommandGroup
from venus.broker.pipeline.upkeep import MAINTAIN_EVERY_S
from venus.errors import StorageError, Unavailable

#: Time enough for a thread that need not wait; time after which a blocked command fails.
SOON_S, END_S = 0.2, 120.0
RESTS_S = 3600.0


class BlockingCommand:
    """A command that blocks until the test lets it end, and records its thread."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        self.thread = 0

    def __call__(self, _: CommandGroup) -> None:
        self.thread = threading.get_ident()
        self.began.set()
        assert self.may_end.wait(END_S)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(tmp_path: Path, clock: Clock) -> Iterator[Core]:
    made = engines.make(tmp_path, clock)
    made.commits._rest_s = lambda: RESTS_S  # its periodic work does not wake the commit thread
    made.commits.advance()
    eventually(lambda: made.commits._is_at_rest and made.commits._rests_until > clock.now_s + RESTS_S / 2)
    yield made
    made.stop()


def wait_for_rest(engine: Core) -> None:
    eventually(lambda: engine.commits._is_at_rest)


def run_in_client_thread(engine: Core, work: Callable[[CommandGroup], None]) -> tuple[Future[None], threading.Thread]:
    """Execute a command in a client's thread."""
    wait_for_rest(engine)
    future = engine.commits.submit(work, wakes=False)
    client = threading.Thread(target=engine.commits.carry_out_here)
    client.start()
    return future, client


def end(client: threading.Thread, *commands: BlockingCommand) -> None:
    for command in commands:
        command.may_end.set()
    client.join(WAIT_S)
    assert not client.is_alive()


def test_an_idle_engine_executes_a_command_in_the_clients_thread(engine: Core) -> None:
    command = BlockingCommand()
    command.may_end.set()
    future = engine.commits.submit(command, wakes=False)
    engine.commits.carry_out_here()
    assert future.done()
    assert command.thread == threading.get_ident()


def test_the_commit_thread_waits_until_the_client_is_done(engine: Core) -> None:
    lent, next_one = BlockingCommand(), BlockingCommand()
    _, client = run_in_client_thread(engine, lent)
    assert lent.began.wait(WAIT_S)
    behind = engine.commits.submit(next_one)
    assert not next_one.began.wait(SOON_S)
    end(client, lent)
    next_one.may_end.set()
    behind.result(WAIT_S)
    assert next_one.thread not in (lent.thread, threading.get_ident())


def test_a_second_client_leaves_its_command_to_the_commit_thread(engine: Core) -> None:
    lent, second = BlockingCommand(), BlockingCommand()
    _, client = run_in_client_thread(engine, lent)
    assert lent.began.wait(WAIT_S)
    behind = engine.commits.submit(second, wakes=False)
    engine.commits.carry_out_here()
    assert not second.began.is_set()
    end(client, lent)
    second.may_end.set()
    behind.result(WAIT_S)


def test_a_client_does_not_wait_for_a_group_of_the_commit_thread(engine: Core) -> None:
    own, command = BlockingCommand(), BlockingCommand()
    engine.commits.submit(own)
    assert own.began.wait(WAIT_S)
    future = engine.commits.submit(command, wakes=False)
    engine.commits.carry_out_here()
    assert not command.began.is_set()
    own.may_end.set()
    command.may_end.set()
    future.result(WAIT_S)
    assert command.thread == own.thread


def test_a_command_behind_others_is_left_to_the_commit_thread(engine: Core) -> None:
    """The waiting commands may be large, or belong to other clients."""
    first, second = BlockingCommand(), BlockingCommand()
    for command in (first, second):
        command.may_end.set()
    futures = [engine.commits.submit(command, wakes=False) for command in (first, second)]
    engine.commits.carry_out_here()
    for future in futures:
        future.result(WAIT_S)
    assert first.thread == second.thread != threading.get_ident()


def test_a_command_that_blocks_in_a_client_thread_makes_the_broker_silent(engine: Core, clock: Clock) -> None:
    """Commands that arrive meanwhile do not hide the silence."""
    lent = BlockingCommand()
    _, client = run_in_client_thread(engine, lent)
    assert lent.began.wait(WAIT_S)
    clock.now_s += 100.0
    assert engine.commits.silent_s(clock.now_s) == 100.0
    behind = engine.commits.submit(lambda _: None)
    assert engine.commits.silent_s(clock.now_s) == 100.0
    end(client, lent)
    behind.result(WAIT_S)


def test_a_stop_waits_for_the_client(engine: Core) -> None:
    lent = BlockingCommand()
    future, client = run_in_client_thread(engine, lent)
    assert lent.began.wait(WAIT_S)
    stops = threading.Thread(target=engine.commits.stop)
    stops.start()
    stops.join(SOON_S)
    assert stops.is_alive()
    end(client, lent)
    stops.join(WAIT_S)
    future.result(WAIT_S)
    with pytest.raises(Unavailable):
        engine.commits.submit(lambda _: None, wakes=False).result(WAIT_S)


def test_periodic_work_is_done_although_the_commit_thread_slept_through_the_group(engine: Core, clock: Clock) -> None:
    own = engine.upkeep.rest_s
    engine.commits._rest_s = lambda: 3600.0 if engine.upkeep._is_quiet else own()  # nothing else wakes the thread
    engine.upkeep._is_quiet = True
    engine.commits.advance()
    eventually(lambda: engine.commits._is_at_rest and engine.commits._rests_until > clock.now_s + 2 * MAINTAIN_EVERY_S)

    def write(group: CommandGroup) -> None:
        engine.upkeep._is_quiet = False

    _, client = run_in_client_thread(engine, write)
    end(client)
    eventually(lambda: engine.commits._rests_until <= clock.now_s + MAINTAIN_EVERY_S)


def test_no_client_executes_a_command_while_the_commit_thread_waits_for_more(tmp_path: Path) -> None:
    engine = engines.make(tmp_path, group_commit_ms=1)
    wait_for_rest(engine)
    command = BlockingCommand()
    command.may_end.set()
    future = engine.commits.submit(command, wakes=False)
    engine.commits.carry_out_here()
    future.result(WAIT_S)
    assert command.thread != threading.get_ident()
    engine.stop()


def test_a_failing_store_ends_the_broker_in_whichever_thread_it_fails(tmp_path: Path) -> None:
    errors, fails = Errors(), list[bool]()

    def on_write(moment: str) -> None:
        if fails and moment == "before":
            raise OSError(5, "broken")

    engine = engines.make(tmp_path, errors=errors, on_write=on_write)
    wait_for_rest(engine)
    fails.append(True)

    def write(group: CommandGroup) -> None:
        group.stage("state", b"key", b"value")

    future = engine.commits.submit(write, wakes=False)
    engine.commits.carry_out_here()
    with pytest.raises(StorageError):
        future.result(WAIT_S)
    assert errors.fatal
    assert engine.commits.has_failed
    with pytest.raises(StorageError):
        engine.commits.submit(lambda _: None).result(WAIT_S)
    engine.commits._thread.join(WAIT_S)
    assert not engine.commits._thread.is_alive()
    engine.stop()
