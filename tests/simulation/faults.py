"""What goes wrong, when and for how long: planned from the seed before it begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.coordinator import LEASE_S
from venus.replication import messages as m
from venus.replication.records import Policy

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.world import World


def plan(world: World, until: float) -> None:
    """Let faults of some kinds happen until a time; each history has its own mix."""
    random = world.loop.random
    kinds = random.sample(_KINDS, random.randint(2, len(_KINDS)))
    pause = random.choice((0.3, 0.8, 2.0))
    at = world.loop.now
    while at < until:
        world.loop.at(at, _happen, world, random.choice(kinds), until)
        at += random.expovariate(1 / pause)


def _happen(world: World, fault: Callable[[World, float], None], until: float) -> None:
    longest = until - world.loop.now
    seconds = min(longest, world.loop.random.choice((0.3, 1.5, 4.0)) * (0.5 + world.loop.random.random()))
    world.loop.counts[f"fault: {fault.__name__.strip('_').replace('_', ' ')}"] += 1
    if world.loop.traces:
        world.loop.say(f"fault {fault.__name__} {seconds:.2f} s")
    fault(world, seconds)


def at_the_worst_moment(world: World, host: Host) -> None:
    """Let something happen to a leader that has just begun, or whose change of the record is under way."""
    random = world.loop.random
    if world.loop.now >= world.cruel_until or random.random() >= world.cruelty:
        return
    world.loop.counts["fault: at the worst moment"] += 1
    fault = random.choice((_end, _end, _silence, _pause_one, _trim_leaders))
    seconds = min(2.0, world.cruel_until - world.loop.now)
    world.loop.after(0.6 * random.random() ** 2, fault, world, host, host.life, seconds)


def _end(world: World, host: Host, life: int, seconds: float) -> None:
    if host.life == life and host.up:
        host.end()
        host.disk.lose_power(world.loop.random)
        _restart_after(world, host, seconds * world.loop.random.random())


def _silence(world: World, host: Host, _: int, seconds: float) -> None:
    others = world.loop.random.sample([name for name in [*world.hosts, "@"] if name != host.name], 2)
    _cut(world, {(other, host.name) for other in others} | {(host.name, other) for other in others}, seconds)


def _trim_leaders(world: World, *_: object) -> None:
    """Let whoever leads, or thinks so, forget its log: who is behind has to be installed."""
    for host in world.hosts.values():
        if host.up and host.replica.leads:
            host.log.order(("trim", len(host.disk.content.applied) + 1))


def _pause_one(world: World, host: Host, life: int, seconds: float) -> None:
    if host.life == life:
        host.paused_until = max(host.paused_until, world.loop.now + seconds)


def heal(world: World) -> None:
    """End everything that is wrong."""
    world.network.heal()
    world.coordinator.away = False
    for host in world.hosts.values():
        host.disk.lag_s = 0.0
        host.paused_until = 0.0
        host.stopping = False
        if not host.up:
            host.start()


def _some(world: World) -> Host:
    """Choose a broker, the leader more often than the others."""
    random = world.loop.random
    record = world.coordinator.record
    if record.leader is not None and random.random() < 0.5:
        return world.hosts[record.leader.broker]
    return random.choice(list(world.hosts.values()))


def _restart_after(world: World, host: Host, seconds: float) -> None:
    def again(life: int) -> None:
        if not host.up and host.life == life:
            host.start()

    world.loop.after(seconds, again, host.life)


def _crash(world: World, seconds: float) -> None:
    host = _some(world)
    if host.up:
        host.end()
        host.disk.crash()
        _restart_after(world, host, seconds * world.loop.random.choice((0.02, 1)))


def _power_loss(world: World, seconds: float) -> None:
    host = _some(world)
    hosts = list(world.hosts.values()) if world.loop.random.random() < 0.2 else [host]
    for host in hosts:
        if host.up:
            host.end()
            lost = host.disk.lose_power(world.loop.random)
            world.loop.counts[f"power loss that took {lost}"] += 1
            _restart_after(world, host, seconds * world.loop.random.choice((0.02, 1)))


def _lose_store(world: World, seconds: float) -> None:
    """Lose a disk, or find a flipped bit: the broker comes back empty, as another member."""
    host, record = _some(world), world.coordinator.record
    others = {other.me for other in world.hosts.values() if other is not host}
    if not host.up or (record.policy is Policy.CONSISTENCY and not record.candidates & others):
        return
    host.end()
    host.stores += 1
    host.disk = type(host.disk)(f"{host.name}{host.stores}")
    _restart_after(world, host, seconds)


def _pause(world: World, seconds: float) -> None:
    host = _some(world)
    host.paused_until = max(host.paused_until, world.loop.now + seconds)


def _partition(world: World, seconds: float) -> None:
    """Let some brokers, the coordinator perhaps among them, not hear the others, or not be heard."""
    random = world.loop.random
    places = [*world.hosts, "@"]
    side = set(random.sample(places, random.randint(1, len(places) - 1)))
    cut = {(a, b) for a in side for b in places if b not in side}
    direction = random.choice(("both", "both", "out", "in"))
    cut = {"both": cut | {(b, a) for a, b in cut}, "out": cut, "in": {(b, a) for a, b in cut}}[direction]
    _cut(world, cut, seconds)


def _cut_one(world: World, seconds: float) -> None:
    """Cut one line of a broker, more often the one to the coordinator."""
    random = world.loop.random
    host = _some(world).name
    other = random.choice([name for name in [*world.hosts, "@", "@"] if name != host])
    _cut(world, random.choice(({(host, other), (other, host)}, {(host, other)}, {(other, host)})), seconds)


def _cut(world: World, cut: set[tuple[str, str]], seconds: float) -> None:
    world.network.cut |= cut
    world.loop.after(seconds, world.network.cut.difference_update, cut)


def _bad_network(world: World, seconds: float) -> None:
    random, network = world.loop.random, world.network
    network.loss = random.choice((0.0, 0.05, 0.3))
    network.doubling = random.choice((0.0, 0.3))
    network.jitter_s = random.choice((0.05, 0.5, 3.0))
    network.late_s = random.choice((0.01, 1.0, 6.0))

    def good() -> None:
        network.loss = network.doubling = network.jitter_s = 0.0

    world.loop.after(seconds * 2, good)


def _coordinator_away(world: World, seconds: float) -> None:
    world.coordinator.away = True

    def back() -> None:
        world.coordinator.away = False

    world.loop.after(seconds * 2, back)


def _slow_coordinator(world: World, seconds: float) -> None:
    """Let answers of the coordinator come late, often too late to be heard."""
    network = world.network
    network.coordinator_jitter_s = world.loop.random.choice((0.2, 1.0, 2.5))

    def fast() -> None:
        network.coordinator_jitter_s = 0.0

    world.loop.after(seconds * 2, fast)


def _slow_disk(world: World, seconds: float) -> None:
    disk = _some(world).disk
    disk.lag_s = world.loop.random.choice((0.1, 0.5, 2.0))

    def fast() -> None:
        disk.lag_s = 0.0

    world.loop.after(seconds, fast)


def _trim(world: World, _: float) -> None:
    host = _some(world)
    if host.up:
        content = host.disk.content
        host.log.order(("trim", world.loop.random.randint(content.start, len(content.applied) + 1)))


def _hand_over(world: World, _: float) -> None:
    leader = world.leader
    if leader is None:
        return
    others = [host.me for host in world.hosts.values() if host is not leader]
    world.loop.counts["hand-over asked for"] += 1
    leader.run(leader.life, leader.step, (m.HandOver(to=world.loop.random.choice(others)),))

    def given_up(life: int, term: int) -> None:
        if leader.life == life and leader.acknowledges_in == term and leader.replica.leads:
            world.loop.counts["hand-over given up"] += not leader.replica.refusal(world.loop.now)

    world.loop.after(world.patience.hand_over_s + 0.5, given_up, leader.life, leader.acknowledges_in)


def _rolling_restart(world: World, _: float) -> None:
    """Let each broker hand over, leave and come back, one after the other."""

    def stop(names: list[str]) -> None:
        if not names:
            return
        host = world.hosts[names[0]]
        if host.up and host.replica.leads:
            record = world.coordinator.record
            others = sorted(record.in_sync - {host.me})
            if others:
                host.run(host.life, host.step, (m.HandOver(to=others[0]),))
        world.loop.after(0.5, leave, names)

    def leave(names: list[str]) -> None:
        host = world.hosts[names[0]]
        if host.up and not host.paused_until > world.loop.now:
            world.loop.counts["clean stop"] += 1
            host.stopping = True
            world.coordinator.leave(host.me)
            host.end()
            host.disk.crash()
            _restart_after(world, host, 0.3)
        world.loop.after(1.0, stop, names[1:])

    stop(list(world.hosts))


def _change_replicas(world: World, _: float) -> None:
    """Let an operator add a replica, or remove one."""
    record, random = world.coordinator.record, world.loop.random
    inside = list(record.replicas)
    spare = [name for name in world.hosts if name not in inside]
    if spare and (len(inside) <= 3 or random.random() < 0.5):
        inside.append(random.choice(spare))
    elif len(inside) > 3 or (spare and len(inside) > 2):
        inside.remove(random.choice(inside))
    else:
        return
    world.loop.counts["replicas changed"] += 1
    world.coordinator.swap(record, replace(record, replicas=tuple(sorted(inside))))


def _change_minimum(world: World, _: float) -> None:
    """Let an operator change how many replicas must have what is acknowledged."""
    record = world.coordinator.record
    wanted = world.loop.random.randint(1, (len(record.replicas) + 2) // 2)
    last = record.last_in_sync
    if wanted < record.min_in_sync and len(record.in_sync) >= wanted:
        last = frozenset()  # they are not asked any more
    if wanted != record.min_in_sync:
        world.loop.counts["minimum changed"] += 1
        world.coordinator.swap(record, replace(record, min_in_sync=wanted, last_in_sync=last))


def _churn(world: World, _: float) -> None:
    """Let a follower give its lease up and get another one: it leaves the in-sync set and joins it again."""
    host = world.loop.random.choice(list(world.hosts.values()))
    if host.up and not host.replica.leads and host.paused_until <= world.loop.now:
        host.replica.lease_until = float("-inf")
        host.registered = False
        world.coordinator.leave(host.me)
        if world.loop.random.random() < 0.5:
            host.disk.lag_s = world.loop.random.choice((0.0, 0.1, 0.5))


def _lapse(world: World, _: float) -> None:
    """Cut a leader from the coordinator for about as long as its lease lasts."""
    leader = world.leader
    if leader is not None:
        seconds = min(LEASE_S + 0.8 * world.loop.random.random(), max(0.0, world.cruel_until - world.loop.now))
        _cut(world, {(leader.name, "@"), ("@", leader.name)}, seconds)


_KINDS = [
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
]
