"""What `venus assess` said before the installation, held against what then happened: one line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from venus.figures import bytes_shown, seconds_shown


def held_against(forecast: Mapping[str, Any], *, rows: int, seconds: float, disk_bytes: int) -> str:
    """Return the line. The shop wrote meanwhile, so its rows may be others."""
    off = max(forecast["fill_seconds"] / seconds, seconds / forecast["fill_seconds"]) if seconds else 1.0
    said = f"{forecast['rows']:,} rows in {seconds_shown(forecast['fill_seconds'])}"
    bound = f"at most {bytes_shown(forecast['broker_bytes'])} at the broker"
    happened = f"it took {seconds_shown(seconds)} (factor {off:.1f}) for {rows:,} rows, {bytes_shown(disk_bytes)}"
    return f"forecast {said}, {bound}; {happened}"


def disk_of(folders: Iterable[Path]) -> int:
    """Return the bytes of the largest of these folders; files may go meanwhile."""
    return max((sum(_sizes(folder)) for folder in folders), default=0)


def _sizes(folder: Path) -> Iterable[int]:
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                yield (Path(root) / name).stat().st_size
            except FileNotFoundError:
                continue
