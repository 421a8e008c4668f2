"""RocksDB behind one class: what the broker has on disk, and with options.py all that knows rocksdict.

rocksdict 0.3.29 is used in raw mode and within narrow limits, because several of its calls are broken or unsafe
(tests/integration/engine/test_rocksdict_defects.py pins each): an iterator made by `iter()` is
asked for its `status()` at the end, and one made by `items()`, `keys()` or `values()`, which ends silently
at a damaged block, is checked by one of the former; no iterate bounds; no `Snapshot` objects, a consistent view is
a checkpoint; a write batch is used once. `write(sync)` would hold the interpreter's lock for the fsync, so a durable
write is `write` followed by `flush_wal(True)`.

The log is opened so that a torn last record is forgotten (it was never acknowledged) and any other damage is
refused: RocksDB's default silently drops everything behind the first damaged record.
"""

from __future__ import annotations

import gc
import shutil
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NoReturn

from rocksdict import AccessType, Checkpoint, Rdict, ReadOptions, WriteBatch

from venus.broker.store import files, keys, options, seal
from venus.broker.store.syncs import Syncs
from venus.broker.store.witness import Witness
from venus.errors import ConfigError, Corruption, StorageError

_CHECKPOINT_CACHE_BYTES = 8 << 20
#: How many rows are taken from an iterator at once while rows are small: so many may go beyond a limit of bytes.
_RUN_ROWS_MAX = 64
_SMALL_BYTES = 4 << 10
#: Keys and values that are walked or written in one call of C: the interpreter's lock is held meanwhile.
_AT_ONCE = 512

_AGAIN = "start the broker again"

WriteHook = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    """What one file of the store covers; files of all column families look alike."""

    start: bytes
    end: bytes
    entries: int
    nbytes: int


class Batch:
    """Writes that happen together or not at all."""

    __slots__ = ("_families", "_raw")

    def __init__(self, families: dict[str, Any]) -> None:
        self._raw = WriteBatch(raw_mode=True)
        self._families = families

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Set one key."""
        self._raw.put(key, value, self._families[family])

    def put_many(self, family: str, many_keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Set many keys; the loop runs in C."""
        put, handle = self._raw.put, repeat(self._families[family])
        for at in range(0, len(many_keys), _AT_ONCE):
            end = at + _AT_ONCE
            deque(map(put, many_keys[at:end], values[at:end], handle), maxlen=0)

    def delete(self, family: str, key: bytes) -> None:
        """Remove one key."""
        self._raw.delete(key, self._families[family])

    def delete_range(self, family: str, start: bytes, stop: bytes) -> None:
        """Remove every key from `start` up to but not including `stop`."""
        self._raw.delete_range(start, stop, self._families[family])

    def __len__(self) -> int:
        return len(self._raw)

    @property
    def nbytes(self) -> int:
        """How large the batch is in the write-ahead log."""
        return int(self._raw.size_in_bytes())


