"""Usage by processes: processor time and context switches, by part, between two readings of /proc."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

TICK = os.sysconf("SC_CLK_TCK")
_SWITCHES = re.compile(r"ctxt_switches:\s+(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Resources of one part: seconds of processor time, and context switches of its threads."""

    cpu_s: float
    switches: int

    @classmethod
    def of(cls, pids: Iterable[int]) -> Self:
        """Return the total usage of these processes so far; an ended process counts as 0."""
        cpu_s, switches = 0.0, 0
        for pid in pids:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                for task in Path(f"/proc/{pid}/task").iterdir():
                    switches += sum(map(int, _SWITCHES.findall((task / "status").read_text())))
            except OSError:
                continue
            cpu_s += (int(fields[11]) + int(fields[12])) / TICK
        return cls(cpu_s=cpu_s, switches=switches)

    def since(self, before: Self) -> Usage:
        """Return how much was used since an earlier reading."""
        return Usage(cpu_s=self.cpu_s - before.cpu_s, switches=self.switches - before.switches)


def read_usage(parts: Mapping[str, Iterable[int]]) -> dict[str, Usage]:
    """Read the usage of every part."""
    return {name: Usage.of(pids) for name, pids in parts.items()}


def usage_between(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> dict[str, Usage]:
    """Return the usage of every part between two readings."""
    return {name: usage.since(before[name]) for name, usage in after.items()}
