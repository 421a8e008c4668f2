"""The peak memory of this process."""

from __future__ import annotations

import re
from pathlib import Path


def peak_bytes() -> int:
    """Return the high-water mark of this program's resident memory.

    getrusage() does not fit: its value survives exec, so a program started by a large test process would begin with
    that process's memory.
    """
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
