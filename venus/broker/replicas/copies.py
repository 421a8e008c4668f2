"""Copies of a business, in pieces, that a leader sends to a replica that starts over.

The pieces come from a checkpoint, which is consistent: log up to the applied index, queue, full data and state. Keys
are sent without the business's number, which differs between stores. A checkpoint is kept until the replica has
everything, or has sent no request for a while: an interrupted copy continues after its last piece.

The receiver writes a mark in one batch with each piece, so the mark is correct after any crash.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from venus.broker.core import Core
from venus.broker.machine.business import Business
from venus.broker.store import keys
from venus.broker.store.rocks import Store, StoreBatch, remove_store
from venus.errors import Overloaded, ProtocolError, Unavailable

PIECE_BYTES = 1 << 20
_PIECE_ROWS_MAX = 16_384
_NUMBER_BYTES = 4
#: Maximum number of copies at a time: each prevents files from being deleted.
COPIES_MAX = 4
#: How long an unused copy is kept.
STANDS_S = 600.0
#: Family, and the part of a key before the number. An area is identified by its index, so the order never changes.
AREAS: tuple[tuple[str, bytes], ...] = (
    (keys.RLOG, b""),
    (keys.QUEUE, b""),
    (keys.ROW, b""),
    *((keys.STATE, prefix[:-_NUMBER_BYTES]) for prefix in keys.state_prefixes(0)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyMark:
    """Progress of an unfinished installation. `number` is the new business's; `copy` "" = the copy is unusable."""

    number: int
    copy: str = ""
    leader: str = ""  # the member that provides the copy
    area: int = 0
    after: str | None = None  # the last key received, in hexadecimal digits
    records: int = 0
    nbytes: int = 0

    @property
    def next_place(self) -> CopyPlace:
        """The place where the next piece begins."""
        return CopyPlace(area=self.area, after=None if self.after is None else bytes.fromhex(self.after))

    def with_piece(self, piece: CopyPiece) -> CopyMark:
        """Return the mark after one more piece was stored."""
        nbytes = sum(map(len, piece.keys)) + sum(map(len, piece.values))
        return replace(
            self,
            area=piece.area,
            after=piece.keys[-1].hex(),
            records=self.records + len(piece.keys),
            nbytes=self.nbytes + nbytes,
        )


def read_mark(store: Store, business: str) -> CopyMark | None:
    """Return the mark of a business; None = no installation is unfinished."""
    value = store.get(keys.STATE, keys.installing_key(business))
    return None if value is None else decode_mark(value)


def decode_mark(value: bytes) -> CopyMark:
    """Decode a mark."""
    return CopyMark(**json.loads(value))


def encode_mark(mark: CopyMark) -> bytes:
    """Encode a mark for the store."""
    return json.dumps(asdict(mark)).encode()


def put_mark(batch: StoreBatch, business: str, mark: CopyMark) -> None:
    """Add the mark of a business to a batch."""
    batch.put(keys.STATE, keys.installing_key(business), encode_mark(mark))


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlace:
    """Position in a copy: the next piece begins after this key of the area; None = at its beginning."""

    area: int = 0
    after: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyHeader:
    """Header of a copy: its name and the approximate number of its records."""

    copy: str
    records_expected: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPiece:
    """Keys, without area prefix and number, with their values."""

    area: int
    keys: tuple[bytes, ...]
    values: tuple[bytes, ...]

    @property
    def next_place(self) -> CopyPlace:
        """The place where the next piece begins."""
        return CopyPlace(area=self.area, after=self.keys[-1])


@dataclass(slots=True, eq=False)
class BusinessCopy:
    """A checkpoint of the store from which one business is sent to replicas."""

    name: str
    path: Path
    store: Store
    number: int
    log_stop: bytes
    records_expected: int
    users: int = 0
    used_at: float = 0.0

    def read_after(self, place: CopyPlace) -> CopyPiece | None:
        """Read the piece after a place; None = the end. Raises StorageError."""
        for area in range(place.area, len(AREAS)):
            family, prefix = AREAS[area]
            start = prefix + keys.number_prefix(self.number)
            stop = self.log_stop if family == keys.RLOG else keys.after_prefix(start)
            begun = area == place.area and place.after is not None
            first = start + (place.after or b"") + b"\0" if begun else start
            found, values, _ = self.store.read_range(
                family, first, stop, rows_max=_PIECE_ROWS_MAX, bytes_max=PIECE_BYTES
            )
            if found:
                return CopyPiece(area=area, keys=tuple(key[len(start) :] for key in found), values=tuple(values))
        return None


