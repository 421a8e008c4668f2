"""RocksDB behind one class: the data of the broker on disk. Only this module knows rocksdict.

rocksdict 0.3.29 is used in raw mode and within narrow limits, because several of its calls are broken or unsafe
(tests/integration/engine/test_rocksdict_defects.py pins each). Iterators follow the rules of reads.py. There are no
iterate bounds and no `Snapshot` objects: a consistent view is a checkpoint. A write batch is used once. `write(sync)`
would hold the interpreter's lock during the fsync, so a durable write is `write` followed by `flush_wal(True)`.

On opening, a torn last record of the log is dropped, because it was never acknowledged, and any other damage is
refused. By default RocksDB silently drops everything after the first damaged record.

Rows that come in the order of their keys become a file at once (`SortedFile`), which is never merged.
"""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import setitem
from pathlib import Path
from typing import Any

from rocksdict import (
    AccessType,
    Checkpoint,
    IngestExternalFileOptions,
    Options,
    Rdict,
    ReadOptions,
    SstFileWriter,
    WriteBatch,
)

from venus.broker.store import files, keys
from venus.broker.store.files import raise_open_error, wrap_error
from venus.broker.store.options import MemoryBudget, family_options, lower_merge_priority, store_options
from venus.broker.store.reads import StoreReads
from venus.broker.store.witness import Witness
from venus.errors import Corruption

KEPT = 256


class SyncTimes:
    """The durations of fsyncs: recent ones, and the running one.

    Only the syncing thread records durations, any thread reads them; times are in seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self._ended: deque[tuple[float, float]] = deque(maxlen=KEPT)  # when it ended, and how long it took
        self._began: float | None = None
        #: The total time of the fsyncs since the broker's start.
        self.total_s = 0.0

    def begin(self, now: float) -> None:
        """Record the beginning of an fsync."""
        self._began = now

    def end(self, now: float) -> None:
        """Record the end of the fsync."""
        if self._began is not None:
            self._ended.append((now, now - self._began))
            self.total_s += now - self._began
            self._began = None

    def running_s(self, now: float) -> float:
        """Return how long the running fsync has taken; 0 = there is none."""
        began = self._began
        return 0.0 if began is None else now - began

    def slower_than(self, seconds: float, since: float) -> int:
        """Return how many fsyncs since `since` took `seconds` or longer."""
        return sum(took >= seconds for at, took in tuple(self._ended) if at >= since)


_CHECKPOINT_CACHE_BYTES = 8 << 20
#: Keys and values written in one call of C, which holds the interpreter's lock.
_AT_ONCE = 512

WriteHook = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    """Key range and size of one file of the store; the file's column family is not known."""

    start: bytes
    end: bytes
    entries: int
    nbytes: int
    level: int  # 0 = not merged yet


class StoreBatch:
    """An atomic set of writes."""

    __slots__ = ("_families", "_raw")

    def __init__(self, families: dict[str, Any]) -> None:
        self._raw = WriteBatch(raw_mode=True)
        self._families = families

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Set one key."""
        self._raw.put(key, value, self._families[family])

    def put_many(self, family: str, many_keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Set many keys; the loop runs in C."""
        self._raw.set_default_column_family(self._families[family])  # an argument of each call takes twice the time
        _set_many(self._raw, many_keys, values)
        self._raw.set_default_column_family(None)

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


def _set_many(into: Any, many_keys: Sequence[bytes], values: Sequence[bytes]) -> None:
    """Put many keys into a batch or file; the loop runs in C."""
    for at in range(0, len(many_keys), _AT_ONCE):
        end = at + _AT_ONCE
        deque(map(setitem, repeat(into), many_keys[at:end], values[at:end]), maxlen=0)


