"""Faults, their times and durations: the seed determines all of them before the history begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.simulation.coordinator import LEASE_S
from tests.simulation.network import BadCalls
from venus.replication import messages as m
from venus.replication.records import Policy

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.world import World


def plan(world: World, until: float) -> None:
    """Plan faults of some kinds until a time; each history has its own mix."""
    random = world.loop.random
    kinds = random.sample(world.faults, random.randint(2, len(world.faults)))
    pause = random.choice((0.3, 0.8, 2.0))
    at = world.loop.now
    while at < until:
        world.loop.at(at, _happen, world, random.choice(kinds), until)
        at += random.expovariate(1 / pause)


def _happen(world: World, fault: Callable[[World, float], None], until: float) -> None:
    """Cause a fault of random duration, and count it."""
    longest = until - world.loop.now
    seconds = min(longest, world.loop.random.choice((0.3, 1.5, 4.0)) * (0.5 + world.loop.random.random()))
    world.loop.counts[f"fault: {fault.__name__.strip('_').replace('_', ' ')}"] += 1
    if world.loop.traces:
        world.loop.say(f"fault {fault.__name__} {seconds:.2f} s")
    fault(world, seconds)


def at_the_worst_moment(world: World, host: Host) -> None:
    """Cause a fault at a leader that has just been elected, or that is changing the record."""
    random = world.loop.random
    if world.loop.now >= world.cruel_until or random.random() >= world.cruelty:
        return
    world.loop.counts["fault: at the worst moment"] += 1
    fault = random.choice((_end, _end, _silence, _pause_one, _trim_leaders))
    seconds = min(2.0, world.cruel_until - world.loop.now)
    world.loop.after(0.6 * random.random() ** 2, fault, world, host, host.life, seconds)


def _end(world: World, host: Host, life: int, seconds: float) -> None:
    """Cut the power of a broker, and restart it after a while."""
    if host.life == life and host.up:
        host.end()
        host.disk.lose_power(world.loop.random)
        restart_after(world, host, seconds * world.loop.random.random())


def _silence(world: World, host: Host, _: int, seconds: float) -> None:
    """Cut a broker off from two random peers, one of which may be the coordinator."""
    others = world.loop.random.sample([name for name in [*world.hosts, "@"] if name != host.name], 2)
    cut(world, {(other, host.name) for other in others} | {(host.name, other) for other in others}, seconds)


def _trim_leaders(world: World, *_: object) -> None:
    """Let each leader, including deposed ones, trim its log, so that a lagging follower must be installed."""
    for host in world.hosts.values():
        if host.up and host.replica.leads:
            host.log.order(("trim", len(host.disk.content.applied) + 1))


def _pause_one(world: World, host: Host, life: int, seconds: float) -> None:
    if host.life == life:
        host.paused_until = max(host.paused_until, world.loop.now + seconds)


def heal(world: World) -> None:
    """End all faults."""
    world.network.heal()
    world.coordinator.away = False
    for host in world.hosts.values():
        host.disk.lag_s = 0.0
        host.paused_until = 0.0
        host.stopping = host.deaf = host.draining = False
        if not host.up:
            host.start()


def some(world: Any) -> Any:
    """Choose a broker at random, the leader more often than the others."""
    random = world.loop.random
    record = world.coordinator.record
    if record.leader is not None and random.random() < 0.5:
        return world.hosts[record.leader.broker]
    return random.choice(list(world.hosts.values()))


def restart_after(world: World, host: Host, seconds: float) -> None:
    """Restart a broker after this many seconds, unless it has been restarted before."""

    def restart_host(life: int) -> None:
        if not host.up and host.life == life:
            host.start()

    world.loop.after(seconds, restart_host, host.life)


def _crash(world: World, seconds: float) -> None:
    """Kill a process."""
    host = some(world)
    if host.up:
        host.end()
        host.disk.crash()
        restart_after(world, host, seconds * world.loop.random.choice((0.02, 1)))


def _power_loss(world: World, seconds: float) -> None:
    """Cut the power of one machine, or of all."""
    host = some(world)
    hosts = list(world.hosts.values()) if world.loop.random.random() < 0.2 else [host]
    for host in hosts:
        if host.up:
            host.end()
            lost = host.disk.lose_power(world.loop.random)
            world.loop.counts[f"power loss that took {lost}"] += 1
            restart_after(world, host, seconds * world.loop.random.choice((0.02, 1)))


def _lose_store(world: World, seconds: float) -> None:
    """Lose a disk, or find a flipped bit: the broker restarts empty, as another member."""
    host, record = some(world), world.coordinator.record
    others = {other.me for other in world.hosts.values() if other is not host}
    if not host.up or (record.policy is Policy.CONSISTENCY and not record.candidates & others):
        return
    host.end()
    host.stores += 1
    host.disk = type(host.disk)(f"{host.name}{host.stores}")
    restart_after(world, host, seconds)


def _pause(world: World, seconds: float) -> None:
    """Pause a process."""
    host = some(world)
    host.paused_until = max(host.paused_until, world.loop.now + seconds)


def _partition(world: World, seconds: float) -> None:
    """Partition the network: cut some brokers, perhaps with the coordinator, off from the rest, one way or both."""
    random = world.loop.random
    places = [*world.hosts, "@"]
    side = set(random.sample(places, random.randint(1, len(places) - 1)))
    lines = {(a, b) for a in side for b in places if b not in side}
    direction = random.choice(("both", "both", "out", "in"))
    back = {(b, a) for a, b in lines}
    cut(world, {"both": lines | back, "out": lines, "in": back}[direction], seconds)


def _cut_one(world: World, seconds: float) -> None:
    """Cut one link of a broker, usually its link to the coordinator."""
    random = world.loop.random
    host = some(world).name
    other = random.choice([name for name in [*world.hosts, "@", "@"] if name != host])
    cut(world, random.choice(({(host, other), (other, host)}, {(host, other)}, {(other, host)})), seconds)


def cut(world: World, lines: set[tuple[str, str]], seconds: float) -> None:
    """Cut some links for a while."""
    seconds = min(seconds, world.cruel_until - world.loop.now)
    if seconds <= 0:
        return
    world.network.cut |= lines
    world.loop.after(seconds, world.network.cut.difference_update, lines)


def _bad_network(world: World, seconds: float) -> None:
    """Let messages between brokers be lost, late or doubled."""
    random, network = world.loop.random, world.network
    network.loss = random.choice((0.0, 0.05, 0.3))
    network.doubling = random.choice((0.0, 0.3))
    network.jitter_s = random.choice((0.05, 0.5, 3.0))
    network.late_s = random.choice((0.01, 1.0, 6.0))

    def end_bad_calls() -> None:
        network.loss = network.doubling = network.jitter_s = 0.0

    world.loop.after(seconds * 2, end_bad_calls)


def _coordinator_away(world: World, seconds: float) -> None:
    """Let the coordinator answer nothing for a while."""
    world.coordinator.away = True

    def restore_coordinator() -> None:
        world.coordinator.away = False

    world.loop.after(seconds * 2, restore_coordinator)


def _slow_coordinator(world: World, seconds: float) -> None:
    """Delay the coordinator's answers, often beyond their time limit."""
    network = world.network
    network.coordinator_jitter_s = world.loop.random.choice((0.2, 1.0, 2.5))

    def end_slowness() -> None:
        network.coordinator_jitter_s = 0.0

    world.loop.after(seconds * 2, end_slowness)


