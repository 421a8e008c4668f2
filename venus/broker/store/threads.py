"""RocksDB's merges give way on a busy core: nobody waits for them (Linux alone).

Flushes do not: when memtables are full, RocksDB delays every write. Merges that get too little delay writes as well,
so the full data waits for them (snapshot/pacing.py), and without it there is little to merge.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

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
