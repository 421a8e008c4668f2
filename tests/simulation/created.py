"""The protocol in a new business, with the product's record and requests for another leader."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from tests.simulation.host import Host
from tests.simulation.judge import Judge, Violation
from tests.simulation.world import World
from venus.broker.replicas.effects import Coordination
from venus.broker.replicas.host import LeaderRequests
from venus.broker.replicas.placement import ClusterView, ReplicaPlacement
from venus.replication import messages as m
from venus.replication.records import Leadership, LiveBroker, Policy


class _HandingOverHost(Host):
    """A broker that hands over its leadership on request with the product's code."""

    world: CreatedWorld

    def start(self, *, begins: bool = False) -> None:
        super().start(begins=begins)
        coordination = SimpleNamespace(swap=lambda before, after: self.swap(m.Swap(before=before, after=after)))
        self.requests = LeaderRequests(
            self.me,
            self.world.wanted,
            cast(Coordination, coordination),
            self._take,
            lambda: self.loop.now,
            rebalance=False,
        )
        self.every(0.5, self._execute)

    def _take(self, _: str, event: m.HandOverRequest) -> None:
        self.loop.counts["handed over as requested"] += 1
        self.step(event)

    def _execute(self) -> None:
        """Carry out the record's request for another leader, if this broker leads."""
        record, live = self.replica.known, self.replica.live
        if record is not None and live is not None and self.replica.leads:
            view = ClusterView(live.values(), [record])
            if self.world.wanted.next_record(record, view) is None:
                self.requests.execute({"shop": self.replica}, {"shop": record}, view)


class _ForgottenJudge(Judge):
    """Judge that also checks that no entry of the forgotten business reappears."""

    def on_lead(self, host: Host, term: int) -> None:
        super().on_lead(host, term)
        if any(value < 0 for _, value in (*host.disk.content.applied, *host.disk.content.entries)):
            raise Violation("no entry of a forgotten business comes back", f"{host.me} leads with one")


class CreatedWorld(World):
    """The protocol in a new business, with the product's record and a hand-over to the leader that the record requests.

    In half of the histories under consistency a replica still has the data of a forgotten business of the same name.
    """

    host_class = _HandingOverHost
    judge_class = _ForgottenJudge
    policies = (Policy.CONSISTENCY, Policy.AVAILABILITY)

    def first_record(self, names: str) -> Leadership:
        """Return the record that broker a creates; the scheduler prefers a or b as leader."""
        leader = self.loop.random.choice("ab")
        live = [
            LiveBroker(member=host.me, address=host.name, priority=host.name != leader) for host in self.hosts.values()
        ]
        self.wanted = ReplicaPlacement(replicas=len(names), policy=self.policy, min_in_sync=self.min_in_sync)
        made = self.wanted.new_record("shop", self.hosts["a"].me, ClusterView(live), 2)
        if self.policy is Policy.CONSISTENCY and self.loop.random.random() < 0.5:
            self._leave_data(self.hosts[self.loop.random.choice("bc")])
        return replace(made, version=1)

    def _leave_data(self, host: Host) -> None:
        """Leave entries of a forgotten business, which have negative values, on a broker's disk."""
        entries = [(1, -value) for value in range(1, self.loop.random.choice((3, 300)))]
        for entry in entries:
            host.disk.change(("append", entry))
        host.disk.change(("apply", entries[: self.loop.random.randrange(len(entries))]))
        host.disk.crash()
        self.loop.counts["data of a forgotten business"] += 1
