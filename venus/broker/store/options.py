"""How RocksDB is set up: memory, priority of its threads, and each column family. Only rocks.py also knows rocksdict.

Merges give way on a busy core (Linux only), because nothing waits for them. Flushes keep their priority: RocksDB delays
every write while memtables are full. Merges that get too little time delay writes as well, so the full data waits for
them (snapshot/pacing.py).
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
#: RocksDB begins another message log, and another manifest, behind so many bytes; so many message logs are kept.
#: Without this both grow for as long as the process lives, the manifest to 1 GiB, and each snapshot has a copy of it.
_MESSAGES_BYTES_MAX, _MESSAGE_LOGS = 4 << 20, 4
_MANIFEST_BYTES_MAX = 8 << 20
#: From so many full memtables of one family on, RocksDB delays writes.
DELAYING_MEMTABLES = _MEMTABLES_MAX - 1
#: So many new files of `row` are merged with the old ones together, which are read and written again each time: with
#: many businesses each file spans them all. RocksDB's 4 took 1.6 times the CPU of that. Writes are delayed 16 later.
_ROW_FILES_MERGED = 8
DELAYING_FILES, _FILES_STOP = 24, 40
#: Where nobody looks at them, later: merges give way (threads.py), each snapshot leaves a file in every family, and a
#: delayed write of the log holds up everybody.
_OTHER_FILES_SLOW, _OTHER_FILES_STOP = 48, 64


class Memory:
    """One budget for blocks and memtables: RocksDB may not grow beyond it."""

    def __init__(self, nbytes: int) -> None:
        self.cache = Cache(nbytes)
        self.memtable_bytes = max(nbytes // 2, 4 << 20)
        self.manager = WriteBufferManager.new_write_buffer_manager_with_cache(self.memtable_bytes, False, self.cache)


def of_store(memory: Memory) -> Options:
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
    # The vector memtable of `row` does not allow concurrent inserts, and there are two writers at most.
    options.set_allow_concurrent_memtable_write(False)
    return options


def of_family(name: str, memory: Memory) -> Options:
    """Return the options of one column family."""
    options = Options(raw_mode=True)
    table = BlockBasedOptions()
    table.set_block_cache(memory.cache)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    if name == keys.ROW:
        # Random keys cost 2.4 us each in a skip list and 0.6 us in a vector that is sorted when it is flushed;
        # rows are hardly ever looked up in memory (Store.look_up sorts once for a whole batch).
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


#: How much nicer than the process: a thread 10 nicer has a tenth of another one's share of a busy core.
NICER_MERGES = 10
_NICEST = 19
_TASKS = Path("/proc/self/task")
_MERGES = "rocksdb:low"


def merges_give_way() -> None:
    """Lower the priority of RocksDB's merges. They start with the first store of the process and serve every one."""
    with suppress(OSError):  # where threads are hidden, or this is forbidden, they stay as they are
        nice = min(_NICEST, os.getpriority(os.PRIO_PROCESS, os.getpid()) + NICER_MERGES)
        for task in _TASKS.iterdir():
            with suppress(OSError):  # it may have ended
                if (task / "comm").read_text().startswith(_MERGES):
                    os.setpriority(os.PRIO_PROCESS, int(task.name), nice)
