"""The files of snapshots: opened once for all who read them, removed when nobody does."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from venus.broker.store import rocks as stores
from venus.broker.store.rocks import Store
from venus.errors import SnapshotExpired


@dataclass(slots=True, eq=False)
class _Reader:
    store: Store
    users: int = 0


class Checkpoints:
    """The checkpoints in one directory, by name; thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._readers: dict[str, _Reader] = {}
        self._going: set[str] = set()  # dropped, and not removed yet

    def path(self, name: str) -> Path:
        """Return where a checkpoint lies, or will."""
        return self._directory / name

    @contextmanager
    def reading(self, name: str) -> Iterator[Store]:
        """Open a checkpoint; it stays open for the next one who reads it.

        Raises SnapshotExpired if it was dropped: whoever asked for it did not know yet that its last lease has ended.
        """
        with self._lock:
            reader = self._readers.get(name)
            if name in self._going or (reader is None and not self.path(name).is_dir()):
                raise SnapshotExpired("the snapshot was closed meanwhile", hint="open a new one and load again")
            if reader is None:
                reader = self._readers[name] = _Reader(Store(self.path(name), read_only=True))
            reader.users += 1
        try:
            yield reader.store
        finally:
            with self._lock:
                reader.users -= 1
                last = name in self._going and reader.users == 0
            if last:
                self._remove(name, reader)

    def drop(self, name: str) -> None:
        """Remove a checkpoint as soon as nobody reads it."""
        with self._lock:
            self._going.add(name)
            reader = self._readers.get(name)
            if reader is not None and reader.users:
                return  # the one who reads closes it
        self._remove(name, reader)

    def drop_others(self, names: Set[str]) -> None:
        """Remove what is here and has none of these names."""
        if self._directory.is_dir():
            for found in self._directory.iterdir():
                if found.name not in names:
                    stores.remove(found)

    def close_all(self) -> None:
        """Close what is open; the files stay."""
        with self._lock:
            readers, self._readers = list(self._readers.values()), {}
        for reader in readers:
            reader.store.close()

    def _remove(self, name: str, reader: _Reader | None) -> None:
        with self._lock:
            self._readers.pop(name, None)
        if reader is not None:
            reader.store.close()
        stores.remove(self.path(name))
        with self._lock:
            self._going.discard(name)