def _slow_disk(world: World, seconds: float) -> None:
    """Let the syncs of a disk take long."""
    disk = some(world).disk
    disk.lag_s = world.loop.random.choice((0.1, 0.5, 2.0))

    def end_slowness() -> None:
        disk.lag_s = 0.0

    world.loop.after(seconds, end_slowness)


def _trim(world: World, _: float) -> None:
    """Let a broker trim its log."""
    host = some(world)
    if host.up:
        content = host.disk.content
        host.log.order(("trim", world.loop.random.randint(content.start, len(content.applied) + 1)))


def _hand_over(world: World, _: float) -> None:
    """Request a hand-over to another broker, and count it if the leader gives up and continues."""
    leader = world.leader
    if leader is None:
        return
    others = [host.me for host in world.hosts.values() if host is not leader]
    world.loop.counts["hand-over asked for"] += 1
    leader.run(leader.life, leader.step, (m.HandOverRequest(to=world.loop.random.choice(others)),))

    def given_up(life: int, term: int) -> None:
        if leader.life == life and leader.acknowledges_in == term and leader.replica.leads:
            world.loop.counts["hand-over given up"] += not leader.replica.refusal(world.loop.now)

    world.loop.after(world.patience.hand_over_s + 0.5, given_up, leader.life, leader.acknowledges_in)


