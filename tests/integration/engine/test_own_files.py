"""RocksDB's message logs and its manifest stay small for as long as a broker runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from venus.broker.store import keys, options
from venus.broker.store.rocks import Store

ROUNDS = 200


def _size_of(path: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in path.glob(pattern))


def test_message_logs_and_manifest_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_MESSAGES_BYTES_MAX", 64 << 10)
    monkeypatch.setattr(options, "_MANIFEST_BYTES_MAX", 4 << 10)
    store = Store(tmp_path / "db")
    first = (tmp_path / "db" / "CURRENT").read_text()
    for n in range(ROUNDS):
        batch = store.batch()
        batch.put(keys.STATE, b"%06d" % n, b"x")
        store.write(batch, durable=True)
        store.checkpoint(tmp_path / "copies" / str(n))
        if n % 5 == 0:
            store.compact(keys.STATE, b"", b"\xff")  # RocksDB lets a manifest grow to six times its compact size
    files = tmp_path / "db"
    messages, manifest = _size_of(files, "LOG*"), (files / "CURRENT").read_text()
    store.close()

    assert messages <= 5 * (80 << 10), "it is written at each flush and each merge"
    assert manifest != first, "another one has begun, of which each snapshot has a copy"
    again = Store(files)
    assert [key for key, _ in again.scan(keys.STATE, b"", b"")] == [b"%06d" % n for n in range(ROUNDS)]
    again.close()
