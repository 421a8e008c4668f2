"""Defects of rocksdict 0.3.29 that store.py avoids; a version without one fails here, and the call may be used.

Not run: `set_iterate_upper_bound` keeps a pointer into freed memory.
"""

from __future__ import annotations

import ast
import gc
import inspect
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rocksdict import AccessType, Checkpoint, DBRecoveryMode, Options, Rdict, ReadOptions, WriteBatch

from venus.broker.store import keys, rocks
from venus.broker.store.reads import KeyCount
from venus.broker.store.rocks import Store
from venus.errors import ConfigError, Corruption, StorageError


def options() -> Options:
    found = Options(raw_mode=True)
    found.create_if_missing(True)
    return found


@pytest.fixture
def db(tmp_path: Path) -> Any:
    opened = Rdict(str(tmp_path / "db"), options())
    for n in range(10):
        opened[b"%d" % n] = b"old"
    yield opened
    opened.close()


def collect(cursor: Any) -> list[tuple[bytes, bytes]]:
    found = []
    cursor.seek_to_first()
    while cursor.valid():
        found.append((cursor.key(), cursor.value()))
        cursor.next()
    cursor.status()
    return found


def test_the_lower_bound_is_taken_as_the_upper_one(db: Any) -> None:
    read = ReadOptions()
    read.set_iterate_lower_bound(b"3")

    assert [key for key, _ in collect(db.iter(read))] == [b"0", b"1", b"2"]


def test_the_iterator_of_a_snapshot_reads_rows_written_after_it(db: Any) -> None:
    view = db.snapshot()
    db[b"5"] = b"new"

    assert view[b"5"] == b"old"
    assert dict(collect(view.iter()))[b"5"] == b"new"
    del view


def test_an_iterator_of_the_store_does_not_read_rows_written_after_it(tmp_path: Path) -> None:
    opened = Store(tmp_path / "db")
    put(opened, {b"1": b"old", b"2": b"old"})
    walk = opened.scan(keys.STATE, b"", b"")
    first = next(walk)

    put(opened, {b"2": b"new"})

    assert [first, *walk] == [(b"1", b"old"), (b"2", b"old")]
    opened.close()


def test_a_write_batch_can_be_used_once(db: Any) -> None:
    batch = WriteBatch(raw_mode=True)
    batch.put(b"a", b"b")
    db.write(batch)

    with pytest.raises(Exception, match="consumed"):
        db.write(batch)


def test_a_checkpoint_object_keeps_the_lock_and_the_store_drops_it(tmp_path: Path) -> None:
    held = Rdict(str(tmp_path / "held"), options())
    maker = Checkpoint(held)
    maker.create_checkpoint(str(tmp_path / "copy"))
    held.close()
    with pytest.raises(Exception, match="lock"):
        Rdict(str(tmp_path / "held"), options())
    del maker

    opened = Store(tmp_path / "db")
    opened.checkpoint(tmp_path / "copies" / "1")
    opened.close()

    Store(tmp_path / "db").close()


def damage_files(path: Path) -> None:
    for table in path.glob("*.sst"):
        content = bytearray(table.read_bytes())
        for at in range(64, len(content) // 2, 97):
            content[at] ^= 0xFF
        table.write_bytes(content)


def test_items_end_early_on_a_damaged_file_and_the_store_does_not(tmp_path: Path) -> None:
    opened = Store(tmp_path / "db")
    put(opened, {b"%06d" % n: b"x" * 100 for n in range(5000)})
    opened.checkpoint(tmp_path / "copy")
    opened.close()
    damage_files(tmp_path / "copy")

    raw = Rdict(str(tmp_path / "copy"), access_type=AccessType.read_only(False))
    silent = list(raw.get_column_family(keys.STATE).items())
    assert len(silent) < 5000
    raw.close()

    copy = Store(tmp_path / "copy", read_only=True)
    with pytest.raises(Corruption):
        list(copy.scan(keys.STATE, b"", b""))
    with pytest.raises(Corruption):
        copy.read_range(keys.STATE, b"", b"", rows_max=10**6, bytes_max=1 << 30)
    with pytest.raises(Corruption):
        copy.read_range(keys.STATE, b"", b"%06d" % 4999, rows_max=10**6, bytes_max=1 << 30)
    with pytest.raises(Corruption):
        copy.read_values(keys.STATE, b"", (b"%06d" % 4999, b"the last"), rows_max=10**6, bytes_max=1 << 30)
    with pytest.raises(Corruption):
        copy.count_keys(keys.STATE, b"", b"", entries_max=10**6, marks_max=10)
    with pytest.raises(Corruption):
        copy.look_up(keys.STATE, [b"%06d" % n for n in range(5000)])
    copy.close()


def test_a_reader_leaves_no_file_open_and_needs_no_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Store(tmp_path / "db")
    put(opened, {b"%06d" % n: b"x" * 100 for n in range(5000)})
    opened.checkpoint(tmp_path / "copy")
    collections: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda: collections.append(1))
    reader = Store(tmp_path / "copy", read_only=True)
    reader.read_range(keys.STATE, b"", b"", rows_max=100, bytes_max=1 << 20)
    reader.count_keys(keys.STATE, b"", b"", entries_max=10**6, marks_max=7)
    next(reader.scan(keys.STATE, b"", b""))

    reader.close()

    assert not [path for path in open_files() if path.is_relative_to(tmp_path / "copy")]
    assert not collections
    opened.close()
    assert collections