class CopyPool:
    """The copies of businesses that a broker keeps for its replicas. Thread-safe."""

    def __init__(self, core: Core, monotonic: Callable[[], float]) -> None:
        self._core, self._monotonic = core, monotonic
        self._lock = threading.Lock()
        self._copies: dict[str, BusinessCopy] = {}

    def acquire(self, business: Business, name: str) -> BusinessCopy:
        """Return the named copy or a new one, for use until `release`. Raises Overloaded, Unavailable, StorageError."""
        with self._lock:
            copy = self._copies.get(name)
            if copy is None or copy.number != business.number:
                self._make_room()
                copy = self._create(business)
                self._copies[copy.name] = copy
            copy.users += 1
            return copy

    def release(self, copy: BusinessCopy) -> None:
        """End the use of a copy, which is still kept for a while."""
        with self._lock:
            copy.users -= 1
            copy.used_at = self._monotonic()

    def active_copies(self) -> list[tuple[str, int]]:
        """Return the names of the copies, and how many replicas read each now."""
        with self._lock:
            return [(copy.name, copy.users) for copy in self._copies.values()]

    def remove_installed(self, name: str) -> None:
        """Remove a copy after its installation."""
        with self._lock:
            copy = self._copies.get(name)
            if copy is not None and not copy.users:
                self._remove(copy)

    def expire(self) -> None:
        """Remove copies that were unused for STANDS_S."""
        with self._lock:
            for copy in list(self._copies.values()):
                if not copy.users and self._monotonic() - copy.used_at > STANDS_S:
                    self._remove(copy)

    def close(self) -> None:
        """Remove every copy."""
        with self._lock:
            for copy in list(self._copies.values()):
                self._remove(copy)

    def _make_room(self) -> None:
        """Remove an unused copy if there are too many. Raises Overloaded if every copy is in use."""
        idle = [copy for copy in self._copies.values() if not copy.users]
        if len(self._copies) >= COPIES_MAX:
            if not idle:
                raise Overloaded(f"{COPIES_MAX} replicas receive copies already", hint="the replica retries by itself")
            self._remove(min(idle, key=lambda copy: copy.used_at))

    def _create(self, business: Business) -> BusinessCopy:
        """Create a copy of a business from a new checkpoint of the store."""
        core = self._core
        core.space.check_data(0)
        name = f"copy-{uuid.uuid4().hex}"
        path = core.data_dir / "snapshots" / name
        try:
            core.store.checkpoint(path)
            store = Store(path, read_only=True)
        except BaseException:
            remove_store(path)
            raise
        copy = BusinessCopy(name=name, path=path, store=store, number=business.number, log_stop=b"", records_expected=0)
        try:
            self._measure(copy, business)
        except BaseException:
            self._delete(copy)
            raise
        return copy

    @staticmethod
    def _measure(copy: BusinessCopy, business: Business) -> None:
        """Set the log end and the expected size of a copy. Raises Unavailable, StorageError."""
        record = copy.store.get(keys.STATE, keys.core_key(business.number))
        if record is None:
            raise Unavailable(f"{business.name} has nothing yet")
        applied = json.loads(record)["applied"]
        copy.log_stop = keys.log_key(business.number, applied + 1)
        rows = sum(
            figures.rows for figures in business.tables.copy().values()
        )  # the commit thread changes it meanwhile
        copy.records_expected = max(rows, 0) + max(applied + 1 - business.log.start, 0)

    def _remove(self, copy: BusinessCopy) -> None:
        """Remove a copy from the pool, and its files."""
        self._copies.pop(copy.name, None)
        self._delete(copy)

    @staticmethod
    def _delete(copy: BusinessCopy) -> None:
        """Close a copy and remove its files."""
        copy.store.close()
        remove_store(copy.path)


def read_pieces(copy: BusinessCopy, place: CopyPlace) -> Iterator[CopyPiece]:
    """Yield the pieces of a copy after a place."""
    while (piece := copy.read_after(place)) is not None:
        yield piece
        place = piece.next_place


def piece_keys(piece: CopyPiece, number: int) -> tuple[str, list[bytes]]:
    """Return the family of a piece and its keys for a business with this number. Raises ProtocolError."""
    if piece.area >= len(AREAS) or len(piece.keys) != len(piece.values) or not piece.keys:
        raise ProtocolError(f"a piece of a copy is of area {piece.area}, which this version does not know")
    family, prefix = AREAS[piece.area]
    start = prefix + keys.number_prefix(number)
    return family, [start + key for key in piece.keys]
