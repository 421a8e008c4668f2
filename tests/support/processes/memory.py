"""How much memory this process has had at its highest."""

from __future__ import annotations

import re
from pathlib import Path


def peak_bytes() -> int:
    """Return the high-water mark of this program's resident memory.

    Not getrusage(): its figure survives exec, so a program that a large test process starts would begin with that
    process's memory.
    """
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