def open_files() -> list[Path]:
    """Return the files that this process has open; a descriptor may be closed while they are listed."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(link.readlink())
    return found


@pytest.mark.parametrize("seed", range(20))
def test_runs_of_any_size_have_the_keys_that_an_iterator_finds(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    content = {b"%05d" % chance.randrange(10**5): bytes(chance.choice((0, 9, 5000, 90_000))) for _ in range(900)}
    opened = Store(tmp_path / "db")
    put(opened, content)
    wanted = sorted(content)

    for _ in range(20):
        start, stop = b"%05d" % chance.randrange(10**5), chance.choice((b"", b"%05d" % chance.randrange(10**5)))
        inside = [key for key in wanted if key >= start and (not stop or key < stop)]
        rows_max, bytes_max = chance.choice((1, 7, 64, 10**6)), chance.choice((1, 10_000, 10**6))
        seen: list[bytes] = []
        at, done = start, False
        while not done:
            found, values, done = opened.read_range(keys.STATE, at, stop, rows_max=rows_max, bytes_max=bytes_max)
            assert done or 0 < len(found) <= rows_max
            assert values == [content[key] for key in found]
            seen += found
            at = found[-1] + b"\0" if found else at
        assert seen == inside
        marks_max = chance.choice((1, 7, 10**6))
        every = next(n for n in (2**power for power in range(20)) if len(inside[::n]) <= marks_max)
        counted = opened.count_keys(keys.STATE, start, stop, entries_max=10**6, marks_max=marks_max)
        assert counted == KeyCount(len(inside), inside[::every], ended=True)
    opened.close()


@pytest.mark.parametrize("seed", range(20))
def test_runs_of_values_end_where_the_last_key_is(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    known = {b"%05d" % chance.randrange(10**5) for _ in range(900)}
    content = {key: key + bytes(chance.choice((0, 9, 5000, 90_000))) for key in known}
    opened = Store(tmp_path / "db")
    put(opened, content)

    for _ in range(20):
        start, stop = b"%05d" % chance.randrange(10**5), chance.choice((b"", chance.choice(sorted(known))))
        inside = [key for key in sorted(known) if key >= start and (not stop or key < stop)]
        last = opened.find_before(keys.STATE, stop)
        below = max((key for key in known if not stop or key < stop), default=None)
        assert last == (None if below is None else (below, content[below]))
        rows_max, bytes_max = chance.choice((1, 7, 64, 10**6)), chance.choice((1, 10_000, 10**6))
        seen: list[bytes] = []
        at, done = start, last is None or last[0] < start
        while not done:
            assert last is not None
            found, done = opened.read_values(keys.STATE, at, last, rows_max=rows_max, bytes_max=bytes_max)
            assert 0 < len(found) <= rows_max
            seen += [value[:5] for value in found]
            at = seen[-1] + b"\0"
        assert seen == inside
    opened.close()


def test_an_iterator_that_fails_at_its_last_value_raises(tmp_path: Path) -> None:
    opened = Store(tmp_path / "db")
    put(opened, {b"1": b"one", b"2": b"two"})

    with pytest.raises(StorageError, match="missed its end"):
        opened.read_values(keys.STATE, b"", (b"2", b"another"), rows_max=10, bytes_max=100)
    opened.close()


def put(opened: Store, content: dict[bytes, bytes]) -> None:
    batch = opened.batch()
    for key, value in content.items():
        batch.put(keys.STATE, key, value)
    opened.write(batch, durable=True)


WRITE_AND_DIE = """
import os, sys
from rocksdict import Options, Rdict
options = Options(raw_mode=True)
options.create_if_missing(True)
db = Rdict(sys.argv[1], options)
for n in range(1000):
    db[b"%04d" % n] = b"x" * 50
db.flush_wal(True)
os._exit(0)
"""


def test_the_default_recovery_silently_drops_half_of_a_damaged_log(tmp_path: Path) -> None:
    path = tmp_path / "db"
    subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(path)], check=True, timeout=120)
    log = max(path.glob("*.log"), key=lambda found: found.stat().st_size)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 0xFF
    log.write_bytes(content)

    strict = options()
    strict.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    with pytest.raises(Exception, match="Corruption"):
        Rdict(str(path), strict)

    careless = Rdict(str(path), options())
    assert 300 < len(list(careless.keys())) < 700
    careless.close()


def test_a_second_broker_is_refused_with_a_reason(tmp_path: Path) -> None:
    opened = Store(tmp_path / "db")

    with pytest.raises(ConfigError, match="in use by another broker"):
        Store(tmp_path / "db")

    opened.close()


def test_the_store_uses_none_of_the_broken_calls() -> None:
    banned = {"snapshot", "set_iterate_lower_bound", "set_iterate_upper_bound", "sync"}
    tree = ast.parse(inspect.getsource(rocks))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "keys")
    }

    assert not used & banned
