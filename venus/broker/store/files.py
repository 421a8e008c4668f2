"""The files of a store, looked at before RocksDB opens them: what it would not notice by itself.

RocksDB checks the content of its tables and of whole log records. It does not notice that CURRENT is gone (it makes a
new, empty store over the old one), nor a log file that ends early (`logfile`). Which files must be there at least, the
witness says.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

from venus.broker.store import logfile
from venus.errors import Corruption

_MANIFEST = "MANIFEST-"
CORRUPT_HINT = (
    "keep {path} for a closer look, give the broker an empty data_dir, then `venus uninstall-triggers`, "
    "`venus install-triggers` and `venus migrate` for each target: the source still has every row"
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The file that names all others."""

    path: Path

    @property
    def number(self) -> int:
        """Newer ones have greater numbers."""
        return int(self.path.name.removeprefix(_MANIFEST))


def damaged(path: Path, what: str) -> Corruption:
    """Return the error that says what is wrong with a store, and the way out."""
    return Corruption(f"{path} is damaged: {what}", hint=CORRUPT_HINT.format(path=path))


def manifest(path: Path) -> Manifest | None:
    """Return the file that CURRENT names; None = there is no store yet. Raises Corruption."""
    current = path / "CURRENT"
    if not current.exists():
        left = next((found.name for found in sorted(path.glob("*")) if _has_data(found)), None)
        if left is not None:
            raise damaged(path, f"CURRENT is missing beside {left}")
        return None
    name = current.read_bytes().removesuffix(b"\n").decode("ascii", errors="replace")
    found = Manifest(path / name)
    if not name.removeprefix(_MANIFEST).isdigit() or not found.path.is_file():
        raise damaged(path, f"CURRENT names {name!r}, which is no manifest here")
    return found


def logs(path: Path) -> dict[int, int]:
    """Return the write-ahead logs: the size of each by its number."""
    found = {}
    for log in path.glob("*.log"):
        try:
            found[int(log.stem)] = log.stat().st_size
        except FileNotFoundError:
            continue  # RocksDB has just removed it
    return found


def check(path: Path) -> Manifest | None:
    """Check the outlines of a store's files; return its manifest, None if there is no store yet. Raises Corruption."""
    found = manifest(path)
    if found is not None:
        for log in (found.path, *sorted(path.glob("*.log"))):
            _check_log(path, log)
    return found


def _check_log(path: Path, log: Path) -> None:
    with log.open("rb") as file:
        if not log.stat().st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as content:
            try:
                logfile.end_of(content)
            except logfile.DamagedLog as error:
                raise damaged(path, f"{log.name}: {error}") from None


def _has_data(found: Path) -> bool:
    return found.suffix == ".sst" or (found.suffix == ".log" and found.stat().st_size > 0)
