"""Reads a cut of an SQLite source in a fork, and kills it before the n-th statement of its local transaction.

python -m tests.support.faults.killed_sqlite, then one input line per run: N FILE (forks.py)
"""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path

from tests.support.processes.forks import serve
from venus.adapters.dialects.sqlite.source import SqliteSource
from venus.model import BatchNo, BatchRecord, Sequence


def run(words: list[str]) -> None:
    """Execute one local transaction, up to the kill."""
    statement, file = int(words[0]), Path(" ".join(words[1:]))
    source = SqliteSource(file)
    state = source.registry.read_state()
    cut = source.capture.open_cut([])
    assert cut is not None
    rows = sum(s.count for s in cut.read_sections(rows_max=7, bytes_max=1000))
    record = BatchRecord(
        batch_no=BatchNo(state.last_batch + 1),
        epoch=state.epoch,
        first_sequence=state.next_sequence,
        last_sequence=Sequence(state.next_sequence + rows - 1),
        digest=1,
    )
    said = count()

    def die(_statement: str) -> None:
        if next(said) == statement:
            os.kill(os.getpid(), signal.SIGKILL)

    source._writer.set_trace_callback(die)
    cut.commit(state.epoch, [record], [], BatchNo(0))
    source._writer.set_trace_callback(None)


if __name__ == "__main__":
    serve(run)
