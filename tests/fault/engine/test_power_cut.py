"""A power cut while rows are inserted, updated, deleted (VENUS 4.4; Minos 4.3): no batch is lost, none stored twice.

All or some of the bytes after the last fsync are dropped. The test simulates a power cut: it kills the process, and
cuts its write-ahead logs to the length that was synced. It cannot show the sectors of a disk that lies about its
flushes.
"""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.support.engines import engines, power

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.support.engines.power"])
START_S = 180.0
#: A restarted engine syncs at most this often before its first new batch.
SYNCS_MAX = 60


def run_until_power_loss(path: Path, phase: str, chance: random.Random, gone_at: int) -> list[list[str]]:
    """Run an engine for a moment, or until fsync number `gone_at`; return the acknowledged batches."""
    diary, note = path.with_suffix(".diary"), path.with_suffix(".note")
    diary.unlink(missing_ok=True)
    process = PROCESSES.Process(target=power.work, args=(path, diary, note, phase, gone_at))
    process.start()
    if gone_at:
        process.join(START_S)
        assert process.exitcode == -signal.SIGKILL, process.exitcode
    else:
        run_after_first_commit(process, diary)
        time.sleep(chance.uniform(0.0, 0.15))
        process.kill()
        process.join()
    said = diary.read_text() if diary.exists() else ""
    return [line.split() for line in said.splitlines(keepends=True) if line.endswith("\n")]


def run_after_first_commit(process: BaseProcess, diary: Path) -> None:
    end = time.monotonic() + START_S
    while not (diary.exists() and b"commit" in diary.read_bytes()):
        assert process.is_alive(), process.exitcode
        assert time.monotonic() < end
        time.sleep(0.005)


def check(path: Path, acknowledged: list[list[str]], phase: str) -> None:
    """Check a store against the acknowledged batches and against the sent ones."""
    engine = engines.make(path, retain_bytes=1 << 30)
    try:
        found = engines.status(engine)
        committed = max((int(line[1]) for line in acknowledged if line[0] in ("commit", "begin")), default=0)
        persisted = max((int(line[1]) for line in acknowledged if line[0] == "half"), default=0)
        halves = [ref.batch_no for ref in found.halves]
        assert found.last_batch >= committed, "an acknowledged commit is lost"
        assert max([found.last_batch, *halves]) >= persisted, "an acknowledged half message is lost"
        increments = engines.queue(engine, found.log_start)
        offsets = [increment.base_offset for increment in increments]
        assert offsets == list(range(found.log_start, found.next_offset, power.ROWS)), "a batch is missing or doubled"
        model: dict[bytes, bytes] = {}
        for increment in increments:
            engines.apply(model, increment)
        assert engines.full_data(engine) == model
        wanted: dict[bytes, bytes] = {}
        for number in range(1, found.last_batch + 1):
            for key, row in power.change(phase, number):
                wanted.pop(key, None) if row is None else wanted.update({key: row})
        assert model == wanted, "what is there is not what was sent"
    finally:
        engine.stop()


@pytest.mark.fault
@pytest.mark.parametrize(
    ("phase", "cuts"),
    [(phase, 4) for phase in power.PHASES]
    + [pytest.param(phase, 100, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]) for phase in power.PHASES],
)
def test_a_power_cut_loses_and_doubles_nothing(tmp_path: Path, phase: str, cuts: int) -> None:
    chance, path, lost = random.Random(phase), tmp_path / "data", 0
    acknowledged: list[list[str]] = []
    for number in range(cuts):
        gone_at = chance.randint(1, SYNCS_MAX) if number % 2 else 0
        acknowledged += run_until_power_loss(path, phase, chance, gone_at)
        loss = power.lose_some_bytes if number % 3 == 2 else power.lose_unsynced_bytes
        lost += power.cut(path, path.with_suffix(".note"), chance, loss)
        check(path, acknowledged, phase)
    print(f"power was cut {cuts} times")  # noqa: T201  # counted by bench.figures.v3
    assert lost, "nothing was ever unsynced: the power cuts cut nothing"
