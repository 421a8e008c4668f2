"""RocksDB's merges give way on a busy core: nobody waits for them (Linux alone).

Flushes do not: when memtables are full, RocksDB delays every write. Merges that get too little delay writes as well,
so the full data waits for them (snapshot/pacing.py), and without it there is little to merge.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

#: How much nicer than the process: a thread 10 nicer has a tenth of another one's share of a busy core.
NICER_MERGES = 10
_NICEST = 19
_TASKS = Path("/proc/self/task")
_MERGES = "rocksdb:low"


def merges_give_way() -> None:
    """Lower the priority of RocksDB's merges. They start with the first store of the process and serve every one."""
    with suppress(OSError):  # a system that hides threads leaves them as they are
        for task in _TASKS.iterdir():
            with suppress(OSError):  # it may have ended
                if (task / "comm").read_text().startswith(_MERGES):
                    _be_nicer(int(task.name), NICER_MERGES)


def _be_nicer(thread: int, by: int) -> None:
    """Set a thread's priority below that of the process; a system that forbids it leaves the thread as it is."""
    if sys.platform == "linux":  # elsewhere a priority is the whole process's
        with suppress(OSError):
            own = os.getpriority(os.PRIO_PROCESS, os.getpid())
            os.setpriority(os.PRIO_PROCESS, thread, min(_NICEST, own + by))
