"""The seal of a checkpoint: what its files were when it was made.

A checkpoint is opened again after a restart of the broker, and a loader would be served from it. Its tables are
checked by RocksDB, block by block; the files that say which tables there are, by the seal.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import xxhash

NAME = "SEAL"


def put(path: Path) -> None:
    """Seal a checkpoint."""
    body = json.dumps(_content(path), sort_keys=True).encode()
    with (path / NAME).open("wb") as file:
        file.write(xxhash.xxh3_128_digest(body) + body)
        file.flush()
        os.fsync(file.fileno())


def broken(path: Path) -> str:
    """Return what is wrong with a checkpoint's files, or an empty string."""
    try:
        stored = (path / NAME).read_bytes()
    except FileNotFoundError:
        return "it has no seal"
    if xxhash.xxh3_128_digest(stored[16:]) != stored[:16]:
        return "its seal is damaged"
    sealed, found = json.loads(stored[16:]), _content(path)
    for name, was in sealed.items():
        if name not in found:
            return f"{name} is missing"
        if found[name] != was:
            return f"{name} is not what was written"
    return ""


def _content(path: Path) -> dict[str, str]:
    """Return the size of each table, and the digest of each other file that RocksDB reads to find them."""
    found = {}
    for file in path.iterdir():
        if file.suffix == ".sst":
            found[file.name] = str(file.stat().st_size)
        elif file.suffix == ".log" or file.name == "CURRENT" or file.name.startswith("MANIFEST-"):
            found[file.name] = xxhash.xxh3_128_hexdigest(file.read_bytes())
    return found
