"""The data directory: its free space, and who may read it.

After a real ENOSPC RocksDB never writes again, not even when space is back. So the broker stops accepting half messages
at a watermark; below it only the small writes that let running work finish are allowed.

The directory holds every row of the source, so only the user that runs the broker may read it.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

from venus.errors import ConfigError, StoreFull

FreeBytes = Callable[[Path], int]


def read_free_bytes(path: Path) -> int:
    """Return the bytes that an unprivileged process may still write."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


class FreeSpace:
    """The watermarks of one data directory."""

    def __init__(self, path: Path, free_bytes_min: int, probe: FreeBytes = read_free_bytes) -> None:
        self.path = path
        self.free_bytes_min = free_bytes_min
        self._probe = probe
        #: Whether the last half message was refused.
        self.is_refusing = False

    def read_free(self) -> int:
        """Return the free bytes now."""
        return self._probe(self.path)

    def has_room_for_data(self, nbytes: int = 0) -> bool:
        """Whether half messages and full data may be written."""
        return self.read_free() - nbytes >= self.free_bytes_min

    def check_data(self, nbytes: int) -> None:
        """Refuse a half message below the watermark."""
        free = self.read_free()
        self.is_refusing = free - nbytes < self.free_bytes_min
        if self.is_refusing:
            raise _full_error(self.path, free, self.free_bytes_min)

    def check_decision(self) -> None:
        """Refuse even decisions at a quarter of the watermark; they are small and let running work finish."""
        free = self.read_free()
        if free < self.free_bytes_min // 4:
            raise _full_error(self.path, free, self.free_bytes_min // 4)


def full_disk_message(path: Path, free: int, limit: int) -> str:
    """Return the sentence that half messages are refused, with the place and the way out."""
    return (
        f"too little free space: {path.resolve()} has only {free >> 20} MiB free, {limit >> 20} MiB are needed: "
        "writes are refused and capture waits; free some space there, then capture continues by itself"
    )


def _full_error(path: Path, free: int, limit: int) -> StoreFull:
    return StoreFull(
        f"{path.resolve()} has {free >> 20} MiB free, {limit >> 20} MiB are needed",
        hint="free some space, or lower broker.free_bytes_min; writes then continue by themselves",
    )


logger = logging.getLogger(__name__)

#: The permissions that all other users lose.
UMASK = 0o077


def make_private(path: Path) -> None:
    """Create a directory for data, or close an existing one to other users.

    Raises ConfigError if it cannot be created, or is open and belongs to another user.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"broker.data_dir {path} cannot be made: {error.strerror}",
            hint="Name a directory, in one that the user of this broker may write to.",
        ) from error
    found = path.stat()
    if not stat.S_IMODE(found.st_mode) & UMASK:
        return
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"{path} can be read by other users (mode {stat.S_IMODE(found.st_mode):04o}) and belongs to user "
            f"{found.st_uid}, not to the user {os.geteuid()} of this broker",
            hint=f"Run the broker as its owner, or: chown -R {os.geteuid()} {path}",
        )
    closed = sum(_make_file_private(each) for each in (path, *path.rglob("*")))
    logger.info("%s: closed to other users, %d files and directories", path, closed)


def _make_file_private(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid() or not mode & UMASK:
        return False
    path.chmod(mode & ~UMASK)
    return True
