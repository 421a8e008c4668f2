"""A broker's engine whose power can be cut: each fsync records what the disk must keep.

The engine runs in a process of its own. Each sync of the store's write-ahead log notes the sizes that the logs had
before it; a power cut may remove bytes beyond these sizes, none within. RocksDB itself syncs tables and the manifest
before it relies on them, so they stay.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.engines import engines
from venus.broker.store import rocks
from venus.broker.store.witness import Witness, witness_path

ROWS = 40
PHASES = ("insert", "update", "delete", "fill")
PAYLOAD_BYTES = 700


def log_sizes(folder: Path) -> dict[str, int]:
    """Return the size of each write-ahead log; RocksDB may remove one at any time."""
    sizes = {}
    for file in folder.glob("*.log"):
        with suppress(FileNotFoundError):
            sizes[file.name] = file.stat().st_size
    return sizes


def note_what_is_synced(note: Path, *, gone_at: int = 0) -> None:
    """Let this process's store note after each fsync which bytes are on disk, before anything relies on them.

    At fsync number `gone_at` the power is cut, so that the fsync does not happen.
    """
    sync, bear_witness = rocks.Store._sync, Witness.write_note
    sizes: dict[str, int] = {}
    numbers = itertools.count(1)

    def before_sync(store: Any) -> None:
        if next(numbers) == gone_at:
            os.kill(os.getpid(), signal.SIGKILL)
        sizes.clear()
        sizes.update(log_sizes(store.path))
        sync(store)

    def after_sync(witness: Any, sequence: int) -> None:
        place = witness_path(witness._store)
        before = place.read_bytes() if place.exists() else b""
        for file, content in ((note, json.dumps(sizes).encode()), (note.with_suffix(".witness"), before)):
            part = file.with_suffix(".part")
            part.write_bytes(content)
            part.replace(file)
        bear_witness(witness, sequence)

    patched: Any = rocks.Store
    patched._sync = before_sync
    patched = Witness
    patched.write_note = after_sync


def change(phase: str, number: int) -> list[tuple[bytes, bytes | None]]:
    """Return the changes of a batch: new rows, the same rows repeatedly, or the deletion of the previous batch."""
    place = {"update": number % 50, "delete": number - number % 2}.get(phase, number)
    if phase == "delete" and number % 2:
        return [(b"%08d" % (place * ROWS + i), None) for i in range(ROWS)]
    payload = (b"%s %d " % (phase.encode(), number)).ljust(PAYLOAD_BYTES, b"x")
    return engines.rows(place * ROWS, ROWS, payload)


def work(path: Path, diary: Path, note: Path, phase: str, gone_at: int = 0) -> None:
    """Commit batch after batch of a phase until the power is cut; the diary lists the acknowledged ones."""
    note_what_is_synced(note, gone_at=gone_at)
    log = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write_diary(*words: object) -> None:
        os.write(log, (" ".join(map(str, words)) + "\n").encode())

    engine = engines.make(path, cache_bytes=2 << 20, retain_bytes=1 << 30)
    producer = engines.Producer(engine)
    if phase == "fill":
        engines.begin_fill(engine)
    undecided = list(producer.ack.undecided)
    write_diary("begin", producer.ack.last_batch)
    if undecided:  # the source has them: it committed before the power cut at the broker
        last = undecided[-1]
        engine.producers.decide("main", producer.epoch, last.batch_no, last.digest, 1).result(60)
        producer.batch_no, producer.sequence = last.batch_no, last.first_sequence + last.count - 1
        write_diary("commit", producer.batch_no)
    for _ in itertools.count():
        message = producer.next_half(change(phase, producer.batch_no + 1))
        producer.send(message)
        write_diary("half", producer.batch_no)
        producer.decide(message)
        write_diary("commit", producer.batch_no)


def cut(path: Path, note: Path, chance: random.Random, loss: Callable[[random.Random, int, int], int]) -> int:
    """Truncate a dead engine's files to what the disk had to keep, or a little more; return the lost bytes."""
    kept: dict[str, int] = json.loads(note.read_bytes()) if note.exists() else {}
    lost = 0
    for name, size in log_sizes(path / "db").items():
        left = loss(chance, kept.get(name, 0), size)
        lost += size - left
        os.truncate(path / "db" / name, left)
    if chance.random() < 0.5 and note.exists():  # the witness is never synced, and may be older
        content = note.with_suffix(".witness").read_bytes()
        place = witness_path(path / "db")
        place.unlink(missing_ok=True)
        if content:
            place.write_bytes(content)
    for file in (path / "db").glob("*.dbtmp"):
        file.unlink()
    shutil.rmtree(path / "snapshots", ignore_errors=True)
    return lost


def lose_unsynced_bytes(_chance: random.Random, kept: int, _size: int) -> int:
    """Return the size of a file that has lost all unsynced bytes."""
    return kept


def lose_some_bytes(chance: random.Random, kept: int, size: int) -> int:
    """Return the size of a file that has lost some of its unsynced bytes."""
    return chance.randint(min(kept, size), size)
