"""The broker's store in memory: after a crash of the process all writes remain, after a power loss the synced ones."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from venus.broker.store import keys
from venus.broker.store.reads import KeyCount
from venus.broker.store.rocks import FileRange, Store, StoreBatch
from venus.errors import StorageError

#: One change of a batch: family, first key, value or None, and the exclusive end of a range.
Change = tuple[str, bytes, bytes | None, bytes | None]


class Family:
    """One ordered column family."""

    __slots__ = ("order", "values")

    def __init__(self, order: list[bytes] | None = None, values: dict[bytes, bytes] | None = None) -> None:
        self.order = order or []
        self.values = values or {}

    def copy(self) -> Family:
        return Family(self.order[:], dict(self.values))

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self.values:
            if self.order and key > self.order[-1]:
                self.order.append(key)
            else:
                insort(self.order, key)
        self.values[key] = value

    def delete_range(self, start: bytes, stop: bytes) -> None:
        first = bisect_left(self.order, start)
        last = bisect_left(self.order, stop) if stop else len(self.order)
        for key in self.order[first:last]:
            del self.values[key]
        del self.order[first:last]

    def between(self, start: bytes, stop: bytes) -> list[bytes]:
        """Return the keys from `start` to before `stop`; an empty `stop` is the end."""
        first = bisect_left(self.order, start)
        return self.order[first : bisect_left(self.order, stop, first) if stop else len(self.order)]


Families = dict[str, Family]


def _carry_out(families: Families, changes: Sequence[Change]) -> None:
    """Apply the changes of a batch to the families."""
    for family, key, value, stop in changes:
        if stop is not None:
            families[family].delete_range(key, stop)
        elif value is not None:
            families[family].put(key, value)
        else:
            families[family].delete_range(key, key + b"\0")


class MemoryDisk:
    """A machine's disk for one store. A write fails after `fails_after` more have succeeded; None = none fails."""

    def __init__(self) -> None:
        self.families: Families = {name: Family() for name in keys.FAMILIES}
        self.fails_after: int | None = None
        self.flipped: bytes | None = None  # value of the log entry in which a bit was flipped
        self._base: Families = {name: Family() for name in keys.FAMILIES}
        self._written: list[list[Change]] = []  # batches since the base
        self._synced = 0  # number of these batches that are synced
        self.written = 0

    def write(self, changes: list[Change]) -> None:
        if self.fails_after is not None:
            self.fails_after -= 1
            if self.fails_after < 0:
                raise StorageError("cannot write: input/output error")
        _carry_out(self.families, changes)
        self._written.append(changes)
        self.written += len(changes)

    def sync(self) -> None:
        """Mark all writes as synced."""
        self._synced = len(self._written)

    def lose_power(self, random: Random) -> str:
        """Drop unsynced batches, except some that happened to reach the disk; describe the loss in words."""
        unsynced = len(self._written) - self._synced
        kept = random.choice((0, random.randint(0, unsynced)))
        for changes in self._written[: self._synced + kept]:
            _carry_out(self._base, changes)
        self._written.clear()
        self._synced = 0
        self.families = {name: family.copy() for name, family in self._base.items()}
        return "nothing" if kept == unsynced else "a part" if kept else "everything unsynced"

    def flip(self, random: Random) -> bool:
        """Flip a bit of a log entry; return False if no entry exists."""
        family = self.families[keys.RLOG]
        if not family.order:
            return False
        key = random.choice(family.order)
        value = bytearray(family.values[key])
        value[random.randrange(len(value))] ^= 1 << random.randrange(8)
        family.values[key] = self.flipped = bytes(value)
        return True