def _rolling_restart(world: World, _: float) -> None:
    """Let each broker hand over, stop and restart, one after the other."""

    def stop(names: list[str]) -> None:
        if not names:
            return
        host = world.hosts[names[0]]
        if host.up and host.replica.leads:
            record = world.coordinator.record
            others = sorted(record.in_sync - {host.me})
            if others:
                host.run(host.life, host.step, (m.HandOverRequest(to=others[0]),))
        world.loop.after(0.5, leave, names)

    def leave(names: list[str]) -> None:
        host = world.hosts[names[0]]
        if host.up and not host.paused_until > world.loop.now:
            world.loop.counts["clean stop"] += 1
            host.stopping = True
            world.coordinator.leave(host.me)
            host.end()
            host.disk.crash()
            restart_after(world, host, 0.3)
        world.loop.after(1.0, stop, names[1:])

    stop(list(world.hosts))


def _change_replicas(world: World, _: float) -> None:
    """Add or remove a replica, as an operator does."""
    record, random = world.coordinator.record, world.loop.random
    inside = list(record.replicas)
    spare = [name for name in world.hosts if name not in inside]
    if spare and (len(inside) <= 3 or random.random() < 0.5):
        inside.append(random.choice(spare))
    elif len(inside) > max(3 - bool(spare), record.min_in_sync):
        inside.remove(random.choice(inside))
    else:
        return
    world.loop.counts["replicas changed"] += 1
    world.coordinator.swap(record, replace(record, replicas=tuple(sorted(inside))))


def _change_minimum(world: World, _: float) -> None:
    """Change how many replicas a write needs, as an operator does."""
    record = world.coordinator.record
    wanted = world.loop.random.randint(1, len(record.replicas))
    last = record.last_in_sync
    if wanted < record.min_in_sync and len(record.in_sync) >= wanted:
        last = frozenset()  # removed replicas no longer count
    if wanted != record.min_in_sync:
        world.loop.counts["minimum changed"] += 1
        world.coordinator.swap(record, replace(record, min_in_sync=wanted, last_in_sync=last))


def _churn(world: World, _: float) -> None:
    """Let a follower's lease end and begin again, so that it leaves the in-sync set and rejoins it."""
    if world.loop.now >= world.cruel_until:
        return
    host = world.loop.random.choice(list(world.hosts.values()))
    if host.up and not host.replica.leads and host.paused_until <= world.loop.now:
        host.replica.lease_until = float("-inf")
        host.registered = False
        world.coordinator.leave(host.me)
        if world.loop.random.random() < 0.5:
            host.disk.lag_s = world.loop.random.choice((0.0, 0.1, 0.5))


def _lapse(world: World, _: float) -> None:
    """Cut a leader off from the coordinator for about the length of its lease."""
    leader = world.leader
    if leader is not None:
        seconds = min(LEASE_S + 0.8 * world.loop.random.random(), max(0.0, world.cruel_until - world.loop.now))
        cut(world, {(leader.name, "@"), ("@", leader.name)}, seconds)


