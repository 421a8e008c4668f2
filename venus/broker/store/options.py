"""The options of RocksDB: memory, files and merges of each family, and the priority of merges.

The bodies of the log are in blob files, so merges of the log move keys, and bodies only from the oldest quarter of
these files. A blob file is removed once the log is trimmed beyond it.

Merges give way on a busy core (Linux only), because nothing waits for them. Flushes keep their priority: RocksDB
delays every write while memtables are full. Merges that get too little time delay writes as well, so the materialiser
waits for merges (snapshot/materialiser.py).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    MemtableFactory,
    Options,
    WriteBufferManager,
)

from venus.broker.store import keys

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
#: businesses every file spans them all; RocksDB's default of 4 takes 1.6 times the CPU. Writes are delayed from 16 more
#: such files on.
_ROW_FILES_MERGED = 8
DELAYING_FILES, _FILES_STOP = 24, 40
#: The limits are higher in the other families: merges give way on a busy core, each snapshot adds a file to every
#: family, and a delayed write of the log delays every client.
_OTHER_FILES_SLOW, _OTHER_FILES_STOP = 48, 64
#: Entries of the log from this size on are kept in blob files. If half of the oldest blob files is trimmed, the rest is
#: written again, so that a business which keeps little does not keep the space of all others. Each merge moves what is
#: left of the oldest quarter of the files; with all files (1.0) every merge would write all bodies again.
_BLOB_BYTES_MIN, _BLOB_GARBAGE, _BLOB_OLDEST = 4 << 10, 0.5, 0.25


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
        if name == keys.RLOG:
            _keep_in_blobs(options)
        options.set_level_zero_slowdown_writes_trigger(_OTHER_FILES_SLOW)
        options.set_level_zero_stop_writes_trigger(_OTHER_FILES_STOP)
    options.set_allow_concurrent_memtable_write(False)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(memory.memtable_bytes // 2)
    options.set_max_write_buffer_number(_MEMTABLES_MAX)
    options.set_target_file_size_base(16 << 20)
    options.set_block_based_table_factory(table)
    return options


def _keep_in_blobs(options: Options) -> None:
    """Let a column family keep its large values in blob files."""
    options.set_enable_blob_files(True)
    options.set_min_blob_size(_BLOB_BYTES_MIN)
    options.set_blob_compression_type(DBCompressionType.lz4())
    options.set_enable_blob_gc(True)
    options.set_blob_gc_age_cutoff(_BLOB_OLDEST)
    options.set_blob_gc_force_threshold(_BLOB_GARBAGE)


#: Added to the niceness of the process: on a busy core, a thread that is 10 nicer gets a tenth of the share of another
#: thread.
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
