"""Invariants of sets in tiers, checked after every commit and at the end."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.simulation.brokers.judge import full_data
from tests.simulation.brokers.source import Cut, Rows
from tests.simulation.judge import Violation
from tests.simulation.tiers import rows as columned
from tests.simulation.tiers.row_judge import RowJudge
from tests.simulation.tiers.rows import Admits, table_of
from tests.simulation.tiers.source import TieredSource
from venus.broker.queue import reader

if TYPE_CHECKING:
    from tests.simulation.tiers.host import TierHost
    from tests.simulation.tiers.world import TierWorld

#: Maximum age of a set's view of the set above, including increments on their way to it.
SEEN_S = 9.0
Batch = tuple[int, int, int]  # offsets, epoch, digest


@dataclass(eq=False)
class Timeline:
    """One history of the home and its source: the committed batch at each offset."""

    source: TieredSource
    book: dict[int, Batch] = field(default_factory=dict)

    def fork(self, source: TieredSource, end: int) -> Timeline:
        """Return a history with the same batches below an offset, and another source."""
        return Timeline(source, {offset: batch for offset, batch in self.book.items() if offset < end})

    def sequence_at(self, offset: int) -> int:
        """Return the Sequence of the last change below an offset where a batch ends, -1 if none ends there."""
        if not offset:
            return 0
        digest = next((d for at, (count, _, d) in self.book.items() if at + count == offset), None)
        by_digest = {digest: sequence for sequence, (digest, _) in self.source.history.items()}
        return -1 if digest is None else by_digest.get(digest, -1)


@dataclass
class MirrorHistory:
    """Knowledge of the judge about a set since its last full data began."""

    begin: int = 0
    judged: int | None = None  # offset up to which its queue was compared
    may_be: list[Timeline] = field(default_factory=list)
    book: dict[int, Batch] = field(default_factory=dict)  # compared batches, by offset
    acknowledged: int = 0
    ends: deque[tuple[float, int]] = field(default_factory=deque)  # times and offsets that its queue had reached


def _is_the_same(one: Batch | None, other: Batch) -> bool:
    """Return whether two batches have the same changes; a restored home may commit a set's batch in a newer epoch."""
    return one is not None and (one[0], one[2]) == (other[0], other[2])


