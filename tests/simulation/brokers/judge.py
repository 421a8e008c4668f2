"""The invariants of whole brokers, after every step and at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from tests.simulation.brokers.disk import BUSINESS
from tests.simulation.brokers.source import Cut, Rows
from tests.simulation.judge import Judge, Violation
from venus.broker.snapshot import consistency, scrub
from venus.broker.store import keys
from venus.codec.packed import pack_items
from venus.codec.stored_rows import TOMBSTONE, StoredRows

if TYPE_CHECKING:
    from tests.simulation.brokers.host import BrokerHost
    from tests.simulation.brokers.world import BrokerWorld


class BrokerJudge(Judge):
    """Judge of whole brokers, which compares their stored log entries."""

    _world: BrokerWorld

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self.decided_through = 0  # the newest batch whose COMMIT was acknowledged
        self.committed_through = 0  # the newest batch that the source has committed
        self._judged: dict[str, int] = {}  # index up to which each host's log was compared
        self._offsets: dict[str, tuple[int, int]] = {}

    # -- after every step ------------------------------------------------------------------------------------------

    def on_start(self, host: Any) -> None:
        super().on_start(host)
        self._judged[host.name] = len(host.disk.content.applied)
        self._offsets.pop(host.name, None)

    def on_reinstall(self, host: Any) -> None:
        super().on_reinstall(host)
        self._judged[host.name] = 0
        self._offsets.pop(host.name, None)

    def on_step(self, host: Any) -> None:
        """Check the high watermark, and what is applied and visible, after a step."""
        self._record_moves(host)
        business, position = cast("BrokerHost", host).business, host.replica.position
        if business is None or not position.whole:
            return
        high, before = position.high, self._high[host.name]
        if high < before:
            raise Violation("high watermark never falls", f"{host.me} from {before} to {high}")
        self._high[host.name] = high
        log = business.log
        if not log.applied <= high < log.end:
            raise Violation(
                "applied <= high watermark < end of the log",
                f"{host.me} applied {log.applied}, high {high}, end {log.end}",
            )
        offsets = business.visible_offset, business.materialised.offset
        if any(now < then for now, then in zip(offsets, self._offsets.get(host.name, offsets), strict=True)):
            raise Violation("offsets never fall", f"{host.me} from {self._offsets[host.name]} to {offsets}")
        if offsets[1] > offsets[0]:
            raise Violation("the full data has what is committed", f"{host.me} visible and full data: {offsets}")
        self._offsets[host.name] = offsets

    def on_advance(self, host: Any, high: int) -> None:
        """Check entries that a broker is about to apply: they are durable there, and the same everywhere."""
        business = cast("BrokerHost", host).business
        assert business is not None
        if high >= business.log.durable_end:
            raise Violation("what is applied is on this disk", f"{host.me}: {high}, to {business.log.durable_end}")
        safe = self.safe[-1]
        for index in range(max(self._judged[host.name] + 1, business.log.start), high + 1):
            entry = host.disk.entry(index)
            if entry is None:
                raise Violation("what is applied is in the log", f"{host.me}: {index}")
            if safe.setdefault(index, entry) != entry:
                raise Violation("one entry at an index", f"{host.me} at {index}")
        self._judged[host.name] = max(self._judged[host.name], high)
        self._is_safe(host, high)

    def on_answer(self, host: Any, term: int | None) -> None:
        """Check that one process alone acknowledges in a term."""
        process = (host.name, host.life)
        if term is not None and self._acknowledges.setdefault(term, process) != process:
            raise Violation("one process acknowledges in a term", f"{host.me} in term {term}")

    def on_commit(self, cut: Cut) -> None:
        """Record that the source has committed a cut: its acknowledged half messages must never be lost."""
        self.committed_through = cut.records[-1].batch_no

    def on_decision(self, batch_no: int) -> None:
        """Record that a COMMIT was acknowledged."""
        self.decided_through = max(self.decided_through, batch_no)
        if batch_no > self.committed_through:
            raise Violation("nothing is visible that the source has not committed", f"batch {batch_no}")

    def on_lead(self, host: Any, term: int) -> None:
        self._counts["leader began"] += 1

    # -- at the end ------------------------------------------------------------------------------------------------

    def has_converged(self) -> bool:
        """Return whether all replicas and consumers have everything that the source committed."""
        world, record = self._world, self._world.coordinator.record
        if not world.source.is_drained or not super().has_converged():
            return False
        for name in record.replicas:
            host = world.hosts[name]
            business = host.business
            if business is None or business.log.applied != business.log.end - 1:
                return False
            if business.committed.halves or business.materialised.offset != business.visible_offset:
                return False
            if business.committed.last_batch != world.source.last_batch:
                return False
        return all(consumer.sequence == world.source.next_sequence - 1 for consumer in world.consumers)

    def check_final_state(self) -> None:
        """Compare the data of each replica with the source."""
        world = self._world
        for name in world.coordinator.record.replicas:
            host = world.hosts[name]
            business, store = host.business, host.core.store
            assert business is not None
            if business.committed.last_batch < self.decided_through:
                raise Violation("what was acknowledged is there", f"{host.me}: {business.committed.last_batch}")
            rows = full_data(host)
            if rows != world.source.rows:
                raise Violation("every replica's full data is the source", f"{host.me}: {rows}, {world.source.rows}")
            consistency.check_one(store, business)
            for _ in scrub.check_business(store, business, keep=False):
                pass
        for consumer in world.consumers:
            if consumer.rows != world.source.rows:
                raise Violation("the target is the source", f"{consumer.rows}, {world.source.rows}")


def full_data(host: BrokerHost) -> Rows:
    """Return the rows of a replica's full data."""
    business = host.business
    assert business is not None, BUSINESS
    found: Rows = {}
    floors = business.materialised.floors
    prefix = keys.number_prefix(business.number)
    for key, value in host.core.store.scan(keys.ROW, prefix, keys.after_prefix(prefix)):
        row = StoredRows(pack_items([value]))
        head = row.heads[0]
        table = int.from_bytes(key[4:8], "big")
        if not int(head["flags"]) & TOMBSTONE and int(head["sequence"]) > floors.get(table, 0):
            found[row.record_id(0)] = row.rows.split()[0]
    return found
