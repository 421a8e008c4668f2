"""A witness beside a store: it records how much of the store is on disk, so that an older state is detected.

A file that is cut off at the end of a record, or missing as a whole, looks like a store that never had more. So the
durable state is noted in a separate file: RocksDB's sequence number (it counts every key ever written), the bytes of
the manifest, the numbers and sizes of the write-ahead logs. The note is written after the fsync of what it describes
and is not synced itself: after a power failure it may be older than the store, never newer.

Notes are written alternately to two slots, so a torn or damaged note leaves the previous one intact. A store without a
witness (of an older VENUS) is accepted as it is, and gets a witness.
"""

from __future__ import annotations

import json
import logging
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from venus.broker.store import files

logger = logging.getLogger(__name__)

#: The interval of checks for a new manifest; whether the manifest has grown is checked with each fsync.
LOOK_EVERY_S = 1.0
_SLOT_BYTES = 4096
_FIXED = struct.Struct(">QQQH")  # digest of what follows, generation, sequence number, bytes of the JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessedFiles:
    """The state of the manifest and of the needed logs on disk; sizes of closed logs only."""

    manifest: int
    nbytes: int
    digest: int
    logs: tuple[tuple[int, int], ...]

    def encode(self) -> bytes:
        """Encode the state of the files as JSON."""
        return json.dumps([self.manifest, self.nbytes, self.digest, self.logs], separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessNote:
    """One note of the witness: the sequence number and the files that were on disk."""

    generation: int
    sequence: int
    files: WitnessedFiles


class Witness:
    """The witness of one store; only the thread that makes writes durable uses it."""

    def __init__(self, store: Path, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._monotonic = monotonic
        self._looked_at = float("-inf")
        self._content = b""  # the files in a note; empty until they were read
        self._hash = xxhash.xxh3_64()
        self._hashed = self._hashed_of = 0
        self._manifest = store
        self._last = read_latest(store)
        self._generation = self._last.generation if self._last is not None else 0
        self._fd = -1

    def check_files(self) -> None:
        """Raise Corruption if the files are damaged, or older than the last note says; the store is not open yet."""
        check_files(self._store, self._last)

    def check_sequence(self, sequence: int) -> None:
        """Raise Corruption if an open store has fewer writes than the last note says."""
        check_sequence(self._store, self._last, sequence)

    def read_files(self, needed_from: Callable[[], int]) -> None:
        """Read manifest and logs if the manifest has grown or a second is over, for the note after the next fsync.

        `needed_from` returns the number of the oldest log that is still needed.
        """
        now = self._monotonic()
        if now - self._looked_at < LOOK_EVERY_S and not self._has_grown():
            return
        self._looked_at = now
        found = files.find_manifest(self._store)
        assert found is not None, "an open store has a manifest"
        self._read_manifest(found)
        first = (
            needed_from()
        )  # after the manifest: a log that is no longer needed is removed only after the manifest has grown
        logs = sorted(entry for entry in files.list_logs(self._store).items() if entry[0] >= first)
        closed = (*logs[:-1], *((number, 0) for number, _ in logs[-1:]))
        self._set_content(found, closed)

    def _set_content(self, found: files.StoreManifest, logs: tuple[tuple[int, int], ...]) -> None:
        """Keep the state of the files for the next notes, encoded once: many notes share it."""
        said = WitnessedFiles(manifest=found.number, nbytes=self._hashed, digest=self._hash.intdigest(), logs=logs)
        self._content = said.encode()

    def _has_grown(self) -> bool:
        """Return whether the manifest has changed since it was last read."""
        try:
            return os.stat(self._manifest).st_size != self._hashed
        except FileNotFoundError:
            return True

    def write_note(self, sequence: int) -> None:
        """Write a note: everything up to this sequence number is on disk."""
        content = self._content
        if not content:
            return
        self._generation += 1
        body = _FIXED.pack(0, self._generation, sequence, len(content))[8:] + content
        if len(body) + 8 > _SLOT_BYTES:
            return  # there are never that many logs; the previous note stays true
        if self._fd < 0:
            self._fd = os.open(witness_path(self._store), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        slot = xxhash.xxh3_64_intdigest(body).to_bytes(8, "big") + body
        os.pwrite(self._fd, slot, self._generation % 2 * _SLOT_BYTES)

    def close(self, sequence: int | None) -> None:
        """Write the last note of a closed store; `sequence` None = closing failed, so nothing is noted."""
        found = files.find_manifest(self._store) if sequence is not None and self._content else None
        if found is not None and sequence is not None:
            self._read_manifest(found)
            self._set_content(found, ())
            self.write_note(sequence)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_manifest(self, found: files.StoreManifest) -> None:
        """Sync the new part of the manifest to the disk, and add it to the digest."""
        if self._hashed_of != found.number:
            self._hash, self._hashed, self._hashed_of = xxhash.xxh3_64(), 0, found.number
            self._manifest = found.path
        with found.path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > self._hashed:
                file.seek(self._hashed)
                more = file.read()
                os.fsync(file.fileno())
                self._hash.update(more)
                self._hashed += len(more)


def witness_path(store: Path) -> Path:
    """Return the path of the witness of a store."""
    return store.with_name(f"{store.name}.witness")


def read_latest(store: Path) -> WitnessNote | None:
    """Return the newest intact note."""
    try:
        content = witness_path(store).read_bytes()
    except FileNotFoundError:
        return None
    found = [note for at in (0, _SLOT_BYTES) if (note := _decode_note(content[at : at + _SLOT_BYTES])) is not None]
    if not found:
        logger.warning("%s is not readable: cannot check whether the store is the newest one", witness_path(store))
    return max(found, key=lambda note: note.generation, default=None)


def _decode_note(slot: bytes) -> WitnessNote | None:
    if len(slot) < _FIXED.size:
        return None
    digest, generation, sequence, size = _FIXED.unpack_from(slot)
    end = _FIXED.size + size
    if end > len(slot) or xxhash.xxh3_64_intdigest(slot[8:end]) != digest:
        return None
    number, nbytes, of_manifest, logs = json.loads(slot[_FIXED.size : end])
    known = WitnessedFiles(
        manifest=number, nbytes=nbytes, digest=of_manifest, logs=tuple((n, size) for n, size in logs)
    )
    return WitnessNote(generation=generation, sequence=sequence, files=known)


def check_files(store: Path, note: WitnessNote | None) -> None:
    """Raise Corruption if the files of a store are damaged, or older than a note of its witness says."""
    found = files.check_structure(store)
    if note is None:
        return
    if found is None:
        raise files.damage_error(store, "it is empty, but its witness has a record of data")
    if found.number < note.files.manifest:
        raise files.damage_error(
            store, f"CURRENT names {found.path.name}, there was MANIFEST-{note.files.manifest:06d}"
        )
    if found.number > note.files.manifest:
        return  # RocksDB has begun a new one with the whole content of the old one
    _check_manifest(store, found, note.files)


def _check_manifest(store: Path, found: files.StoreManifest, known: WitnessedFiles) -> None:
    """Raise Corruption if the manifest or a log is shorter than the note says, or differs."""
    content = found.path.read_bytes()
    if len(content) < known.nbytes:
        raise files.damage_error(store, f"{found.path.name} has {len(content)} bytes, it had {known.nbytes}")
    if xxhash.xxh3_64_intdigest(content[: known.nbytes]) != known.digest:
        raise files.damage_error(store, f"{found.path.name} differs from what was written")
    if len(content) > known.nbytes:
        return  # a table was written since, so its logs may be gone
    logs = files.list_logs(store)
    for number, size in known.logs:
        if logs.get(number, -1) < size:
            state = f"has {logs[number]} bytes, it had {size}" if number in logs else "is missing"
            raise files.damage_error(store, f"{number:06d}.log {state}")


def check_sequence(store: Path, note: WitnessNote | None, sequence: int) -> None:
    """Raise Corruption if an open store has fewer writes than a note of its witness says."""
    if note is not None and sequence < note.sequence:
        raise files.damage_error(
            store, f"it ends at write {sequence}, write {note.sequence} was on disk: the end is missing"
        )
