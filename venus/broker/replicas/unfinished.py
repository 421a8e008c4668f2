"""The mark of an installation that has not ended: which copy it is, and how far it has come.

It is written in one batch with each piece, so whatever survives a crash, the mark says how much of the copy is there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from venus.broker.replicas.copies import Piece, Place
from venus.broker.store import keys
from venus.broker.store.rocks import Batch, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """`number` is that of the business under which the copy is written; `copy` "" = nothing of it may be used."""

    number: int
    copy: str = ""
    leader: str = ""  # the member that has the copy
    area: int = 0
    after: str | None = None  # the last key that came, in hexadecimal digits
    records: int = 0
    nbytes: int = 0

    @property
    def place(self) -> Place:
        """Where the next piece begins."""
        return Place(area=self.area, after=None if self.after is None else bytes.fromhex(self.after))

    def with_piece(self, piece: Piece) -> Mark:
        """Return the mark behind a piece."""
        nbytes = sum(map(len, piece.keys)) + sum(map(len, piece.values))
        return replace(
            self,
            area=piece.area,
            after=piece.keys[-1].hex(),
            records=self.records + len(piece.keys),
            nbytes=self.nbytes + nbytes,
        )


def read(store: Store, business: str) -> Mark | None:
    """Return the mark of a business; None = none is being installed."""
    value = store.get(keys.STATE, keys.installing_key(business))
    return None if value is None else decode(value)


def decode(value: bytes) -> Mark:
    """Read a mark."""
    return Mark(**json.loads(value))


def encode(mark: Mark) -> bytes:
    """Return a mark as it is stored."""
    return json.dumps(asdict(mark)).encode()


def put(batch: Batch, business: str, mark: Mark) -> None:
    """Put the mark of a business."""
    batch.put(keys.STATE, keys.installing_key(business), encode(mark))