class TierJudge:
    """Judge of sets in tiers; raises Violation."""

    def __init__(self, world: TierWorld) -> None:
        self._world = world
        self._known: dict[str, MirrorHistory] = {}
        self.rows = RowJudge()

    # -- producers -------------------------------------------------------------------------------------------------

    def on_answer(self, host: Any, term: int | None) -> None:
        """Do nothing: answers are not checked here."""

    def on_commit(self, cut: Cut) -> None:
        """Do nothing: the source is not checked here."""

    def on_decision(self, batch_no: int) -> None:
        """Do nothing: decisions are not checked here."""

    # -- sets ------------------------------------------------------------------------------------------------------

    def _of(self, host: TierHost) -> MirrorHistory:
        """Return what is known of a set, from the begin of its current full data on."""
        business = host.business
        mirror = business.committed.mirror if business is not None else None
        begin = mirror.begin if mirror is not None else 0
        known = self._known.get(host.name)
        if known is None or known.begin != begin:
            known = self._known[host.name] = MirrorHistory(begin, may_be=list(self._world.timelines))
        return known

    def on_fork(self, timeline: Timeline) -> None:
        """Record a forked history; a reader that has read only the shared part may continue in it."""
        end = max((offset + batch[0] for offset, batch in timeline.book.items()), default=0)
        for known in self._known.values():
            if known.judged is None or known.judged <= end:
                known.may_be.append(timeline)

    def on_start(self, host: TierHost) -> None:
        """Check a restarted process: everything that it acknowledged must be on its disk."""
        self.rows.on_full_data(host)
        business = host.business
        if business is None or business.committed.mirror is None:
            self._known.pop(host.name, None)
            return
        known = self._of(host)
        # the rest of its queue is compared again, because it may have lost the batch that distinguishes the histories
        known.judged, known.may_be = None, list(self._world.timelines)
        known.book.clear()
        if business.committed.next_offset < known.acknowledged:
            raise Violation(
                "a mirror never claims more than it has",
                f"{host.name} has {business.committed.next_offset} and acknowledged {known.acknowledged}",
            )

    def on_acknowledgement(self, host: TierHost, offset: int) -> None:
        """Check an offset that a mirror acknowledges to the set above."""
        business = host.business
        assert business is not None
        if offset > business.committed.next_offset:
            raise Violation(
                "a mirror never claims more than it has", f"{host.name}: {offset}, {business.committed.next_offset}"
            )
        known = self._of(host)
        known.acknowledged = max(known.acknowledged, offset)

    def check_batches(self, host: TierHost) -> None:
        """Check newly committed batches: they must equal the home's at the same offsets."""
        business = host.business
        if business is None:
            return
        known = self._of(host)
        first = business.log_start if known.judged is None else max(known.judged, business.log_start)
        at = first
        for place in reader.walk_batches(host.core.store, business, first):
            if place.base_offset != at and place.base_offset > first:
                raise Violation("offsets are dense", f"{host.name}: {place.base_offset} follows {at}")
            at = place.next_offset
            batch = place.count, place.epoch, place.digest
            if not host.upstream:
                if self._world.timeline.book.setdefault(place.base_offset, batch) != batch:
                    raise Violation("an offset of the home has one batch", f"{place.base_offset}")
            elif not host.labels and self.rows.admitted_at(host) == columned.EVERY:
                known.book[place.base_offset] = batch
                known.may_be = [
                    found for found in known.may_be if _is_the_same(found.book.get(place.base_offset), batch)
                ] or self._others(known)
                if not known.may_be:
                    raise Violation(
                        "every level has the home's batches at the home's offsets",
                        f"{host.name} at {place.base_offset}: {batch}",
                    )
        known.judged = at
        known.ends.append((self._world.loop.now, business.committed.next_offset))
        self.rows.on_judged(host, known)

    def _others(self, known: MirrorHistory) -> list[Timeline]:
        """Return the histories that contain all of a set's batches, even if the set is beyond the point of the fork.

        A restored source may commit the same batch again, and then others.
        """
        return [
            found
            for found in self._world.timelines
            if all(_is_the_same(found.book.get(offset), batch) for offset, batch in known.book.items())
        ]

    def on_move(self, host: TierHost, upper: TierHost) -> None:
        """Check a set that left a serving upstream: the next one must have everything that the set had `SEEN_S` ago."""
        business, there = host.business, upper.business
        if business is None or there is None or len(self._world.timelines) > 1 or self._world.foreign is not None:
            return
        ends = self._of(host).ends
        while len(ends) > 1 and ends[1][0] <= self._world.loop.now - SEEN_S:
            ends.popleft()
        if ends and ends[0][0] <= self._world.loop.now - SEEN_S and there.committed.next_offset < ends[0][1]:
            raise Violation(
                "no reader goes to a set that is behind",
                f"{host.name} to {upper.name}: {there.committed.next_offset}, {ends[0]}",
            )

    # -- at the end ------------------------------------------------------------------------------------------------

    def has_converged(self) -> bool:
        """Return whether every set has everything."""
        world = self._world
        home = world.home.business
        if home is None or not world.source.is_drained or home.committed.halves:
            return False
        if home.committed.last_batch != world.source.last_batch:
            return False
        end = home.committed.next_offset
        for host in world.hosts.values():
            business = host.business
            if business is None or not business.is_filled or business.committed.next_offset != end:
                return False
            if business.materialised.offset != business.visible_offset or business.visible_offset != end:
                return False
            mirror = business.committed.mirror
            if mirror is not None and (not mirror.end or host.stale_labels or host.stale_where):
                return False
        return self.have_sets_all_rows()

    def are_at_nearest(self) -> bool:
        """Return whether every set pulls from the nearest set above that has its rows."""
        mirrors = [host for host in self._world.hosts.values() if host.upstream]
        return all(pull.in_use == self._nearest(host) for host in mirrors for pull in host.network._pulls.all)

    def _nearest(self, host: TierHost) -> str:
        """Return the nearest set above that has the rows that this set needs; empty if none has."""
        hosts = self._world.hosts
        return next((name for name in host.upstream if self.rows.has_same_rows(host, hosts[name])), "")

    def has_home_overtaken(self) -> bool:
        """Return whether no set or consumer is ahead of the home."""
        world = self._world
        found = [host.business.committed.next_offset for host in world.hosts.values() if host.business is not None]
        home = world.home.business
        found += [consumer.offset for consumer in world.consumers]
        if any(host.stale_where for host in world.hosts.values()):
            return False  # a set may wait for a later cut
        return home is not None and home.committed.next_offset >= max(found)

    def have_consumers_all_rows(self) -> bool:
        """Return whether every target has everything as well."""
        home = self._world.home.business
        assert home is not None
        end = home.committed.next_offset
        consumers = self._world.consumers
        return all(
            found.offset == end and found.rows == self._expected_rows(found.tables, found.admits) for found in consumers
        )

    def have_sets_all_rows(self) -> bool:
        """Return whether every set has the rows of the source."""
        return all(full_data(host) == self._wanted_of(host) for host in self._world.hosts.values())  # type: ignore[arg-type]

    def check_final_state(self) -> None:
        """Compare all sets and targets with the source."""
        for host in self._world.hosts.values():
            if (rows := full_data(host)) != self._wanted_of(host):  # type: ignore[arg-type]
                raise Violation("every set's full data is the source", f"{host.name}: {rows}")
        for consumer in self._world.consumers:
            if consumer.rows != self._expected_rows(consumer.tables, consumer.admits):
                raise Violation("every target is the source", f"{consumer.group}: {consumer.rows}")

    def _wanted_of(self, host: TierHost) -> Rows:
        return self._expected_rows(host.tables, self.rows.admitted_at(host))

    def _expected_rows(self, tables: frozenset[int], admits: Admits) -> Rows:
        rows = {key: row for key, row in self._world.source.rows.items() if table_of(key) in tables}
        return columned.visible_rows(rows, admits)
