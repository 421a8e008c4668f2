"""A business as it lies in a store, in pieces: what a leader sends to a replica that starts over.

The pieces come from a checkpoint, which is consistent: log up to what is applied, queue, full data and state. Keys
travel without the business's number, which is another one in each store.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from venus.broker.core import Core
from venus.broker.machine.business import Business
from venus.broker.store import keys
from venus.broker.store import rocks as stores
from venus.broker.store.rocks import Store
from venus.errors import ProtocolError, Unavailable

PIECE_BYTES = 1 << 20
_PIECE_ROWS_MAX = 16_384
_NUMBER_BYTES = 4
#: Family, and what stands before the number in a key; an area is named by its place here, so nothing is ever moved.
AREAS: tuple[tuple[str, bytes], ...] = (
    (keys.RLOG, b""),
    (keys.QUEUE, b""),
    (keys.ROW, b""),
    *((keys.STATE, prefix[:-_NUMBER_BYTES]) for prefix in keys.state_prefixes(0)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Keys without area and number, with their values."""

    area: int
    keys: tuple[bytes, ...]
    values: tuple[bytes, ...]


def pieces(core: Core, business: Business) -> Generator[Piece, None, None]:
    """Copy a business from a checkpoint that ends with the iterator. Raises Unavailable, StorageError."""
    core.space.check_data(0)
    path = core.data_dir / "snapshots" / f"copy-{uuid.uuid4().hex}"
    core.store.checkpoint(path)
    try:
        store = Store(path, read_only=True)
        try:
            yield from _read(store, business)
        finally:
            store.close()
    finally:
        stores.remove(path)


def _read(store: Store, business: Business) -> Iterator[Piece]:
    record = store.get(keys.STATE, keys.core_key(business.number))
    if record is None:
        raise Unavailable(f"{business.name} has nothing yet")
    log_stop = keys.log_key(business.number, json.loads(record)["applied"] + 1)
    for area, (family, prefix) in enumerate(AREAS):
        start = prefix + keys.number_prefix(business.number)
        stop = log_stop if family == keys.RLOG else keys.after_prefix(start)
        done = False
        first = start
        while not done:
            found, values, done = store.range(family, first, stop, rows_max=_PIECE_ROWS_MAX, bytes_max=PIECE_BYTES)
            if found:
                yield Piece(area=area, keys=tuple(key[len(start) :] for key in found), values=tuple(values))
                first = found[-1] + b"\0"


def place(piece: Piece, number: int) -> tuple[str, list[bytes]]:
    """Return the family and the keys of a piece in the store of a business with this number. Raises ProtocolError."""
    if piece.area >= len(AREAS) or len(piece.keys) != len(piece.values):
        raise ProtocolError(f"a piece of a copy is of area {piece.area}, which this version does not know")
    family, prefix = AREAS[piece.area]
    start = prefix + keys.number_prefix(number)
    return family, [start + key for key in piece.keys]
