"""RocksDB behind one class: the data of the broker on disk. Only this module knows rocksdict.

rocksdict 0.3.29 is used in raw mode and within narrow limits, because several of its calls are broken or unsafe
(tests/integration/engine/test_rocksdict_defects.py pins each). Iterators follow the rules of reads.py. There are no
iterate bounds and no `Snapshot` objects: a consistent view is a checkpoint. A write batch is used once. `write(sync)`
would hold the interpreter's lock during the fsync, so a durable write is `write` followed by `flush_wal(True)`.

On opening, a torn last record of the log is dropped, because it was never acknowledged, and any other damage is
refused. By default RocksDB silently drops everything after the first damaged record.

Merges give way on a busy core (Linux only), because nothing waits for them. Flushes keep their priority: RocksDB delays
every write while memtables are full. Merges that get too little time delay writes as well, so the full data waits for
them (snapshot/materialiser.py).
"""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    DBRecoveryMode,
    MemtableFactory,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
)

from venus.broker.store import files, keys
from venus.broker.store.files import raise_open_error, wrap_error
from venus.broker.store.reads import StoreReads
from venus.broker.store.witness import Witness
from venus.errors import Corruption

_OPEN_FILES_MAX = 256
_WAL_BYTES_MAX = 128 << 20
_MEMTABLES_MAX = 4
#: RocksDB begins a new message log, and a new manifest, after this many bytes, and keeps this many message logs.
#: Without limits both grow as long as the process lives, the manifest to 1 GiB, and each snapshot copies it.
_MESSAGES_BYTES_MAX, _MESSAGE_LOGS = 4 << 20, 4
_MANIFEST_BYTES_MAX = 8 << 20
#: RocksDB delays writes once one family has this many full memtables.
DELAYING_MEMTABLES = _MEMTABLES_MAX - 1
#: How many new files of `row` are merged at once. Each merge reads and writes the old files again, because with many
#: businesses every file spans them all; RocksDB's default of 4 takes 1.6 times the CPU. Writes are delayed 16 later.
_ROW_FILES_MERGED = 8
DELAYING_FILES, _FILES_STOP = 24, 40
#: The limits are higher in the other families: merges give way on a busy core, each snapshot adds a file to every
#: family, and a delayed write of the log delays every client.
_OTHER_FILES_SLOW, _OTHER_FILES_STOP = 48, 64


class MemoryBudget:
    """A shared budget for blocks and memtables, which RocksDB may not exceed."""

    def __init__(self, nbytes: int) -> None:
        self.cache = Cache(nbytes)
        self.memtable_bytes = max(nbytes // 2, 4 << 20)
        self.manager = WriteBufferManager.new_write_buffer_manager_with_cache(self.memtable_bytes, False, self.cache)


def store_options(memory: MemoryBudget) -> Options:
    """Return the options of a store as a whole."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_write_buffer_manager(memory.manager)
    options.set_max_open_files(_OPEN_FILES_MAX)
    options.set_max_total_wal_size(_WAL_BYTES_MAX)
    options.set_max_background_jobs(2)
    options.set_bytes_per_sync(1 << 20)
    options.set_keep_log_file_num(_MESSAGE_LOGS)
    options.set_max_log_file_size(_MESSAGES_BYTES_MAX)
    options.set_max_manifest_file_size(_MANIFEST_BYTES_MAX)
    options.set_paranoid_checks(True)
    # The vector memtable of `row` does not allow concurrent inserts, and there are at most two writers.
    options.set_allow_concurrent_memtable_write(False)
    return options


def family_options(name: str, memory: MemoryBudget) -> Options:
    """Return the options of one column family."""
    options = Options(raw_mode=True)
    table = BlockBasedOptions()
    table.set_block_cache(memory.cache)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    if name == keys.ROW:
        # A random key costs 2.4 us in a skip list, and 0.6 us in a vector that is sorted when it is flushed.
        # Rows are hardly ever looked up in memory (Store.look_up sorts once for a whole batch).
        options.set_memtable_factory(MemtableFactory.vector())
        table.set_bloom_filter(10, False)
        options.set_level_zero_file_num_compaction_trigger(_ROW_FILES_MERGED)
        options.set_level_zero_slowdown_writes_trigger(DELAYING_FILES)
        options.set_level_zero_stop_writes_trigger(_FILES_STOP)
    else:
        options.set_level_zero_slowdown_writes_trigger(_OTHER_FILES_SLOW)
        options.set_level_zero_stop_writes_trigger(_OTHER_FILES_STOP)
    options.set_allow_concurrent_memtable_write(False)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(memory.memtable_bytes // 2)
    options.set_max_write_buffer_number(_MEMTABLES_MAX)
    options.set_target_file_size_base(16 << 20)
    options.set_block_based_table_factory(table)
    return options


#: Added to the niceness of the process: a thread 10 nicer gets a tenth of another one's share of a busy core.
NICER_MERGES = 10
_NICEST = 19
_TASKS = Path("/proc/self/task")
_MERGES = "rocksdb:low"


def lower_merge_priority() -> None:
    """Lower the priority of RocksDB's merge threads, which start with the first store and serve all of the process."""
    with suppress(OSError):  # where threads are hidden or this is forbidden, priorities stay unchanged
        nice = min(_NICEST, os.getpriority(os.PRIO_PROCESS, os.getpid()) + NICER_MERGES)
        for task in _TASKS.iterdir():
            with suppress(OSError):  # it may have ended
                if (task / "comm").read_text().startswith(_MERGES):
                    os.setpriority(os.PRIO_PROCESS, int(task.name), nice)


KEPT = 256


class SyncTimes:
    """The durations of fsyncs: recent ones, and the running one.

    The syncing thread writes, any thread reads; times are in seconds of one monotonic clock.
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
    """The range of one file of the store; files of all column families look alike."""

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


class Store(StoreReads):
    """An ordered key-value store with four column families and atomic, durable batches."""

    def __init__(
        self, path: Path, *, cache_bytes: int = 48 << 20, read_only: bool = False, on_write: WriteHook | None = None
    ) -> None:
        self.path = path
        self._read_only = read_only
        self._on_write = on_write
        self.syncs = SyncTimes()
        memory = MemoryBudget(_CHECKPOINT_CACHE_BYTES if read_only else cache_bytes)
        chosen = store_options(memory)
        families = {name: family_options(name, memory) for name in keys.FAMILIES}
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
        if self._witness is not None:
            try:
                self._witness.check_sequence(self.sequence)
            except Corruption:
                self.close()
                raise
            self._sync()

    def _sync(self) -> None:
        """Bring what was written to the disk, and record it in the witness."""
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
        return int(self._db.property_int_value("rocksdb.min-log-number-to-keep"))

    # -- writing ---------------------------------------------------------------------------------------------

    def batch(self) -> StoreBatch:
        """Start a batch."""
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

    def sync(self) -> None:
        """Bring what was written without `durable` to the disk. Any error is final, as with `write`."""
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
        """Free the space of removed keys; the interpreter's lock is free meanwhile."""
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
        """Return the ranges of the files, the cheapest estimate of how keys are distributed."""
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
        """Close the store; the write that met an error of the disk has reported it."""
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
