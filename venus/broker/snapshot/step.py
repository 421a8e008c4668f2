"""One step of the full data: batches of the queue become rows (VENUS 3.3, table 3; rules in folding.py).

The rows of a step and the offset they reach are one write batch, so a crash repeats nothing and skips nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import xxhash

from venus.broker.machine import envelope, folding
from venus.broker.machine.business import Business, Materialised
from venus.broker.machine.queue_index import Placed
from venus.broker.machine.records import encode_materialised, read_body
from venus.broker.queue import places
from venus.broker.queue.buffer import Buffer
from venus.broker.snapshot import filling, sums
from venus.broker.snapshot.scavenger import Scavenger
from venus.broker.snapshot.scrub import Scrub
from venus.broker.store import keys
from venus.broker.store.rocks import Batch, Store
from venus.errors import Corruption


class Step:
    """Takes steps; in the materialiser's thread."""

    def __init__(self, store: Store, buffer: Buffer, *, scavenger: Scavenger, scrub: Scrub) -> None:
        self._store = store
        self._buffer = buffer
        self._scavenger = scavenger
        self._scrub = scrub

    def take(self, business: Business, *, most: int, one_batch: bool = False) -> bool:
        """Materialise the next batches of a business, `most` bytes of them; False = there was nothing to do."""
        if not business.is_filled:
            return filling.step(self._store, business, let_go=self._begin_again)
        reached = business.materialised
        batch = self._store.batch()
        nbytes = stale = 0
        for place in self._places(business):
            blind = place.first_sequence > reached.sequence
            if nbytes and (not blind or one_batch or nbytes + place.nbytes > most):
                break
            floors, ignored = self._batch(business, place, reached.floors, batch, blind=blind)
            stale += ignored
            nbytes += place.nbytes
            reached = Materialised(
                offset=place.next_offset,
                sequence=max(reached.sequence, place.last_sequence),
                nbytes=place.after,
                at_cut_end=place.cut_end,
                floors=floors,
                filled=reached.filled,
            )
            if not blind:
                break  # the next look-up must see these rows
        if reached is business.materialised:
            return False
        batch.put(keys.STATE, keys.materialised_key(business.number), encode_materialised(reached))
        self._store.write(batch, durable=False)
        business.materialised = reached
        if stale:
            business.count("stale_rows", stale)
        return True

    def _begin_again(self, business: Business) -> None:
        self._scavenger.forget(business)
        self._scrub.forget(business)

    def _places(self, business: Business) -> Iterator[Placed]:
        offset = business.materialised.offset
        if offset >= business.visible_offset:
            return
        for place in places.walk(self._store, business, offset):
            if place.base_offset >= business.visible_offset:
                return
            yield place

    def _batch(
        self, business: Business, place: Placed, floors: dict[int, int], batch: Batch, *, blind: bool
    ) -> tuple[dict[int, int], int]:
        body = self._buffer.get((business.number, place.index))
        if body is None:
            body = read_body(self._store, business, place.index)
            if xxhash.xxh3_64_intdigest(body) != place.digest:
                raise Corruption(f"{self._store.path}: batch {place.batch_no} of {business.name} is damaged")
        overlay: dict[bytes, bytes] = {}
        stale = 0
        for section in envelope.sections(envelope.parse(body)):
            prefix = keys.row_prefix(business.number, section.table_id)
            floor = floors.get(section.table_id, 0)
            effect = folding.fold(section, prefix, floor, None if blind else _looking(self._store, overlay))
            if effect.clear:
                batch.delete_range(keys.ROW, prefix, keys.after_prefix(prefix))
                sums.forget(batch, business, section.table_id)
            batch.put_many(keys.ROW, effect.keys, effect.values)
            if not blind:
                overlay.update(zip(effect.keys, effect.values, strict=True))
            if effect.floor != floor:
                floors = {**floors, section.table_id: effect.floor}
            if effect.floor != floor or section.is_deleted:
                self._scavenger.notice(business, section.table_id, batch)
            stale += effect.stale
        return floors, stale


def _looking(store: Store, overlay: dict[bytes, bytes]) -> folding.Stored:
    def stored(row_keys: Sequence[bytes]) -> dict[bytes, bytes]:
        found = store.look_up(keys.ROW, row_keys)
        found.update({key: overlay[key] for key in row_keys if key in overlay})
        return found

    return stored
