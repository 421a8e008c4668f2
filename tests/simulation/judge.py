"""Invariants that must hold after every step, and invariants of the final state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.disk import Entry
from venus.replication.records import Leadership, Policy

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.world import World


class Violation(Exception):
    """A broken invariant, with its name."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


class Judge:
    """Checks every step of every replica.

    An era ends with an unclean election, which may lose entries that the new leader lacks; these are reported. `safe`
    has, for each era, the entries at or below any high watermark.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._counts = world.loop.counts
        self.safe: list[dict[int, Entry]] = [{}]
        self.acknowledged: dict[int, int] = {}  # value -> index, without values reported as lost
        self._newest_safe = 0  # the newest index of this era
        self._least = 0  # least number of members that had it, unless an operator has since lowered the minimum
        self._high: dict[str, int] = {}
        self._acknowledges: dict[int, tuple[str, int]] = {}  # term -> the process
        self._newest: dict[str, tuple[int, int, int]] = {}  # life, term, version

    # -- after every step ------------------------------------------------------------------------------------------

    def on_start(self, host: Host) -> None:
        self._high[host.name] = len(host.disk.content.applied)

    def on_reinstall(self, host: Host) -> None:
        self._high[host.name] = 0
        record = self._world.coordinator.record
        if record.policy is Policy.CONSISTENCY and host.me in record.candidates:
            raise Violation("each broker that may lead has every safe entry", f"{host.me} begins to install")

    def on_record(self, before: Leadership, knew: float) -> None:
        """Check a record just stored at the coordinator; `knew` is the time of its writer's list of living brokers."""
        coordinator, record = self._world.coordinator, self._world.coordinator.record
        self._may_lead()
        self._least = min(self._least, record.min_in_sync)
        if record.policy is Policy.CONSISTENCY and len(record.candidates) < self._least:
            raise Violation("enough members that may lead have what was acknowledged", f"{len(record.candidates)} may")
        if record.term == before.term:
            for member in record.in_sync - before.in_sync:
                if member.broker not in record.replicas:
                    raise Violation("only replicas of the record join the in-sync set", str(member))
        if len(record.unclean_terms) > len(before.unclean_terms):
            for member in before.candidates:
                if coordinator.lives_since(member) < knew:
                    raise Violation("no unclean election while a complete replica lives", f"{member} does")
            for host in self._world.hosts.values():
                if host.up and host.acknowledges_in is not None and not host.replica.refusal(self._world.loop.now):
                    raise Violation("nothing is acknowledged after an unclean election", f"{host.me} still would")

    def _may_lead(self) -> None:
        """Check that each broker that may lead next has all safe entries on disk."""
        world, record = self._world, self._world.coordinator.record
        newest = self._newest_safe
        if len(record.unclean_terms) != len(self.safe) - 1 or not newest:
            return
        for member in record.candidates:
            host = world.hosts[member.broker]
            if host.me == member and not host.disk.has(newest, self.safe[-1][newest]):
                raise Violation("each broker that may lead has every safe entry", f"{member} lacks entry {newest}")

    def on_step(self, host: Host) -> None:
        """Check the high watermark and the applied entries of a replica after a step."""
        position = host.replica.position
        high, before = position.high, self._high[host.name]
        if high < before and position.whole:
            raise Violation("high watermark never falls", f"{host.me} from {before} to {high}")
        if position.whole:
            self._high[host.name] = high
            applied = len(host.disk.content.applied)
            if not applied == high < host.disk.content.end:
                raise Violation(
                    "applied = high watermark < end of the log",
                    f"{host.me} applied {applied}, high {high}, end {host.disk.content.end}",
                )
        self._record_moves(host)

    def _record_moves(self, host: Host) -> None:
        """Check that a process never goes back to an older term or record."""
        known = host.replica.known
        if known is not None:
            newest = (host.life, known.term, known.version)
            before_that = self._newest.get(host.name, newest)
            if newest < before_that or (newest[2] < before_that[2] and newest[0] == before_that[0]):
                raise Violation("terms and versions never fall", f"{host.me} from {before_that} to {newest}")
            self._newest[host.name] = newest

    def on_advance(self, host: Host, high: int) -> None:
        """Check entries that a replica is about to apply: durable there, and the same at all others."""
        content = host.disk.content
        before = len(content.applied)
        if high >= host.disk.durable_end:
            raise Violation(
                "what is applied is on this disk", f"{host.me}: {high}, on disk below {host.disk.durable_end}"
            )
        entries = content.entries[before + 1 - content.start : high + 1 - content.start]
        if len(entries) != high - before:
            raise Violation("what is applied is in the log", f"{host.me}: {before + 1} to {high}")
        known = host.replica.known
        assert known is not None
        safe = self.safe[min(len(known.unclean_terms), len(self.safe) - 1)]
        for index, entry in enumerate(entries, before + 1):
            if safe.setdefault(index, entry) != entry:
                raise Violation("one entry at an index", f"{host.me} has {entry} at {index}, others {safe[index]}")
        host.disk.change(("apply", entries))
        if safe is self.safe[-1]:
            self._is_safe(host, high)
        if host.acknowledges_in is not None:
            for index in [index for index in host.pending if index <= high]:
                self._acknowledge(host, index, host.pending.pop(index))

    def _is_safe(self, host: Host, high: int) -> None:
        """Record a new highest safe entry, which every broker that may lead must have."""
        if high <= self._newest_safe:
            return
        self._newest_safe = high
        if host.acknowledges_in is not None and host.replica.known is not None:
            # an operator may have lowered the minimum without this leader's knowledge
            self._least = min(host.replica.known.min_in_sync, self._world.coordinator.record.min_in_sync)
        self._may_lead()

    def _acknowledge(self, host: Host, index: int, entry: Entry) -> None:
        """Check an acknowledged entry: it is in the leader's log, and this process may acknowledge it."""
        world, known = self._world, host.replica.known
        assert known is not None
        assert host.acknowledges_in is not None
        process = (host.name, host.life)
        if self._acknowledges.setdefault(host.acknowledges_in, process) != process:
            raise Violation("one process acknowledges in a term", f"{host.me} in term {host.acknowledges_in}")
        # a leader that was replaced and elected again without noticing also acknowledges its earlier proposals
        if entry[0] > host.acknowledges_in or host.disk.content.entries[index - host.disk.content.start] != entry:
            raise Violation("what is acknowledged is in the log", f"{host.me}: {entry} at {index}")
        if known.policy is Policy.AVAILABILITY:
            if world.coordinator.lease_of(host.me) <= world.loop.now:
                raise Violation("nothing is acknowledged without a lease", f"{host.me}: entry {index}")
            if len(world.coordinator.record.unclean_terms) > len(known.unclean_terms):
                raise Violation("nothing is acknowledged after an unclean election", f"{host.me}: entry {index}")
        if known.version < world.coordinator.record.version:
            self._counts["acknowledged while another record was current"] += 1
        self.acknowledged[entry[1]] = index

    def on_truncate(self, host: Host, end: int) -> None:
        """Check that a truncation removes nothing that is applied or safe."""
        if end <= len(host.disk.content.applied):
            raise Violation("no applied entry is reverted", f"{host.me} cuts at {end}")
        record = self._world.coordinator.record
        same_era = len(record.unclean_terms) == len(self.safe) - 1
        if same_era and end <= self._newest_safe and host.me in record.candidates:
            raise Violation("each broker that may lead has every safe entry", f"{host.me} cuts at {end}")

    def on_lead(self, host: Host, term: int) -> None:
        """Record a new leader; the first leader of an era determines which entries may be lost."""
        known = host.replica.known
        assert known is not None
        self._counts["leader began"] += 1
        era = len(known.unclean_terms)
        while len(self.safe) <= era:
            content, durable_end = host.disk.content, host.disk.durable_end
            kept = {
                index: entry
                for index, entry in self.safe[-1].items()
                if index < durable_end
                and (
                    content.applied[index - 1] == entry
                    if index <= len(content.applied)
                    else content.entries[index - content.start] == entry
                )
            }
            lost = [value for value, index in self.acknowledged.items() if kept.get(index, (0, 0))[1] != value]
            self._counts["unclean election"] += 1
            self._counts["unclean election that lost something"] += bool(lost)
            for value in lost:
                del self.acknowledged[value]
            self.safe.append(kept)
            self._newest_safe = max(kept, default=0)

    # -- at the end ------------------------------------------------------------------------------------------------

    def has_converged(self) -> bool:
        """Return whether one broker leads, all others follow, and all have everything."""
        world, record = self._world, self._world.coordinator.record
        if record.leader is None or len(record.in_sync) != len(record.replicas):
            return False
        leader = world.hosts[record.leader.broker]
        if not leader.up or leader.me != record.leader or not leader.replica.leads or leader.replica.known != record:
            return False
        end = leader.disk.content.end
        for name in record.replicas:
            host = world.hosts[name]
            if not host.up or host.me not in record.in_sync or host.disk.content.end != end:
                return False
            if host.replica.high != end - 1 or host.replica.position.terms.newest != record.term:
                return False
        return True

    def check_final_state(self) -> None:
        """Check the data of each broker after all have converged."""
        world, record = self._world, self._world.coordinator.record
        assert record.leader is not None
        leader = world.hosts[record.leader.broker].disk.content
        for value, index in self.acknowledged.items():
            if index > len(leader.applied) or leader.applied[index - 1][1] != value:
                raise Violation("what was acknowledged is there", f"value {value} at {index}")
        for name in record.replicas:
            if world.hosts[name].disk.content.applied != leader.applied:
                raise Violation("every replica has the same state", f"{name} and {record.leader}")
        values = [value for _, value in leader.applied if value]
        if len(set(values)) != len(values):
            raise Violation("nothing is there twice", "a value")
        if record.policy is Policy.CONSISTENCY and record.unclean_terms:
            raise Violation("no unclean election under consistency", str(record.unclean_terms))
