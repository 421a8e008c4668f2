"""Pieces that are read from a store fit into a message, however different the sizes of rows and entries are."""

from __future__ import annotations

from pathlib import Path

from venus.broker.replicas.copies import BusinessCopy, read_pieces
from venus.broker.replicas.copies import CopyPlace as At
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.rpc.channel import FRAME_BYTES, MESSAGE_BYTES_MAX, REPLICA_BYTES_MAX

SMALL, LARGE, LARGE_BYTES = 130, 64, 300_000


def store_at(path: Path, family: str) -> Store:
    """Return a store with small values before large ones, 64 of which are more than a message holds."""
    assert LARGE * LARGE_BYTES > REPLICA_BYTES_MAX > MESSAGE_BYTES_MAX
    store = Store(path / "db")
    batch = store.batch()
    for n in range(SMALL + LARGE):
        batch.put(family, keys.log_key(1, n), b"%d " % n + b"x" * (0 if n < SMALL else LARGE_BYTES))
    store.write(batch, durable=False)
    return store


def test_large_rows_behind_small_ones_are_read_in_parts(tmp_path: Path) -> None:
    """In a table of documents whose first ones are empty, the chunk was too large to be sent, each time."""
    store = store_at(tmp_path, keys.ROW)
    end = store.find_before(keys.ROW, keys.log_key(2, 0))
    assert end is not None
    at, found, done = 0, list[bytes](), False
    while not done:
        values, done = store.read_values(keys.ROW, keys.log_key(1, at), end, rows_max=50_000, bytes_max=FRAME_BYTES)
        assert sum(map(len, values)) <= 2 * FRAME_BYTES
        found += values
        at = int(values[-1].split()[0]) + 1
    assert [int(value.split()[0]) for value in found] == list(range(SMALL + LARGE))
    store.close()


def test_large_entries_behind_small_ones_are_copied_in_parts(tmp_path: Path) -> None:
    """After small commits, the piece of a large cut was too large, so the replica was never installed."""
    store = store_at(tmp_path, keys.RLOG)
    stop = keys.log_key(1, SMALL + LARGE)
    copy = BusinessCopy(name="copy", path=tmp_path, store=store, number=1, log_stop=stop, records_expected=0)
    found = list(read_pieces(copy, At()))
    assert max(sum(map(len, piece.values)) for piece in found) <= 2 * FRAME_BYTES
    assert [key for piece in found for key in piece.keys] == [keys.log_key(1, n)[4:] for n in range(SMALL + LARGE)]
    store.close()