class SortedFile:
    """A new file of the store, written in ascending order of keys. `Store.add_files` makes it readable."""

    def __init__(self, path: Path, options: Options) -> None:
        self.path = path
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._writer = SstFileWriter(options)
            self._writer.open(str(path))
        except Exception as error:
            raise wrap_error(path, error, "add files to") from error

    def put_many(self, many_keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add keys, which must be above all earlier ones; the loop runs in C."""
        try:
            _set_many(self._writer, many_keys, values)
        except Exception as error:
            raise wrap_error(self.path, error, "add files to") from error

    def finish(self) -> None:
        """Complete the file on disk.

        Most of the file is synced before the writer finishes, because the writer syncs the rest while it holds the
        interpreter's lock.
        """
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        self._writer.finish()


class Store(StoreReads):
    """An ordered key-value store with four column families and atomic, durable batches."""

    def __init__(
        self, path: Path, *, cache_bytes: int = 48 << 20, read_only: bool = False, on_write: WriteHook | None = None
    ) -> None:
        self.path = path
        self._read_only = read_only
        self._on_write = on_write
        self._file_number = 0
        self.syncs = SyncTimes()
        memory = MemoryBudget(_CHECKPOINT_CACHE_BYTES if read_only else cache_bytes)
        chosen = store_options(memory)
        self._options = families = {name: family_options(name, memory) for name in keys.FAMILIES}
        self._new_files = path.with_name(f"{path.name}.new")
        access = AccessType.read_only(False) if read_only else AccessType.read_write()
        self._witness = None if read_only else Witness(path, time.monotonic)
        if self._witness is not None:
            path.mkdir(parents=True, exist_ok=True)
            self._witness.check_files()
            remove_store(self._new_files)  # left by a crash
        try:
            self._db: Any = Rdict(str(path), chosen, column_families=families, access_type=access)
            self._views: dict[str, Any] = {name: self._db.get_column_family(name) for name in keys.FAMILIES}
            self._handles: dict[str, Any] = {name: self._db.get_column_family_handle(name) for name in keys.FAMILIES}
        except Exception as error:
            raise_open_error(path, error)
        self._no_cache = ReadOptions()
        self._no_cache.fill_cache(False)
        #: The sequence number at opening, and the newest one that is on disk.
        self.opened_at = self.synced = self.sequence
        lower_merge_priority()
        self._check_witness()

    @property
    def sequence(self) -> int:
        """How many keys were ever written; RocksDB's sequence number."""
        return int(self._db.latest_sequence_number())

    def _check_witness(self) -> None:
        """Compare the open store with its witness, and note its state. Raises Corruption."""
        if self._witness is not None:
            try:
                self._witness.check_sequence(self.sequence)
            except Corruption:
                self.close()
                raise
            self._sync()

    def _sync(self) -> None:
        """Sync the writes to the disk, and record them in the witness."""
        sequence = self.sequence  # before the fsync, because another thread writes meanwhile
        if self._witness is not None:
            self._witness.read_files(self._read_oldest_log)
        self.syncs.begin(time.monotonic())
        self._db.flush_wal(True)
        self.syncs.end(time.monotonic())
        self.synced = sequence
        if self._witness is not None:
            self._witness.write_note(sequence)

    def _read_oldest_log(self) -> int:
        """Return the number of the oldest write-ahead log that is still needed."""
        return int(self._db.property_int_value("rocksdb.min-log-number-to-keep"))

    # -- writing ---------------------------------------------------------------------------------------------

    def batch(self) -> StoreBatch:
        """Return a new, empty write batch."""
        return StoreBatch(self._handles)

    def write(self, batch: StoreBatch, *, durable: bool) -> None:
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
            raise wrap_error(self.path, error, "write") from error
        if hook is not None:
            hook("flushed")

    def new_file(self, family: str) -> SortedFile:
        """Begin a file for a family; the caller adds it with `add_files` or removes it with `drop_files`."""
        self._file_number += 1
        return SortedFile(self._new_files / f"{self._file_number}.sst", self._options[family])

    def add_files(self, family: str, new: Sequence[SortedFile]) -> None:
        """Make the keys of files readable, above all that is stored. The files survive a machine crash at once.

        Memtables are flushed first, without the interpreter's lock, because RocksDB would flush them with the lock
        held. Any error is final, as with `write`.
        """
        view, moved = self._views[family], IngestExternalFileOptions()
        moved.set_move_files(True)
        try:
            for file in new:
                file.finish()
            if view.property_int_value("rocksdb.num-entries-active-mem-table"):
                view.flush(True)
            if self._on_write is not None:
                self._on_write("finished")
            view.ingest_external_file([str(file.path) for file in new], moved)
        except Exception as error:
            raise wrap_error(self.path, error, "add files to") from error
        if self._on_write is not None:
            self._on_write("added")

    @staticmethod
    def drop_files(new: Iterable[SortedFile]) -> None:
        """Remove the files that were not added."""
        for file in new:
            file.path.unlink(missing_ok=True)

    def sync(self) -> None:
        """Sync the writes without `durable` to the disk. Any error is final, as with `write`."""
        try:
            self._sync()
        except Exception as error:
            raise wrap_error(self.path, error, "write") from error
        if self._on_write is not None:
            self._on_write("synced")

    def count_full_memtables(self, family: str) -> int:
        """Return how many memtables of a family are full and not in a file yet.

        From `options.DELAYING_MEMTABLES` on, RocksDB delays every write while rocksdict holds the interpreter's lock.
        """
        try:
            return int(self._views[family].property_int_value("rocksdb.num-immutable-mem-table"))
        except Exception as error:
            raise wrap_error(self.path, error, "read") from error

    def count_unmerged_files(self, family: str) -> int:
        """Return how many files of a family are not merged; from `options.DELAYING_FILES` on, writes are delayed."""
        try:
            return int(self._views[family].property_int_value("rocksdb.num-files-at-level0"))
        except Exception as error:
            raise wrap_error(self.path, error, "read") from error

    def compact(self, family: str, start: bytes, stop: bytes) -> None:
        """Free the space of removed keys, without the interpreter's lock."""
        try:
            self._views[family].compact_range(start, stop)
        except Exception as error:
            raise wrap_error(self.path, error, "compact") from error

    def checkpoint(self, path: Path) -> None:
        """Make a consistent copy of the store with hard links; open it with `read_only=True`.

        Memtables are flushed first, because that leaves the interpreter's lock free. A checkpoint would flush them
        with the lock held (0.2 s for 16 MiB, during which the whole broker stops).
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        maker = Checkpoint(self._db)
        try:
            for view in self._views.values():
                view.flush(True)
            maker.create_checkpoint(str(path))
            files.write_seal(path)
        except Exception as error:
            raise wrap_error(self.path, error, "make a checkpoint of") from error
        finally:
            del maker  # it would keep the lock file after close()

    # -- files and closing ---------------------------------------------------------------------------------------

    def list_files(self) -> list[FileRange]:
        """Return the key ranges of the store's files, the cheapest estimate of how keys are distributed."""
        return [
            FileRange(
                start=item["start_key"],
                end=item["end_key"],
                entries=item["num_entries"],
                nbytes=item["size"],
                level=item["level"],
            )
            for item in self._db.live_files()
            if item["start_key"] is not None and item["end_key"] is not None
        ]

    def close(self) -> None:
        """Close the store and note its final state in the witness. A failed write has already reported its error."""
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
            raise wrap_error(self.path, error, "close") from error
        finally:
            del db
            if not self._read_only:  # a read-only store has no lock file, and the broker keeps running
                gc.collect()  # a reference left in a cycle would keep the lock file
            if self._witness is not None:
                self._witness.close(sequence)


def remove_store(path: Path) -> None:
    """Remove a store or a checkpoint that is not open."""
    shutil.rmtree(path, ignore_errors=True)
