"""Who may read a broker's data: the user it runs as, nobody else. It holds every row of the source."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from venus.errors import ConfigError

logger = logging.getLogger(__name__)

#: What a process that makes such files takes from everybody else.
UMASK = 0o077


def make_private(path: Path) -> None:
    """Make a directory for data, or close an existing one to others.

    Raises ConfigError if it cannot be made, or is open and not ours.
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
    closed = sum(_close(each) for each in (path, *path.rglob("*")))
    logger.info("%s: closed to other users, %d files and directories", path, closed)


def _close(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid() or not mode & UMASK:
        return False
    path.chmod(mode & ~UMASK)
    return True
