"""Which layout a store has: a broker never guesses what bytes of another version mean."""

from __future__ import annotations

from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.errors import StorageError

#: 2: a row's value has its record_id (venus/codec/stored.py).
FORMAT = b"2"


def check_format(store: Store) -> None:
    """Mark a new store; refuse one of another layout with StorageError."""
    found = store.get(keys.STATE, keys.FORMAT)
    if found == FORMAT:
        return
    if found is not None or next(store.scan_prefix(keys.STATE, keys.CORE), None) is not None:
        raise StorageError(
            f"{store.path} has layout {(found or b'1').decode(errors='replace')}, this broker reads {FORMAT.decode()}",
            hint="run the VENUS that wrote it, or give the broker an empty data_dir and run `venus resync --all`",
        )
    batch = store.batch()
    batch.put(keys.STATE, keys.FORMAT, FORMAT)
    store.write(batch, durable=True)
