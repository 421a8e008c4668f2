"""The scavenger removes old tombstones, and rows under a table's floor, from the full data.

Rows under the floor count as deleted. TRUNCATE and sweeps raise a floor; tombstones stay until every consumer has
passed them and a day is over. The scavenger deletes both, a run of keys at a time, while there is no more urgent work.
It stores its knowledge of a table (whether it has tombstones, which of them are removed) in the same write batches.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from venus.broker.machine import folding
from venus.broker.machine.business import Business
from venus.broker.snapshot import checksums
from venus.broker.store import keys
from venus.broker.store.rocks import Store, StoreBatch

RUN_ROWS_MAX = 5000
RUN_BYTES_MAX = 2 << 20
#: Minimum interval between two passes over a table.
PASS_EVERY_S = 3600.0
#: Minimum interval between two searches for due tables; a broker may have hundreds of thousands.
LOOK_EVERY_S = 10.0
#: While batches keep coming, one run in this many steps.
BUSY_EVERY = 50


@dataclass(slots=True)
class _Pass:
    """One pass of the scavenger over a table; `at` is the key to continue from."""

    business: Business
    table_id: int
    floor: int
    forget_below: int
    at: bytes
    tombstones: bool = False  # whether some are left or were added since


class Scavenger:
    """Periodic removal of garbage rows. Used by the materialising thread alone, because no other thread writes rows."""

    def __init__(
        self, store: Store, *, forget_below: Callable[[Business], int], monotonic: Callable[[], float]
    ) -> None:
        self._store = store
        self._forget_below = forget_below
        self._monotonic = monotonic
        self._known: dict[tuple[Business, int], float] = {}  # table with tombstones: when its last pass began
        self._noticed: dict[tuple[Business, int], None] = {}  # tables whose floor may have been raised
        self._due: deque[tuple[Business, int]] = deque()  # tables with removable tombstones, found by the last search
        self._looked_at = float("-inf")
        self._pass: _Pass | None = None
        self._skipped = 0
        #: Whether the last step found work; then there may be more.
        self.is_at_work = False

    @property
    def tables(self) -> set[tuple[Business, int]]:
        """The tables that a pass will read again: those with tombstones, or rows under their floor."""
        return set(self._known)

    def load(self, business: Business) -> None:
        """Load which tables of a business may have garbage; a table without a record may have tombstones."""
        for table_id in load_records(self._store, business):
            self._known[business, table_id] = self._monotonic() - PASS_EVERY_S
            self._noticed[business, table_id] = None
        self._looked_at = float("-inf")

    def record_table(self, business: Business, table_id: int, batch: StoreBatch) -> None:
        """Record that a table gets tombstones, or rows under its floor, with `batch`."""
        if self._pass is not None and (self._pass.business, self._pass.table_id) == (business, table_id):
            self._pass.tombstones = True
        self._noticed[business, table_id] = None
        if (business, table_id) not in self._known:
            self._known[business, table_id] = self._monotonic()
            self._store_record(business, table_id, batch, tombstones=True)

    def forget(self, business: Business) -> None:
        """Forget the tables of a business, and end a pass over one of them."""
        self._known = {key: since for key, since in self._known.items() if key[0] is not business}
        self._noticed = {key: None for key in self._noticed if key[0] is not business}
        if self._pass is not None and self._pass.business is business:
            self._pass = None

    def step(self, *, busy: bool) -> None:
        """Remove the garbage of one run of keys; while `busy`, only once in BUSY_EVERY calls."""
        self._skipped += 1
        if busy and self._skipped < BUSY_EVERY:
            return
        self._skipped = 0
        if self._pass is None:
            self._pass = self._next_pass()
        self.is_at_work = self._pass is not None
        if self._pass is not None and self._remove_run(self._pass):
            self._pass = None

    def _next_pass(self) -> _Pass | None:
        """Begin a pass over a table with rows under its floor, else over one with removable tombstones."""
        while self._noticed:
            business, table_id = key = next(iter(self._noticed))
            del self._noticed[key]
            floor = business.materialised.floors.get(table_id, 0)
            if key in self._known and floor > business.scavenged.get(table_id, 0):
                return self._begin_pass(business, table_id, floor, self._forget_below(business))
        if not self._due and self._monotonic() - self._looked_at >= LOOK_EVERY_S:
            self._due = self._find_due_tables()
        while self._due:
            business, table_id = key = self._due.popleft()
            if key in self._known and (forget_below := self._forget_below(business)):
                floor = business.materialised.floors.get(table_id, 0)
                return self._begin_pass(business, table_id, floor, forget_below)
        return None

    def _find_due_tables(self) -> deque[tuple[Business, int]]:
        """Return the tables whose last pass is long enough ago and whose tombstones may be removable."""
        now = self._looked_at = self._monotonic()
        late = [key for key, since in list(self._known.items()) if now - since >= PASS_EVERY_S]
        may_go = {business: bool(self._forget_below(business)) for business in dict.fromkeys(key[0] for key in late)}
        return deque(key for key in late if may_go[key[0]])

    def _begin_pass(self, business: Business, table_id: int, floor: int, forget_below: int) -> _Pass:
        """Begin a pass over a table."""
        self._known[business, table_id] = self._monotonic()
        prefix = keys.row_prefix(business.number, table_id)
        return _Pass(business, table_id, floor, forget_below, prefix)

    def _remove_run(self, run: _Pass) -> bool:
        """Remove the garbage in the next run of keys; return whether the pass has ended."""
        business, table_id = run.business, run.table_id
        stop = keys.after_prefix(keys.row_prefix(business.number, table_id))
        found, values, done = self._store.read_range(
            keys.ROW, run.at, stop, rows_max=RUN_ROWS_MAX, bytes_max=RUN_BYTES_MAX
        )
        dead = folding.find_garbage(values, run.floor, run.forget_below) if values else []
        run.tombstones = run.tombstones or folding.has_tombstones(values, run.forget_below)
        batch = self._store.batch()
        if dead:
            for i in dead:
                batch.delete(keys.ROW, found[i])
            checksums.subtract_rows(self._store, batch, business, table_id, [(found[i], values[i]) for i in dead])
            business.forgotten_below[table_id] = max(business.forgotten_below.get(table_id, 0), run.forget_below)
            business.add_to_counter("scavenged_rows", len(dead))
        if done:
            business.scavenged[table_id] = run.floor
            if not run.tombstones:
                del self._known[business, table_id]
        if dead or done:
            self._store_record(business, table_id, batch, tombstones=(business, table_id) in self._known)
            self._store.write(batch, durable=False)
        if not done:
            run.at = found[-1] + b"\x00"
        return done

    def _store_record(self, business: Business, table_id: int, batch: StoreBatch, *, tombstones: bool) -> None:
        """Store whether a table has tombstones, and up to where floors and tombstones are removed."""
        record = {
            "tombstones": tombstones,
            "floor": business.scavenged.get(table_id, 0),
            "forgotten": business.forgotten_below.get(table_id, 0),
        }
        batch.put(keys.STATE, keys.scavenged_key(business.number, table_id), json.dumps(record).encode())


def load_records(store: Store, business: Business) -> set[int]:
    """Load the scavenger's records of a business; return the tables that may have tombstones or rows under a floor."""
    found = set(business.tables)
    for key, value in store.scan_prefix(keys.STATE, keys.scavenged_prefix(business.number)):
        table_id, record = int.from_bytes(key[-4:], "big"), json.loads(value)
        business.scavenged[table_id], business.forgotten_below[table_id] = record["floor"], record["forgotten"]
        if not record["tombstones"]:
            found.discard(table_id)
    return found
