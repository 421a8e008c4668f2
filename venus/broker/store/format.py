"""Which layout a store has: a broker never guesses what bytes of another version mean."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.errors import StorageError

logger = logging.getLogger(__name__)

#: 2: a row's value has its record_id (venus/codec/stored.py). 3: log entries have a term and a seal.
FORMAT = b"3"

#: From which layout to which, in place; returns how much it rewrote. A step that was interrupted starts over.
Upgrades = Mapping[bytes, tuple[bytes, Callable[[Store], int]]]


def check_format(store: Store, upgrades: Upgrades) -> None:
    """Mark a new store, upgrade an older one in place; refuse any other with StorageError."""
    found = store.get(keys.STATE, keys.FORMAT)
    while found is not None and found in upgrades:
        following, step = upgrades[found]
        rewritten = step(store)
        logger.info("%s: layout %s became %s, %d entries", store.path, found.decode(), following.decode(), rewritten)
        _mark(store, following)
        found = following
    if found == FORMAT:
        return
    if found is not None or next(store.scan_prefix(keys.STATE, keys.CORE), None) is not None:
        raise StorageError(
            f"{store.path} has layout {(found or b'1').decode(errors='replace')}, this broker reads {FORMAT.decode()}",
            hint="run the VENUS that wrote it, or give the broker an empty data_dir. In a cluster that is all: it "
            "installs a copy. A broker on its own then needs `venus uninstall-triggers`, `venus install-triggers` and "
            "`venus migrate` for each target",
        )
    _mark(store, FORMAT)


def _mark(store: Store, layout: bytes) -> None:
    batch = store.batch()
    batch.put(keys.STATE, keys.FORMAT, layout)
    store.write(batch, durable=True)
