"""kill -9 at every step of every write in a process of its own: each acknowledged batch is kept, and stored once."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.support.engines import engines
from venus.model import Verdict
from venus.wire import broker_pb2

ROWS = 5
LIFE_S = 240.0

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.support.engines.engines"])


def work(path: Path, diary: Path, batches: int, kill_at: int | None, is_fill: bool = False) -> None:
    """Produce all batches and note each acknowledged one in the diary; first roll back the batch left undecided."""
    log = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write_diary(*words: object) -> None:
        os.write(log, (" ".join(map(str, words)) + "\n").encode())

    engine = engines.make(path, on_write=killer(kill_at) if kill_at is not None else None)
    producer = engines.Producer(engine)
    write_diary("epoch", producer.epoch)
    if is_fill:
        engines.begin_fill(engine)
    for ref in producer.ack.undecided[:1]:
        write_diary("rollback", ref.batch_no)
        producer.decide(broker_pb2.Half(batch_no=ref.batch_no, digest=ref.digest), Verdict.ROLLBACK)
    while producer.batch_no < batches:
        produce(producer, write_diary)
        if is_fill:
            engines.wait_until_caught_up(engine)  # so that rows become no files before the wait for a checkpoint
    engines.full_data(engine)
    if engines.has_files(engine):
        write_diary("files")
    engine.stop()
    write_diary("done")


def killer(kill_at: int) -> Callable[[str], None]:
    """Return a hook that kills this process, without warning, at the n-th step of a write."""
    left = kill_at

    def kill(_step: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return kill


def produce(producer: engines.Producer, write_diary: Callable[..., None]) -> None:
    """Ship and commit the next batch; the first process rolls back its second batch once."""
    number, before = producer.batch_no + 1, producer.sequence
    changes = engines.rows(number * 100, ROWS, b"%d" % number)
    message = producer.next_half(changes)
    producer.send(message)
    write_diary("half", number)
    if number == 2 and producer.epoch == engines.FIRST_EPOCH:
        write_diary("rollback", number)
        producer.decide(message, Verdict.ROLLBACK)
        message = engines.half(number, before + 1, changes, cut_end=False)
        producer.send(message)
    producer.decide(message)
    write_diary("commit", number)


def run(path: Path, batches: int, kill_at: int | None, is_fill: bool = False) -> list[list[str]]:
    """Run `work` in a process of its own; return its diary."""
    diary = path.with_suffix(".diary")
    process = PROCESSES.Process(target=work, args=(path, diary, batches, kill_at, is_fill))
    process.start()
    process.join(LIFE_S)
    assert process.exitcode in (0, -signal.SIGKILL)
    return [line.split() for line in diary.read_text().splitlines()] if diary.exists() else []


@pytest.mark.fault
@pytest.mark.parametrize(
    ("batches", "step", "is_fill"),
    [(2, 5, False), (2, 4, True)] + [pytest.param(3, 1, is_fill, marks=pytest.mark.slow) for is_fill in (False, True)],
)
def test_kill_9_at_any_step_of_any_write_loses_and_doubles_nothing(
    tmp_path: Path, batches: int, step: int, is_fill: bool
) -> None:
    for kill_at in count(0, step):
        path = tmp_path / str(kill_at)
        lines = run(path, batches, kill_at, is_fill)
        inspect(path, lines)
        if ["done"] in lines:
            assert kill_at > 3 * 2 * batches, "the hook saw fewer writes than there must be"
            assert (["files"] in lines) is is_fill
            return
        lines = run(path, batches, None, is_fill)
        assert lines[-1] == ["done"]
        inspect(path, lines)
    raise AssertionError("no run was completed")


def inspect(path: Path, lines: list[list[str]]) -> None:
    """Check a store against the diary of the process that was killed."""
    engine = engines.make(path)
    try:
        state = engine.status(engines.BUSINESS)
        found = state.businesses[0] if state.businesses else None
        committed = max((int(line[1]) for line in lines if line[0] == "commit"), default=0)
        persisted = max((int(line[1]) for line in lines if line[0] == "half"), default=0)
        epochs = [int(line[1]) for line in lines if line[0] == "epoch"]
        if found is None:  # the first half message creates a business
            assert not persisted
            return
        halves = [ref.batch_no for ref in found.halves]
        assert found.epoch >= max(epochs, default=0)
        assert found.last_batch >= committed
        assert max([found.last_batch, *halves]) >= persisted or ["rollback", str(persisted)] in lines
        increments = engines.queue(engine, found.log_start)
        assert [i.base_offset for i in increments] == list(range(found.log_start, found.next_offset, ROWS))
        assert engines.full_data(engine) == {
            b"%08d" % (number * 100 + i): b"%d" % number
            for number in range(1, found.last_batch + 1)
            for i in range(ROWS)
        }
    finally:
        engine.stop()
