"""By which predicates the rows of a business were chosen on their way, as the store has it."""

from __future__ import annotations

import json

from venus.broker.machine import mirror
from venus.broker.machine.mirror import Mirror
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.network import row_filters
from venus.network.rows_identity import Levels


def encode_heard(begin: int, above: str, levels: Levels) -> bytes:
    """Return what is stored of a set above since the full data that began with a log entry."""
    filters = [[{"table": f.table, "predicate": f.predicate, "tables": f.tables} for f in level] for level in levels]
    return json.dumps({"begin": begin, "set": above, "levels": filters}).encode()


def levels_of(store: Store, business: int, found: Mirror | None) -> tuple[str, Levels | None]:
    """Return the set that is followed, and the filters from the home down to here; None = they are not known."""
    if found is None:
        return "", ()
    above, levels = found.set, found.above
    heard = store.get(keys.STATE, keys.levels_key(business))
    record = json.loads(heard) if heard is not None else {}
    if record.get("begin") == found.begin:
        above, levels = record["set"], tuple(row_filters.decode(level) for level in record["levels"])
    if levels is None:
        return above, None
    return above, (*levels, found.where) if found.where else levels


def stored_levels(store: Store, business: int) -> Levels | None:
    """Return the same of a store that nobody writes to, such as a checkpoint."""
    record = json.loads(store.get(keys.STATE, keys.core_key(business)) or b"{}")
    return levels_of(store, business, mirror.decode(record.get("mirror")))[1]