def _lapse_unheard(world: World, seconds: float) -> None:
    """Let the lease of a leader end and begin again while the coordinator's answers to other brokers are lost."""
    others = {(name, "records"): BadCalls(unheard=0.5) for name in world.hosts if world.hosts[name] is not world.leader}
    _lapse(world, seconds)
    _bad_calls(world, others, LEASE_S + 3.0)


def _lapse_in_a_swap(world: World, _: float) -> None:
    """Let the lease of a leader end and begin again while an answer to one of its swaps is on its way."""
    leader, random = world.leader, world.loop.random
    if leader is None:
        return
    _bad_calls(world, {(leader.name, "leases"): BadCalls(lost=1.0)}, LEASE_S + 0.8 * random.random())
    _bad_calls(world, {(leader.name, "swaps"): BadCalls(late_s=0.95)}, LEASE_S + 2.0)
    for _ in range(3):
        world.loop.after(LEASE_S - 1.0 + random.random(), _churn, world, 0.0)


def _one_by_one(world: World, seconds: float) -> None:
    """Let the followers lag one after the other, while the leader continues as long as it may."""
    leader, random = world.leader, world.loop.random
    if leader is None:
        return
    gap = random.choice((0.5, 1.5, LEASE_S + 0.5))
    followers = random.sample([host for host in world.hosts.values() if host is not leader], len(world.hosts) - 1)
    for i, host in enumerate(followers):
        lines = {(host.name, leader.name), (leader.name, host.name)}
        if gap > LEASE_S:
            lines |= {(host.name, "@"), ("@", host.name)}
        world.loop.after(i * gap, cut, world, lines, (len(followers) - i) * gap + seconds / 2)


def _blink(world: World, _: float) -> None:
    """Let the only complete broker crash, and return while the others start to work without it."""
    leader = world.leader
    if leader is None or world.policy is Policy.CONSISTENCY:
        return
    names = list(world.hosts)
    cut(world, {(a, b) for a in names for b in names if a != b}, world.patience.lag_s + LEASE_S + 2.0)

    def start_when_lease_ends(life: int) -> None:
        if leader.life != life or leader.up:
            return
        if world.coordinator.lease_of(leader.me) > world.loop.now:
            world.loop.after(0.05, start_when_lease_ends, life)
        else:
            restart_after(world, leader, 0.6 * world.loop.random.random())

    def die(life: int) -> None:
        if leader.life == life and leader.up and world.loop.now < world.cruel_until:
            leader.end()
            leader.disk.crash()
            start_when_lease_ends(leader.life)

    world.loop.after(world.patience.lag_s + 0.5, die, leader.life)


def _bad_calls(world: World, calls: dict[tuple[str, str], BadCalls], seconds: float) -> None:
    """Disturb some calls to the coordinator for a while."""
    world.network.bad_calls.update(calls)

    def end_bad_calls() -> None:
        for call in calls:
            world.network.bad_calls.pop(call, None)

    world.loop.after(seconds, end_bad_calls)


def _doubles(world: World, seconds: float) -> None:
    """Deliver messages twice, some of them after the next election."""
    network = world.network
    network.doubling, network.late_s = 0.3, world.loop.random.choice((0.5, 3.0, 8.0))

    def end_bad_calls() -> None:
        network.doubling = 0.0

    world.loop.after(seconds * 2, end_bad_calls)


KINDS: tuple[Callable[[Any, float], None], ...] = (
    _crash,
    _power_loss,
    _lose_store,
    _pause,
    _partition,
    _cut_one,
    _bad_network,
    _coordinator_away,
    _slow_coordinator,
    _slow_disk,
    _trim,
    _hand_over,
    _rolling_restart,
    _change_replicas,
    _change_minimum,
    _churn,
    _churn,
    _lapse,
    _lapse_unheard,
    _lapse_in_a_swap,
    _doubles,
    _one_by_one,
    _blink,
)
