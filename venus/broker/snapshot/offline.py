"""Offline check of a broker's whole data directory: `venus broker --check`.

The check writes only RocksDB's own message log. It yields all findings instead of raising the first one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from venus.broker.log.log import FORMAT
from venus.broker.machine import records
from venus.broker.machine.business import Business
from venus.broker.queue import reader
from venus.broker.snapshot import consistency, scavenger, scrub
from venus.broker.store import files, keys, witness
from venus.broker.store.rocks import Store
from venus.errors import ConfigError, Corruption, Refused

_CACHE_BYTES = 48 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check: `what` was checked, what was `seen`, and the `finding`, empty if there is no fault."""

    what: str
    seen: str = ""
    finding: str = ""


def check_directory(data_dir: Path) -> Iterator[CheckResult]:
    """Check everything in a data directory. Raises ConfigError, or Refused if a broker uses the directory."""
    path = data_dir / "db"
    if not path.is_dir() or not any(path.iterdir()):
        raise ConfigError(f"{data_dir} has no broker's data", hint="Correct broker.data_dir.")
    with _lock_directory(path):
        try:
            note = witness.read_latest(path)
            witness.check_files(path, note)
            store = Store(path, read_only=True, cache_bytes=_CACHE_BYTES)
            witness.check_sequence(path, note, store.sequence)
        except Corruption as found:
            yield CheckResult(what="files", finding=str(found))
            return
        seen = "as its witness has them" if note is not None else "in order, with no witness of how new they must be"
        yield CheckResult(what="files", seen=f"{seen}, up to write {store.sequence}")
        try:
            yield from _check_content(store)
        except Corruption as found:
            yield CheckResult(what="layout", finding=str(found))
        finally:
            store.close()
    yield from _check_snapshots(data_dir / "snapshots")


@contextmanager
def _lock_directory(path: Path) -> Iterator[None]:
    """Hold RocksDB's lock on a store's directory. Raises Refused if a broker uses the directory."""
    descriptor = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Refused(
            f"a broker runs on {path.parent}", hint="Stop it first; while it runs it checks by itself."
        ) from None
    finally:
        os.close(descriptor)


def _check_content(store: Store) -> Iterator[CheckResult]:
    """Check that the column families agree, then check each business."""
    found = store.get(keys.STATE, keys.FORMAT)
    if found != FORMAT:
        shown = (found or b"no").decode(errors="replace")
        yield CheckResult(
            what="layout", finding=f"{store.path} has layout {shown}: start a broker on it once to bring it up"
        )
        return
    try:
        businesses = list(records.load_all(store, 1.0))
        for business in businesses:
            business.log.find_end(store)
            reader.load_tail(store, business, 1)  # no reader needs the tail
            scavenger.load_records(store, business)
        consistency.check_all(store, businesses)
    except Corruption as error:
        yield CheckResult(what="column families", finding=str(error))
        return
    yield CheckResult(what="column families", seen=f"agree about {len(businesses)} businesses")
    for business in businesses:
        yield from _check_business(store, business)


def _check_business(store: Store, business: Business) -> Iterator[CheckResult]:
    """Check the log, the queue and each table of one business."""
    reached = business.committed.next_offset
    queue = f"log and queue, offsets {business.log_start} to {reached}, full data at {business.materialised.offset}"
    yield _run_check(business.name, scrub.check_queue(store, business, rows_of_batch=0), queue)
    try:
        tables = scrub.find_tables(store, business)
    except Corruption as error:
        yield CheckResult(what=business.name, finding=str(error))
        return
    for table_id in tables:
        figures = business.tables[table_id]
        name = f"{business.name} {figures.namespace}.{figures.name}"
        yield _run_check(name, scrub.check_table(store, business, table_id, keep=False), "{} records in the full data")
        for version in business.undescribed.get(table_id, ()):
            yield CheckResult(what=name, seen=f"some of version {version}, which no producer has described")


def _run_check(what: str, pieces: Iterator[int], seen: str) -> CheckResult:
    """Run one check to its end; return its finding, or `seen` formatted with the number of rows."""
    try:
        rows = sum(pieces)
    except Corruption as error:
        return CheckResult(what=what, finding=str(error))
    return CheckResult(what=what, seen=seen.format(rows))


def _check_snapshots(directory: Path) -> Iterator[CheckResult]:
    """Check that the files of each snapshot match its seal."""
    for found in sorted(directory.iterdir()) if directory.is_dir() else ():
        broken = files.find_broken_seal(found)
        finding = f"{found}: {broken}; a broker drops it, and its loader opens a new one" if broken else ""
        yield CheckResult(what=f"snapshot {found.name}", seen="unchanged since its creation", finding=finding)