class MemoryBatch(StoreBatch):
    """Writes that are applied atomically."""

    __slots__ = ("changes",)

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def put(self, family: str, key: bytes, value: bytes) -> None:
        self.changes.append((family, key, value, None))

    def put_many(self, family: str, many_keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self.changes += [(family, key, value, None) for key, value in zip(many_keys, values, strict=True)]

    def delete(self, family: str, key: bytes) -> None:
        self.changes.append((family, key, None, None))

    def delete_range(self, family: str, start: bytes, stop: bytes) -> None:
        self.changes.append((family, start, None, stop))

    def __len__(self) -> int:
        return len(self.changes)

    @property
    def nbytes(self) -> int:
        return sum(len(key) + len(value or b"") for _, key, value, _ in self.changes)


class MemoryStore(Store):
    """The interface that the broker has to its store; an iterator sees the keys that exist when it begins."""

    def __init__(self, disk: MemoryDisk, families: Families | None = None) -> None:
        self.path = Path("/simulated/db")
        self._disk = disk
        self._checkpoint = families  # data of a frozen copy, which is only read
        self.checkpoints: dict[str, Families] = {}

    @property
    def _now(self) -> Families:
        """The data that this store reads: the disk's, or that of a frozen copy."""
        return self._checkpoint if self._checkpoint is not None else self._disk.families

    @property
    def sequence(self) -> int:
        return self._disk.written

    # -- writing ---------------------------------------------------------------------------------------------------

    def batch(self) -> StoreBatch:
        return MemoryBatch()

    def write(self, batch: StoreBatch, *, durable: bool) -> None:
        assert isinstance(batch, MemoryBatch)
        self._disk.write(batch.changes)
        if durable:
            self._disk.sync()

    def sync(self) -> None:
        self._disk.sync()

    def count_full_memtables(self, family: str) -> int:
        return 0

    def count_unmerged_files(self, family: str) -> int:
        return 0

    def compact(self, family: str, start: bytes, stop: bytes) -> None:
        pass

    def checkpoint(self, path: Path) -> None:
        self.checkpoints[path.name] = self.freeze()

    def freeze(self) -> Families:
        """Return a copy of all data."""
        return {name: family.copy() for name, family in self._now.items()}

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, family: str, key: bytes, *, fill_cache: bool = True) -> bytes | None:
        return self._now[family].values.get(key)

    def scan(
        self, family: str, start: bytes, stop: bytes, *, limit: int | None = None, fill_cache: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        held = self._now[family]
        found = [(key, held.values[key]) for key in held.between(start, stop)[:limit]]
        return iter(found)

    def read_range(
        self, family: str, start: bytes, stop: bytes, *, rows_max: int, bytes_max: int
    ) -> tuple[list[bytes], list[bytes], bool]:
        held = self._now[family]
        found = held.between(start, stop)
        values: list[bytes] = []
        nbytes = 0
        for key in found[:rows_max]:
            values.append(held.values[key])
            nbytes += len(values[-1])
            if nbytes >= bytes_max:
                break
        return found[: len(values)], values, len(values) == len(found)

    def read_values(
        self, family: str, start: bytes, last: tuple[bytes, bytes], *, rows_max: int, bytes_max: int
    ) -> tuple[list[bytes], bool]:
        _, values, done = self.read_range(family, start, last[0] + b"\0", rows_max=rows_max, bytes_max=bytes_max)
        return values, done

    def find_before(self, family: str, stop: bytes) -> tuple[bytes, bytes] | None:
        held = self._now[family]
        at = bisect_left(held.order, stop) if stop else len(held.order)
        return (held.order[at - 1], held.values[held.order[at - 1]]) if at else None

    def find_at_or_before(self, family: str, key: bytes) -> tuple[bytes, bytes] | None:
        held = self._now[family]
        at = bisect_right(held.order, key)
        return (held.order[at - 1], held.values[held.order[at - 1]]) if at else None

    def count_keys(self, family: str, start: bytes, stop: bytes, *, entries_max: int, marks_max: int) -> KeyCount:
        found = self._now[family].between(start, stop)
        counted, every = found[:entries_max], 1
        while len(counted[::every]) > marks_max:
            every *= 2
        return KeyCount(len(counted), list(counted[::every]), ended=len(counted) == len(found))

    def look_up(self, family: str, many_keys: Sequence[bytes]) -> dict[bytes, bytes]:
        held = self._now[family].values
        return {key: held[key] for key in many_keys if key in held}

    def list_files(self) -> list[FileRange]:
        return []

    def close(self) -> None:
        pass


def only_read(families: Families) -> MemoryStore:
    """Open a frozen copy."""
    return MemoryStore(MemoryDisk(), families)


class MemoryCheckpoints:
    """The checkpoints of one process; a restart loses them, like a crash that leaves them invalid."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def path(self, name: str) -> Path:
        return Path("/simulated/snapshots") / name

    def open_reader(self, name: str) -> Any:
        return _Open(only_read(self._store.checkpoints[name]))

    def drop(self, name: str) -> None:
        self._store.checkpoints.pop(name, None)

    def drop_others(self, names: Any) -> None:
        pass

    def close_all(self) -> None:
        pass


class _Open:
    """An open reader of a checkpoint."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def __enter__(self) -> MemoryStore:
        return self._store

    def __exit__(self, *_: object) -> None:
        pass
