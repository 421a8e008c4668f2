"""The files of a data directory: free space, privacy, checks before RocksDB opens them, seals, and errors of damage.

RocksDB checks the content of its tables and of whole log records. It does not notice that the file CURRENT is missing
(it makes a new, empty store over the old one), nor that a log file ends early. The witness (witness.py) says which
files must exist at least.

MANIFEST and write-ahead log consist of blocks of 32 KiB, which hold records of a checksum, a length, a type and a
payload. RocksDB treats a record whose length exceeds the file as torn, and a record type that only recycled files have
as a left-over. In both cases RocksDB silently stops reading, so one damaged bit drops a record or everything after it.
`find_end` distinguishes such damage from a record that was really torn.

A checkpoint is opened again after a restart of the broker, and loaders read from it. RocksDB checks its tables block by
block; the seal covers the files that name the tables.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import xxhash

from venus.errors import ConfigError, Corruption, StorageError, StoreFull

FreeBytes = Callable[[Path], int]


def read_free_bytes(path: Path) -> int:
    """Return the bytes that an unprivileged process may still write."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


class FreeSpace:
    """Checks the free space of a data directory against the minimum that must stay free."""

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
        """Raise StoreFull if writing `nbytes` of data would leave less free space than the minimum."""
        free = self.read_free()
        self.is_refusing = free - nbytes < self.free_bytes_min
        if self.is_refusing:
            raise _full_error(self.path, free, self.free_bytes_min)

    def check_decision(self) -> None:
        """Raise StoreFull below a quarter of the minimum only: decisions are small and let running work finish."""
        free = self.read_free()
        if free < self.free_bytes_min // 4:
            raise _full_error(self.path, free, self.free_bytes_min // 4)


def full_disk_message(path: Path, free: int, limit: int) -> str:
    """Return the message that writes are refused for lack of free space, with the directory and the way out."""
    return (
        f"too little free space: {path.resolve()} has only {free >> 20} MiB free, {limit >> 20} MiB are needed: "
        "writes are refused and capture waits; free some space there, then capture continues by itself"
    )


def _full_error(path: Path, free: int, limit: int) -> StoreFull:
    """Return the error for a write that needs more free space."""
    return StoreFull(
        f"{path.resolve()} has {free >> 20} MiB free, {limit >> 20} MiB are needed",
        hint="free some space, or lower broker.free_bytes_min; writes then continue by themselves",
    )


logger = logging.getLogger(__name__)

#: The permissions that all other users lose.
UMASK = 0o077


def make_private(path: Path) -> None:
    """Create a data directory that only its owner can access, or close an existing one to other users.

    Raises ConfigError if the directory cannot be created, or is open to others and belongs to another user.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"broker.data_dir {path} cannot be created: {error.strerror}",
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
    """Remove other users' permissions on a file; return False if there was nothing to do."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid() or not mode & UMASK:
        return False
    path.chmod(mode & ~UMASK)
    return True


_MANIFEST = "MANIFEST-"
CORRUPT_HINT = (
    "keep {path} for a closer look, give the broker an empty data_dir, then `venus uninstall-triggers`, "
    "`venus install-triggers` and `venus migrate` for each target: the source still has every row"
)


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """RocksDB's manifest, the file that names all other files of a store."""

    path: Path

    @property
    def number(self) -> int:
        """The number in the manifest's name; newer manifests have greater numbers."""
        return int(self.path.name.removeprefix(_MANIFEST))


def damage_error(path: Path, what: str) -> Corruption:
    """Return the error for a damaged store, with the way out."""
    return Corruption(f"{path} is damaged: {what}", hint=CORRUPT_HINT.format(path=path))


def find_manifest(path: Path) -> StoreManifest | None:
    """Return the manifest that CURRENT names; None = there is no store yet. Raises Corruption."""
    current = path / "CURRENT"
    if not current.exists():
        left = next((found.name for found in sorted(path.glob("*")) if _has_data(found)), None)
        if left is not None:
            raise damage_error(path, f"CURRENT is missing beside {left}")
        return None
    name = current.read_bytes().removesuffix(b"\n").decode("ascii", errors="replace")
    found = StoreManifest(path / name)
    if not name.removeprefix(_MANIFEST).isdigit() or not found.path.is_file():
        raise damage_error(path, f"CURRENT names {name!r}, which is no manifest here")
    return found


def list_logs(path: Path) -> dict[int, int]:
    """Return the sizes of the write-ahead logs by number."""
    found = {}
    for log in path.glob("*.log"):
        try:
            found[int(log.stem)] = log.stat().st_size
        except FileNotFoundError:
            continue  # RocksDB has just removed it
    return found


def check_structure(path: Path) -> StoreManifest | None:
    """Check the structure of a store's files; return its manifest, None if there is no store. Raises Corruption."""
    found = find_manifest(path)
    if found is not None:
        for log in (found.path, *sorted(path.glob("*.log"))):
            _check_log(path, log)
    return found


def _check_log(path: Path, log: Path) -> None:
    """Raise Corruption if a log file has a record that RocksDB cannot have written."""
    with log.open("rb") as file:
        if not log.stat().st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as content:
            try:
                find_end(content)
            except DamagedLog as error:
                raise damage_error(path, f"{log.name}: {error}") from None


def _has_data(found: Path) -> bool:
    """Return whether a file of the store has data."""
    return found.suffix in (".sst", ".blob") or (found.suffix == ".log" and found.stat().st_size > 0)


BLOCK_BYTES = 1 << 15
_HEADER = struct.Struct("<IHB")
#: Full, first, middle, last.
_TYPES = frozenset({1, 2, 3, 4})
_MASK_DELTA = 0xA282EAD8


class DamagedLog(Exception):
    """A log file has a record that RocksDB cannot have written."""


def find_end(content: bytes | memoryview) -> int:
    """Return where the last complete record of a log ends; the rest was not completely written. Raises DamagedLog."""
    size, at = len(content), 0
    read = _HEADER.unpack_from
    while True:
        block_end = (at // BLOCK_BYTES + 1) * BLOCK_BYTES
        if block_end - at < _HEADER.size:
            at = block_end  # a trailer, too short for a record
            continue
        if size - at < _HEADER.size:
            return min(at, size)
        checksum, length, kind = read(content, at)
        end = at + _HEADER.size + length
        if kind not in _TYPES:
            if not any(content[at:]):
                return at  # a file system may give a file its size before its content
            raise DamagedLog(f"the record at byte {at} has a type that is never written, {kind}")
        if end > block_end:
            raise DamagedLog(f"the record at byte {at} has a length that no block holds, {length}")
        if end > size:
            _check_torn(content, at, checksum, kind)
            return at
        at = end


def _check_torn(content: bytes | memoryview, at: int, checksum: int, kind: int) -> None:
    """Raise DamagedLog if a record only looks torn because its length is damaged: tries its checksum at each length."""
    crc = _step_crc(0xFFFFFFFF, kind)
    for position in range(at + _HEADER.size, len(content) + 1):
        if _mask_crc(crc ^ 0xFFFFFFFF) == checksum:
            raise DamagedLog(f"the record at byte {at} has a damaged length")
        if position < len(content):
            crc = _step_crc(crc, content[position])


def _mask_crc(crc: int) -> int:
    """Return a checksum in the masked form in which RocksDB stores it."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def _step_crc(crc: int, byte: int) -> int:
    """Return a CRC-32C checksum after one more byte."""
    return (crc >> 8) ^ _CRC32C[(crc ^ byte) & 0xFF]


def _build_crc_table() -> tuple[int, ...]:
    """Return the CRC-32C checksum of each byte value."""
    found = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        found.append(crc)
    return tuple(found)


_CRC32C = _build_crc_table()


NAME = "SEAL"


def write_seal(path: Path) -> None:
    """Write the seal of a checkpoint: the sizes and digests of its files."""
    body = json.dumps(_read_content(path), sort_keys=True).encode()
    with (path / NAME).open("wb") as file:
        file.write(xxhash.xxh3_128_digest(body) + body)
        file.flush()
        os.fsync(file.fileno())


def find_broken_seal(path: Path) -> str:
    """Compare the files of a checkpoint with its seal; return the fault, or an empty string."""
    try:
        stored = (path / NAME).read_bytes()
    except FileNotFoundError:
        return "it has no seal"
    if xxhash.xxh3_128_digest(stored[16:]) != stored[:16]:
        return "its seal is damaged"
    sealed, found = json.loads(stored[16:]), _read_content(path)
    for name, was in sealed.items():
        if name not in found:
            return f"{name} is missing"
        if found[name] != was:
            return f"{name} differs from what was written"
    return ""


def _read_content(path: Path) -> dict[str, str]:
    """Return the size of each data file, and the digest of each other file that RocksDB reads to find them."""
    found = {}
    for file in path.iterdir():
        if file.suffix in (".sst", ".blob"):
            found[file.name] = str(file.stat().st_size)
        elif file.suffix == ".log" or file.name == "CURRENT" or file.name.startswith("MANIFEST-"):
            found[file.name] = xxhash.xxh3_128_hexdigest(file.read_bytes())
    return found


def wrap_error(path: Path, error: Exception, verb: str) -> StorageError:
    """Return an error of RocksDB as an error of VENUS; `verb` names the action that failed at the store at `path`."""
    text = str(error)
    if "Corruption" in text or "checksum mismatch" in text:
        return Corruption(f"cannot {verb} {path}: {text}", hint=CORRUPT_HINT.format(path=path))
    return StorageError(
        f"cannot {verb} {path}: {text}",
        hint="repair the disk, then start the broker again: nothing acknowledged is lost",
    )


def raise_open_error(path: Path, error: Exception) -> NoReturn:
    """Raise the error of opening the store at `path`: ConfigError if another broker uses it, or StorageError."""
    if "lock" in str(error).lower() and "Corruption" not in str(error):
        raise ConfigError(
            f"broker.data_dir {path.parent.resolve()} is in use by another broker",
            hint="Stop the other broker, or give this one a data_dir of its own.",
        ) from error
    raise wrap_error(path, error, "open") from error
