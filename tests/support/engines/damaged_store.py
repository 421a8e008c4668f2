"""A broker's small store, damaged copies of it, and the product's reaction to each, in a forked process."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import xxhash

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, Clock, Producer
from tests.support.processes import forks
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.errors import VenusError
from venus.wire import broker_pb2

SAME, REFUSED, CHANGED = 0, 10, 11
LEASE_S = 3600
STOPPED, KILLED = "stopped", "killed"


def build(path: Path, end: str) -> None:
    """Make a store with files of every kind, two generations of rows, a snapshot and an undecided half message."""
    engine = engines.make(path)
    producer = Producer(engine)
    for n in range(4):
        producer.commit(engines.rows(n * 8, 8, b"old%d" % n))
    engine.subscriptions.attach(BUSINESS, "target", 8)
    engine.full_data.open(broker_pb2.OpenSnapshotRequest(business=BUSINESS, lease_s=LEASE_S, holder="loader"))
    for n in range(4):
        producer.commit(engines.rows(n * 8 + 4, 8, b"new%d" % n))
    producer.commit([(b"%08d" % n, None) for n in range(3)])
    flush(engine)
    producer.commit(engines.rows(20, 20, b"newest"))
    producer.commit([(b"%08d" % 21, None)])
    producer.send(producer.next_half(engines.rows(500, 3, b"undecided")))
    eventually(lambda: engines.status(engine).materialised_offset == engines.status(engine).next_offset)
    if end == KILLED:
        os._exit(0)
    engine.stop()


def flush(engine: Core) -> None:
    """Flush all data to files, as a checkpoint does."""
    eventually(lambda: engines.status(engine).materialised_offset == engines.status(engine).next_offset)
    with tempfile.TemporaryDirectory(dir=engine.data_dir.parent) as scratch:
        engine.store.checkpoint(Path(scratch) / "copy")


def read_served(path: Path) -> tuple[str, str]:
    """Start a broker on a directory; return digests of the served data and of its old snapshots.

    Raises VenusError.
    """
    later = Clock()
    later.now_s += 60  # a snapshot requested from now on is not shared
    engine = engines.make(path, later)
    found = engines.status(engine)
    businesses = [
        found.epoch,
        found.last_batch,
        found.last_sequence,
        found.next_offset,
        found.log_start,
        [(half.batch_no, half.digest) for half in found.halves],
        [(consumer.group, consumer.acknowledged) for consumer in found.consumers],
        [(table.table_id, table.committed_changes) for table in found.tables],
    ]
    increments = [(i.base_offset, i.count, i.epoch, i.digest, i.body) for i in engines.queue(engine, found.log_start)]
    full = sorted(engines.full_data(engine).items())
    leased = [leased_rows(engine, pin.snapshot_id) for pin in engine.snapshots.all_leases()]
    return digest([businesses, increments, full]), digest(leased) if leased else "dropped"


def digest(found: list[Any]) -> str:
    """Return a digest of the served data."""
    return xxhash.xxh3_128_hexdigest(repr(found).encode())


def leased_rows(engine: Core, snapshot_id: str) -> list[tuple[bytes, bytes]]:
    """Return the rows of a snapshot that a loader had opened before. Raises SnapshotExpired."""
    snapshot = broker_pb2.Snapshot(snapshot_id=snapshot_id)
    chunks = engines.chunks(engine, snapshot, broker_pb2.Split(table_id=1))
    return sorted(row for chunk in chunks for row in engines.rows_of(chunk).items())


def damage(path: Path, how: str, at: int, bit: int) -> None:
    """Flip one bit of a file, truncate it, or remove it."""
    if how == "flip":
        content = bytearray(path.read_bytes())
        content[at] ^= 1 << bit
        path.unlink()  # other hard links of the file keep their content
        path.write_bytes(content)
    elif how == "cut":
        content = bytearray(path.read_bytes())
        path.unlink()
        path.write_bytes(content[:at])
    else:
        path.unlink()


def try_damage(words: list[str]) -> None:
    """Damage a copy and start a broker on it; exit with the code of the outcome."""
    original, wanted, leased, scratch, name, how, at, bit = words
    copy = Path(tempfile.mkdtemp(dir=scratch))
    shutil.copytree(original, copy / "data", dirs_exist_ok=True)
    damage(copy / "data" / name, how, int(at), int(bit))
    try:
        found = read_served(copy / "data")
        code = SAME if found in ((wanted, leased), (wanted, "dropped")) else CHANGED
    except VenusError:
        code = REFUSED
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    os._exit(code)


def serve_copy(path: Path, scratch: Path) -> None:
    """Print the served data of an undamaged copy; the store itself is not changed."""
    copy = Path(tempfile.mkdtemp(dir=scratch))
    shutil.copytree(path, copy / "data")
    sys.stdout.write(" ".join(read_served(copy / "data")))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["build", path, end]:
            build(Path(path), end)
        case ["serve", path, scratch]:
            serve_copy(Path(path), Path(scratch))
        case _:
            forks.serve(try_damage)
