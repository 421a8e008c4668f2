"""Whether the full data has what a batch of the queue wrote: every row at least as new as its newest change there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from venus.broker.machine import envelope
from venus.broker.machine.business import Business
from venus.broker.machine.folding import Section
from venus.broker.machine.queue_index import Placed
from venus.broker.store import keys
from venus.broker.store.files import damaged
from venus.broker.store.rocks import Store
from venus.codec.stored import HEAD, HEAD_BYTES
from venus.model import ChangeKind


def check(store: Store, business: Business, place: Placed, body: bytes, *, rows_max: int = 0) -> int:
    """Check one batch below the full data's offset; return how many rows were looked for. Raises Corruption.

    Of a large batch `rows_max` rows are looked for, evenly spread; 0 = all of them.
    """
    if xxhash.xxh3_64_intdigest(body) != place.digest:
        raise damaged(store.path, f"batch {place.batch_no} of {business.name} does not hash to its digest")
    looked = 0
    for section in envelope.sections(envelope.parse(body)):
        if section.kind is ChangeKind.CHANGES and section.count:
            looked += _check_section(store, business, place, section, rows_max)
    return looked


def _check_section(store: Store, business: Business, place: Placed, section: Section, rows_max: int) -> int:
    prefix = keys.row_prefix(business.number, section.table_id)
    record_ids = section.record_ids.split()
    step = max(1, section.count // rows_max) if rows_max else 1
    chosen = range(section.count - 1, -1, -step)
    wanted = [prefix + record_ids[i] for i in chosen]
    found = store.look_up(keys.ROW, wanted)
    gone_below = max(
        business.materialised.floors.get(section.table_id, 0) + 1, business.forgotten_below.get(section.table_id, 0)
    )
    stored = _sequences([found.get(key, b"") for key in wanted])
    sequences = section.first_sequence + np.array(chosen, dtype=np.int64)
    missing = np.flatnonzero((stored < sequences) & (sequences >= gone_below))
    if len(missing):
        at = int(missing[0])
        state = f"is at Sequence {stored[at]}" if stored[at] else "is missing"
        raise damaged(
            store.path,
            f"{business.name}, table {section.table_id}: a row of batch {place.batch_no} {state} in the full data, "
            f"Sequence {sequences[at]} was written",
        )
    return len(wanted)


def _sequences(values: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Return the Sequence of each stored value, 0 for none."""
    blank = bytes(HEAD_BYTES)
    heads = np.frombuffer(b"".join([value[:HEAD_BYTES] or blank for value in values]), dtype=HEAD)
    return heads["sequence"].astype(np.int64)
