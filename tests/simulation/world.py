"""Brokers, a network, a coordinator and clients; the seed determines the history."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation import directed, directed_cuts, faults
from tests.simulation.coordinator import SimulatedCoordinator, describe
from tests.simulation.host import Host
from tests.simulation.judge import Judge, Violation
from tests.simulation.loop import Loop
from tests.simulation.network import Network
from venus.replication import messages as m
from venus.replication.position import ReplicationTimes
from venus.replication.records import Leadership, Policy

#: Time limits of the recovery, from the end of all faults.
LEADER_WITHIN_S = 5.0
CONVERGED_WITHIN_S = 40.0


class World:
    """The complete state of one history."""

    host_class: type[Host] = Host
    judge_class: type[Judge] = Judge
    policies: tuple[Policy, ...] = (Policy.CONSISTENCY, Policy.CONSISTENCY, Policy.AVAILABILITY)
    faults = faults.KINDS

    def __init__(self, seed: int, say: Callable[[str], None] | None = None) -> None:
        self.loop = Loop(seed, say)
        random = self.loop.random
        self.policy = random.choice(self.policies)
        self.script = self.script_of(seed)
        count = random.choice((3, 3, 3, 3, 5))
        spare = random.random() < 0.2  # whether a broker has no replica at first
        self.patience = ReplicationTimes(
            lag_s=random.choice((0.3, 0.6, 1.5, 10.0)),
            idle_s=random.choice((0.2, 0.5)),
            fetch_s=random.choice((0.3, 1.0, 3.0)),
            election_every_s=random.choice((0.3, 1.0)),
            ballot_s=random.choice((0.1, 0.5)),
            silence_s=(0.6, 1.5, 5.0)[seed % 3],
        )
        self.tick_s = random.choice((0.1, 0.2))
        self.frame = random.choice((1, 3, 30))  # maximum number of entries in a reply
        self.rate = random.choice((0.3, 1.0, 3.0))
        self.cruelty = random.choice((0.0, 0.2, 0.5))  # probability of a fault at the worst moment
        self.cruel_until = 0.0
        minimum = count // 2 + 1 if self.policy is Policy.CONSISTENCY else random.choice((1, 1, 2))
        if self.script is not None:
            count, spare, self.policy = self.script.brokers, False, self.script.policy
            minimum, self.patience = self.script.min_in_sync, self.script.patience
            self.rate, self.cruelty = 1.0, 0.0
        self.network = Network(self.loop)
        self.coordinator = SimulatedCoordinator(self.loop)
        self.judge = self.judge_class(self)
        self.coordinator.stored = self.judge.on_record
        self.slowest_s = 0.0  # longest duration of a failover of the whole cluster
        self._value = 0
        names = "abcdef"[: count + spare]
        self.hosts = {name: self.host_class(self, name, priority) for priority, name in enumerate(names)}
        self.min_in_sync = minimum
        self.coordinator.record = self.first_record(names[:count])
        for host in self.hosts.values():  # whether broker a has created the record
            host.start(begins=host.name == "a" and self.coordinator.record.leader == host.me)

    def first_record(self, names: str) -> Leadership:
        """Return the record with which a history begins; the brokers in `names` have a replica."""
        first = self.hosts["a"].me
        return Leadership(
            business="shop",
            term=1,
            leader=first,
            in_sync=frozenset({first}),
            replicas=tuple(names),
            policy=self.policy,
            min_in_sync=self.min_in_sync,
            version=1,
        )

    # -- clients and operators -------------------------------------------------------------------------------------

    def propose(self, host: Host) -> None:
        """Let clients write to a broker that accepts it."""
        if host.acknowledges_in is None or host.replica.refusal(self.loop.now):
            return
        for _ in range(int(self.rate * 2 * self.loop.random.random() + 0.5)):
            self.write(host)

    def write(self, host: Host) -> None:
        """Let a client write to a leader."""
        self._value += 1
        host.log.order(("propose", host.acknowledges_in, self._value))

    def install(self, host: Host, effect: m.Reinstall) -> None:
        """Install the leader's state; retry until it succeeds or another leader is named."""
        self.loop.counts["reinstalled after diverging" if "other entries" in effect.reason else "reinstalled"] += 1
        host.installing = effect.leader
        if host.disk.content.whole:
            host.disk.change(("wipe",))
            host.disk.crash()
        self.judge.on_reinstall(host)
        host.log.notify()
        host.soon(0.05 + 0.5 * self.loop.random.random(), self._finish_install, host, effect)

    def _finish_install(self, host: Host, effect: m.Reinstall) -> None:
        """Copy the leader's state if it can be reached and still leads; otherwise try again later."""
        if host.installing != effect.leader:
            return
        leader = self.hosts[effect.leader.broker]
        links = {(host.name, leader.name), (leader.name, host.name)}
        if not leader.up or leader.me != effect.leader or not leader.replica.leads or links & self.network.cut:
            host.soon(0.3, self._finish_install, host, effect)
            return
        source = leader.disk.content
        start = len(source.applied) + 1
        host.disk.change(("install", start, source.terms.truncate(start).trim(start), source.applied))
        host.disk.crash()
        host.installing = None
        self.judge.on_reinstall(host)
        host.step(m.CopyInstalled(log=host.log.now()))

    def script_of(self, seed: int) -> directed.DirectedRun | None:
        """Return the script of this seed, if it has one."""
        return directed.script_of(seed) or directed_cuts.script_of(seed)

    @property
    def newest_value(self) -> int:
        """Return the value that a client wrote last."""
        return self._value

    @property
    def leader(self) -> Host | None:
        """Return the broker that leads according to the coordinator, if it leads by its own state too."""
        record = self.coordinator.record
        if record.leader is None:
            return None
        host = self.hosts[record.leader.broker]
        leads = host.up and host.me == record.leader and host.replica.leads and host.acknowledges_in == record.term
        return host if leads else None

    # -- a history -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run faults, end them, wait until all have everything, kill the leader, wait again, and check the result."""
        self.loop.run_until(2.0)
        end = 2.0 + (self.loop.random.choice((6.0, 12.0)) if self.script is None else 20.0)
        self.cruel_until = end
        if self.script is not None:
            directed.play(self, self.script)
        else:
            faults.plan(self, end)
        self.loop.run_until(end, lambda: self.loop.now >= self.cruel_until)
        self.loop.say("everything is whole again")
        faults.heal(self)
        if self.has_lost_every_copy():
            self.loop.counts["no broker has everything any more"] += 1
            return
        self._wait_until_led()
        self._wait_until_written()
        self._wait_until_converged()
        if self.loop.random.random() < 0.3:
            self._fail_over()
        self.judge.check_final_state()

    def has_lost_every_copy(self) -> bool:
        """Return whether every complete broker has lost its disk: then no broker may lead under consistency."""
        record = self.coordinator.record
        stores = {host.me for host in self.hosts.values()}
        return self.policy is Policy.CONSISTENCY and not record.candidates & stores

    def _wait_until_led(self) -> None:
        deadline = self.loop.now + LEADER_WITHIN_S
        if not self.loop.run_until(deadline, lambda: self.leader is not None):
            raise Violation("a leader within 5 s", describe(self.coordinator.record))

    def _wait_until_written(self) -> None:
        """Wait until a value written from now on is acknowledged. Raises Violation."""
        self.rate, before = 1.0, self._value
        if not self.loop.run_until(
            self.loop.now + CONVERGED_WITHIN_S, lambda: max(self.judge.acknowledged, default=0) > before
        ):
            raise Violation("a write is acknowledged within 40 s", describe(self.coordinator.record))

    def _wait_until_converged(self) -> None:
        self.rate = 0.0
        if not self.loop.run_until(self.loop.now + CONVERGED_WITHIN_S, self.judge.has_converged):
            raise Violation("all replicas are complete within 40 s", describe(self.coordinator.record))

    def _fail_over(self) -> None:
        """Kill the leader once all have converged, unless there is only one replica."""
        self.loop.run_until(self.loop.now + 3.0)  # everything sent before has arrived, even a late refresh of a lease
        self._wait_until_converged()
        if len(self.coordinator.record.replicas) < 2:
            return  # operators have removed all replicas but one, so no other broker can lead
        leader = self.leader
        assert leader is not None
        self.loop.say(f"kill {leader.me}")
        leader.end()
        leader.disk.lose_power(self.loop.random)
        began = self.loop.now
        self._wait_until_led()
        self.loop.counts["fail-over of a whole cluster"] += 1
        self.slowest_s = self.loop.now - began
        leader.start()
        self._wait_until_converged()
