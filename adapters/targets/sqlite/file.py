"""The file of a SQLite target: checks of its path, the lock of its only process, the holder of SQLite's write lock.

A path that cannot be a target is refused in one line, with the remedy, before SQLite opens it. This module never opens
the database itself: closing it would release the locks of every SQLite connection of this process. SQLite has no lock
for a process, so VENUS locks a small file beside the database; a killed process holds no lock.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from venus.adapters.dialects.sqlite.connection import VERSION_MIN, parse_file_url
from venus.errors import ConfigError, DatabaseUnavailable, NoSuchDatabase

_LOCKS = Path("/proc/locks")
#: The byte of the file FILE-shm that SQLite locks for a writer.
_WRITE_LOCK_BYTE = "120"


#: A test that finds a problem with a path, the message, and the remedy.
_PROBLEMS: tuple[tuple[Callable[[Path], bool], str, str], ...] = (
    (Path.is_symlink, "{file} is a symbolic link", "name {real} itself"),
    (Path.is_dir, "{file} is a directory", "name a file in it"),
    (lambda f: f.exists() and not f.is_file(), "{file} is not a regular file", "name another file"),
    (lambda f: f.parent.exists() and not f.parent.is_dir(), "{folder} is not a directory", "name another file"),
    (
        lambda f: f.parent.is_dir() and not os.access(f.parent, os.W_OK | os.X_OK),
        "{folder} cannot be written, and SQLite has files of its own beside the database",
        "let VENUS's user write there",
    ),
    (lambda f: f.is_file() and not os.access(f, os.R_OK | os.W_OK), "{file} cannot be written", "chmod u+rw {file}"),
)


def find_file(url: str, option: str) -> Path:
    """Return the absolute path that a URL names. Raises ConfigError or NoSuchDatabase if it cannot be a target."""
    file = parse_file_url(url, option).absolute()
    names = {"file": file, "folder": file.parent, "real": file.resolve()}
    for is_so, message, remedy in _PROBLEMS:
        if is_so(file):
            raise ConfigError(f"{option}: {message.format(**names)}", hint=remedy.format(**names))
    if not file.parent.is_dir():
        raise NoSuchDatabase(f"{option}: there is no directory {file.parent}", hint=f"make it: mkdir -p {file.parent}")
    return file


def version_problem(version: tuple[int, int, int]) -> str:
    """Return the reason why this version of SQLite cannot write a target; empty if it can. Pure."""
    needed = ".".join(map(str, VERSION_MIN))
    return "" if version >= VERSION_MIN else f"Python's SQLite is {'.'.join(map(str, version))}, VENUS needs {needed}"


class FileLock:
    """Lock that lets only one process work on a target. It ends with that process; the lock file contains its PID."""

    def __init__(self, file: Path, group: str) -> None:
        self._path = file.with_name(f"{file.name}-venus-{crc32(group.encode()):08x}")
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Try to lock; return whether this process has the lock. Raises DatabaseUnavailable for an unwritable file."""
        if self._descriptor is not None:
            return True
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, str(os.getpid()).encode())
        except BlockingIOError:
            self.release()
            return False
        except OSError as error:
            self.release()
            hint = "let VENUS's user write it, and make room on its disk"
            raise DatabaseUnavailable(f"{self._path}: {error.strerror}", hint=hint) from error
        return True

    def find_owner(self) -> str:
        """Return the process that had the lock last, as text; empty if there was none."""
        with suppress(OSError, ValueError):
            return _describe_process(str(int(self._path.read_text(encoding="ascii"))))
        return ""

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def find_writer(file: Path) -> str:
    """Return the process that holds SQLite's write lock, as text; empty if /proc/locks shows none."""
    with suppress(OSError):
        number = str(os.stat(f"{file}-shm").st_ino)
        for line in _LOCKS.read_text(encoding="ascii").splitlines():
            process = parse_writer(line, number)
            if process:
                return _describe_process(process)
    return ""


def parse_writer(line: str, inode: str) -> str:
    """Return the process in a line of /proc/locks about the write lock of this file; empty for other lines. Pure."""
    words = line.split()
    if len(words) != 8 or words[1] != "POSIX" or words[3] != "WRITE" or words[5].rpartition(":")[2] != inode:
        return ""
    holds = words[6].isdigit() and int(words[6]) <= int(_WRITE_LOCK_BYTE)
    holds = holds and (words[7] == "EOF" or int(words[7]) >= int(_WRITE_LOCK_BYTE))
    return words[4] if holds and int(words[4]) > 0 else ""


def _describe_process(process: str) -> str:
    """Return a process as text for messages: its number and, if readable, its program."""
    with suppress(OSError):
        program = Path(f"/proc/{process}/comm").read_text(encoding="utf-8", errors="replace").strip()
        return f"process {process} ({program})"
    return f"process {process}"
