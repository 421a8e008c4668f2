"""Which error of RocksDB means what to the broker: damage, a disk that failed, or a folder that another one has."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from venus.broker.store import files
from venus.errors import ConfigError, Corruption, StorageError


def wrapped(path: Path, error: Exception, verb: str) -> StorageError:
    """Return what RocksDB said as an error of VENUS; `verb` is what was tried with the store at `path`."""
    text = str(error)
    if "Corruption" in text or "checksum mismatch" in text:
        return Corruption(f"cannot {verb} {path}: {text}", hint=files.CORRUPT_HINT.format(path=path))
    return StorageError(
        f"cannot {verb} {path}: {text}",
        hint="see to the disk, then start the broker again: nothing acknowledged is lost",
    )


def refuse_to_open(path: Path, error: Exception) -> NoReturn:
    """Raise what opening the store at `path` failed with: ConfigError if another broker has it, or StorageError."""
    if "lock" in str(error).lower() and "Corruption" not in str(error):
        raise ConfigError(
            f"broker.data_dir {path.parent.resolve()} is in use by another broker",
            hint="Stop the other broker, or give this one a data_dir of its own.",
        ) from error
    raise wrapped(path, error, "open") from error
