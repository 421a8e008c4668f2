"""What processes use: processor time and context switches, by part, between two looks at /proc."""

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
        """Look at the processes of a part; one that has ended counts for nothing."""
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
        """Return what was used between the two."""
        return Usage(cpu_s=self.cpu_s - before.cpu_s, switches=self.switches - before.switches)


def look(parts: Mapping[str, Iterable[int]]) -> dict[str, Usage]:
    """Look at every part."""
    return {name: Usage.of(pids) for name, pids in parts.items()}


def between(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> dict[str, Usage]:
    """Return what every part has used between two looks."""
    return {name: usage.since(before[name]) for name, usage in after.items()}