class Store:
    """An ordered key-value store with four column families and atomic, durable batches."""

    def __init__(
        self, path: Path, *, cache_bytes: int = 48 << 20, read_only: bool = False, on_write: WriteHook | None = None
    ) -> None:
        self.path = path
        self._read_only = read_only
        self._on_write = on_write
        self.syncs = Syncs()
        memory = options.Memory(_CHECKPOINT_CACHE_BYTES if read_only else cache_bytes)
        chosen = options.of_store(memory)
        families = {name: options.of_family(name, memory) for name in keys.FAMILIES}
        access = AccessType.read_only(False) if read_only else AccessType.read_write()
        self._witness = None if read_only else Witness(path, time.monotonic)
        if self._witness is not None:
            path.mkdir(parents=True, exist_ok=True)
            self._witness.check_files()
        try:
            self._db: Any = Rdict(str(path), chosen, column_families=families, access_type=access)
            self._views: dict[str, Any] = {name: self._db.get_column_family(name) for name in keys.FAMILIES}
            self._handles: dict[str, Any] = {name: self._db.get_column_family_handle(name) for name in keys.FAMILIES}
        except Exception as error:
            _refuse_to_open(path, error)
        self._no_cache = ReadOptions()
        self._no_cache.fill_cache(False)  # type: ignore[call-arg]  # the stub lacks the argument
        self._bear_witness()

    @property
    def sequence(self) -> int:
        """How many keys were ever written; RocksDB's sequence number."""
        return int(self._db.latest_sequence_number())

    def _bear_witness(self) -> None:
        if self._witness is not None:
            try:
                self._witness.check_sequence(self.sequence)
            except Corruption:
                self.close()
                raise
            self._sync()

    def _sync(self) -> None:
        """Bring what was written to the disk, and let the witness note it."""
        sequence = self.sequence  # before the fsync: another thread writes meanwhile
        if self._witness is not None:
            self._witness.look(self._oldest_log)
        self.syncs.begin(time.monotonic())
        self._db.flush_wal(True)
        self.syncs.end(time.monotonic())
        if self._witness is not None:
            self._witness.note(sequence)

    def _oldest_log(self) -> int:
        return int(self._db.property_int_value("rocksdb.min-log-number-to-keep"))

    # -- writing ---------------------------------------------------------------------------------------------

    def batch(self) -> Batch:
        """Start a batch."""
        return Batch(self._handles)

    def write(self, batch: Batch, *, durable: bool) -> None:
        """Write the batch; return once it would survive a crash of the process, or of the machine if `durable`.

        Any error is final: RocksDB never writes again after one, so the caller must stop the process.
        """
        hook = self._on_write
        if hook is not None:
            hook("before")
        try:
            self._db.write(batch._raw)
            if hook is not None:
                hook("written")
            if durable:
                self._sync()
        except Exception as error:
            raise _wrapped(self.path, error, "write") from error
        if hook is not None:
            hook("flushed")

    def sync(self) -> None:
        """Bring what was written without `durable` to the disk. Any error is final, as with `write`."""
        try:
            self._sync()
        except Exception as error:
            raise _wrapped(self.path, error, "write") from error
        if self._on_write is not None:
            self._on_write("synced")

    def compact(self, family: str, start: bytes, stop: bytes) -> None:
        """Give back the space of removed keys; the interpreter's lock is free meanwhile."""
        try:
            self._views[family].compact_range(start, stop)
        except Exception as error:
            raise _wrapped(self.path, error, "compact") from error

    def checkpoint(self, path: Path) -> None:
        """Make a consistent copy of everything, of hard links; open it with `read_only=True`.

        What is in memory is written to files first: the interpreter's lock is free meanwhile, and it is not while a
        checkpoint does the same (0.2 s for 16 MiB, in which the whole broker stood still).
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        maker = Checkpoint(self._db)
        try:
            for view in self._views.values():
                view.flush(True)
            maker.create_checkpoint(str(path))
            seal.put(path)
        except Exception as error:
            raise _wrapped(self.path, error, "make a checkpoint of") from error
        finally:
            del maker  # it would keep the lock file after close()

    # -- reading ---------------------------------------------------------------------------------------------

    def get(self, family: str, key: bytes, *, fill_cache: bool = True) -> bytes | None:
        """Return one value."""
        view = self._views[family]
        try:
            return view.get(key) if fill_cache else view.get(key, None, self._no_cache)  # type: ignore[no-any-return]
        except Exception as error:
            raise _wrapped(self.path, error, "read") from error

    def scan(
        self, family: str, start: bytes, stop: bytes, *, limit: int | None = None, fill_cache: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Walk the keys from `start` up to but not including `stop`, as of now; an empty `stop` is no bound.

        Raises Corruption at the end rather than ending early. Use it up in the thread that began it.
        """
        cursor = self._cursor(family, fill_cache=fill_cache)
        cursor.seek(start)
        valid, key, value, advance = cursor.valid, cursor.key, cursor.value, cursor.next
        left = -1 if limit is None else limit
        while left and valid():
            at = key()
            if stop and at >= stop:
                return
            yield at, value()
            advance()
            left -= 1
        self._check(cursor)

    def scan_prefix(self, family: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Walk the keys that start with `prefix`."""
        return self.scan(family, prefix, keys.after_prefix(prefix))

    def range(
        self, family: str, start: bytes, stop: bytes, *, rows_max: int, bytes_max: int
    ) -> tuple[list[bytes], list[bytes], bool]:
        """Read a run of keys and values at once; the last item says whether `stop` was reached."""
        pairs = self._views[family].items(from_key=start, read_opt=self._no_cache)
        found_keys: list[bytes] = []
        found_values: list[bytes] = []
        left, step = bytes_max, 1
        while left > 0 and len(found_keys) < rows_max:
            run = list(islice(pairs, min(step, rows_max - len(found_keys))))
            if not run:
                break
            found_keys += [key for key, _ in run]
            found_values += [value for _, value in run]
            if stop and found_keys[-1] >= stop:
                inside = bisect_left(found_keys, stop)
                return found_keys[:inside], found_values[:inside], True
            nbytes = sum(map(len, found_values[-len(run) :]))
            left -= nbytes
            step = min(2 * step, _RUN_ROWS_MAX) if nbytes <= step * _SMALL_BYTES else 1
        following = next(pairs, None)
        if following is None:
            self._ended(family, found_keys[-1] + b"\0" if found_keys else start, stop)
        return found_keys, found_values, following is None or (stop != b"" and following[0] >= stop)

    def values(
        self, family: str, start: bytes, last: tuple[bytes, bytes], *, rows_max: int, bytes_max: int
    ) -> tuple[list[bytes], bool]:
        """Read a run of values alone, half the price of keys and values; the last item says whether `last` was reached.

        `last` is the key and value at which to end; `before` finds them. No earlier value may equal it.
        """
        walk = self._views[family].values(from_key=start, read_opt=self._no_cache)
        found: list[bytes] = []
        left, step = bytes_max, 1
        while left > 0 and len(found) < rows_max:
            run = list(islice(walk, min(step, rows_max - len(found))))
            if not run:
                deque(self.scan(family, start, last[0]), maxlen=0)  # says what is damaged
                raise StorageError(f"cannot read {self.path}: a walk by value missed its end", hint=_AGAIN)
            if last[1] in run:
                return found + run[: run.index(last[1]) + 1], True
            found += run
            nbytes = sum(map(len, run))
            left -= nbytes
            step = min(2 * step, _RUN_ROWS_MAX) if nbytes <= step * _SMALL_BYTES else 1
        return found, False

    def before(self, family: str, stop: bytes) -> tuple[bytes, bytes] | None:
        """Return the greatest key below `stop` and its value; an empty `stop` is no bound."""
        cursor = self._cursor(family, fill_cache=False)
        if not stop:
            cursor.seek_to_last()
        else:
            cursor.seek_for_prev(stop)
            if cursor.valid() and cursor.key() == stop:
                cursor.prev()
        if not cursor.valid():
            self._check(cursor)
            return None
        return cursor.key(), cursor.value()

    def _ended(self, family: str, behind: bytes, stop: bytes) -> None:
        """Raise Corruption or StorageError unless there is really nothing behind this key and below `stop`.

        So nobody may write there meanwhile: `stop` has to lie at or before the end of what is written.
        """
        cursor = self._cursor(family, fill_cache=False)
        cursor.seek(behind)
        self._check(cursor)
        if cursor.valid() and (not stop or cursor.key() < stop):
            raise StorageError(f"cannot read {self.path}: a walk ended in front of a key", hint=_AGAIN)

    def count(self, family: str, start: bytes, stop: bytes, *, every: int) -> tuple[int, list[bytes]]:
        """Count the keys of a range, and return each `every`-th of them."""
        found = self._views[family].keys(from_key=start, read_opt=self._no_cache)
        counted = 0
        marks: list[bytes] = []
        last = b""
        while run := list(islice(found, _AT_ONCE)):
            last = run[-1]
            inside = bisect_left(run, stop) if stop and last >= stop else len(run)
            marks += run[-counted % every : inside : every]
            counted += inside
            if inside < len(run):
                return counted, marks
        self._ended(family, last + b"\0" if last else start, stop)
        return counted, marks

    def look_up(self, family: str, many_keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values of those keys that exist, with one iterator: cheap also over a vector memtable."""
        cursor = self._cursor(family, fill_cache=True)
        found: dict[bytes, bytes] = {}
        for wanted in sorted(set(many_keys)):
            cursor.seek(wanted)
            if not cursor.valid():
                self._check(cursor)
                break
            if cursor.key() == wanted:
                found[wanted] = cursor.value()
        return found

    def at_or_before(self, family: str, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the greatest key that is not above `key`."""
        cursor = self._cursor(family, fill_cache=True)
        cursor.seek_for_prev(key)
        if not cursor.valid():
            self._check(cursor)
            return None
        return cursor.key(), cursor.value()

    def files(self) -> list[FileRange]:
        """Return the ranges of the files, the cheapest hint of how keys are spread."""
        return [
            FileRange(start=item["start_key"], end=item["end_key"], entries=item["num_entries"], nbytes=item["size"])
            for item in self._db.live_files()
            if item["start_key"] is not None and item["end_key"] is not None
        ]

    def close(self) -> None:
        """Close the store; an error of the disk has been reported by the write that met it."""
        self._views.clear()
        self._handles.clear()
        db, self._db = self._db, None
        if db is None:
            return
        sequence: int | None = None
        try:
            sequence = int(db.latest_sequence_number())
            db.close()
        except Exception as error:
            sequence = None
            raise _wrapped(self.path, error, "close") from error
        finally:
            del db
            if not self._read_only:  # one that is only read has no lock, and the broker goes on meanwhile
                gc.collect()  # a reference left in a cycle would keep the lock file
            if self._witness is not None:
                self._witness.close(sequence)

    def _cursor(self, family: str, *, fill_cache: bool) -> Any:
        view = self._views[family]
        return view.iter() if fill_cache else view.iter(self._no_cache)

    def _check(self, cursor: Any) -> None:
        try:
            cursor.status()
        except Exception as error:
            raise _wrapped(self.path, error, "read") from error


def _wrapped(path: Path, error: Exception, verb: str) -> StorageError:
    text = str(error)
    if "Corruption" in text or "checksum mismatch" in text:
        return Corruption(f"cannot {verb} {path}: {text}", hint=files.CORRUPT_HINT.format(path=path))
    return StorageError(
        f"cannot {verb} {path}: {text}",
        hint="see to the disk, then start the broker again: nothing acknowledged is lost",
    )


def _refuse_to_open(path: Path, error: Exception) -> NoReturn:
    if "lock" in str(error).lower() and "Corruption" not in str(error):
        raise ConfigError(
            f"broker.data_dir {path.parent.resolve()} is in use by another broker",
            hint="Stop the other broker, or give this one a data_dir of its own.",
        ) from error
    raise _wrapped(path, error, "open") from error


def remove(path: Path) -> None:
    """Remove a store or a checkpoint that nobody has open."""
    shutil.rmtree(path, ignore_errors=True)
