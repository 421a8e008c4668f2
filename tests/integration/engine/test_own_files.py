"""RocksDB's message logs and its manifest do not grow for as long as a broker lives."""

from __future__ import annotations

from pathlib import Path

import pytest

from venus.broker.store import keys, options
from venus.broker.store.rocks import Store

ROUNDS = 150


def _size_of(path: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in path.glob(pattern))


def test_message_logs_and_manifest_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_MESSAGES_BYTES_MAX", 64 << 10, raising=False)
    monkeypatch.setattr(options, "_MANIFEST_BYTES_MAX", 32 << 10, raising=False)
    store = Store(tmp_path / "db")
    for n in range(ROUNDS):
        batch = store.batch()
        batch.put(keys.STATE, b"%06d" % n, b"x")
        store.write(batch, durable=True)
        store.checkpoint(tmp_path / "copies" / str(n))
    files = tmp_path / "db"
    messages, manifest = _size_of(files, "LOG*"), _size_of(files, "MANIFEST-*")
    copied = _size_of(tmp_path / "copies" / str(ROUNDS - 1), "MANIFEST-*")
    store.close()

    assert messages <= 5 * (80 << 10), "it is written at each flush and each merge"
    assert manifest <= 48 << 10
    assert copied <= 48 << 10, "each snapshot has a copy of it"
    again = Store(files)
    assert [key for key, _ in again.scan(keys.STATE, b"", b"")] == [b"%06d" % n for n in range(ROUNDS)]
    again.close()
