"""Faults of sets in tiers: processes, power, links, absences, forked histories, other networks, labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.brokers.memory_store import Families, Family, MemoryDisk
from tests.simulation.tiers.rows import random_where
from venus.broker.store import keys

if TYPE_CHECKING:
    from tests.simulation.tiers.host import TierHost
    from tests.simulation.tiers.world import TierWorld

#: Longer than sets remember absent groups, and longer than a set waits before it tries the next cut.
AWAY_S = 7.0


def plan(world: TierWorld, until: float) -> None:
    """Plan faults of some kinds until a time."""
    random = world.loop.random
    kinds = random.sample(KINDS, random.randint(2, len(KINDS)))
    if world.has_predicates and world.chooser.random() < 0.8:
        kinds += [change_predicates] * world.chooser.choice((1, 4, 8))
    if world.has_older:
        kinds += [refill_there] * 8
    if world.loses_disks:
        kinds += [lost_disk] * 4
    pause = random.choice((0.5, 1.0, 2.0))
    at = world.loop.now
    while at < until:
        world.loop.at(at, _happen, world, random.choice(kinds), until)
        at += random.expovariate(1 / pause)


def _happen(world: TierWorld, fault: Callable[[TierWorld, float], None], until: float) -> None:
    """Cause a fault of random duration, and count it."""
    random = world.loop.random
    seconds = min(until - world.loop.now, random.choice((0.3, 1.5, 4.0, 9.0)) * (0.5 + random.random()))
    world.loop.counts[f"fault: {fault.__name__.replace('_', ' ')}"] += 1
    if world.loop.traces:
        world.loop.say(f"fault {fault.__name__} {seconds:.2f} s")
    fault(world, seconds)


def some(world: TierWorld) -> TierHost:
    """Choose a set."""
    return world.loop.random.choice(list(world.hosts.values()))


def start_after(world: TierWorld, host: TierHost, seconds: float) -> None:
    """After a while, restart a set if it is down."""

    def start() -> None:
        if not host.up and world.foreign is None:
            host.start()

    world.loop.after(seconds, start)


def crash(world: TierWorld, seconds: float) -> None:
    """Kill a process."""
    host = some(world)
    if host.up and world.foreign is None:
        host.end()
        start_after(world, host, seconds)


def power_loss(world: TierWorld, seconds: float) -> None:
    """Cut the power of a machine."""
    host = some(world)
    if host.up and world.foreign is None:
        host.end()
        lost = host.disk.memory.lose_power(world.loop.random)
        world.loop.counts[f"power loss that took {lost}"] += 1
        start_after(world, host, seconds)


def lost_disk(world: TierWorld, seconds: float) -> None:
    """Give a mirror an empty disk."""
    host = world.loop.random.choice([host for host in world.hosts.values() if host.upstream])
    if host.up and world.foreign is None:
        host.end()
        host.replace_disk(MemoryDisk())
        start_after(world, host, seconds)


def interrupt_fills(world: TierWorld, _: float) -> None:
    """Interrupt the next fills, each at one of its chunks."""
    world.interruptions += [world.loop.random.randint(0, 3) for _ in range(4)]


def at_chunk(world: TierWorld, lower: TierHost, upper: TierHost) -> None:
    """Interrupt a fill that requests a chunk, if it is due: below, above, or between the two."""
    if not world.interruptions or world.foreign is not None:
        return
    world.interruptions[-1] -= 1
    if world.interruptions[-1] >= 0:
        return
    world.interruptions.pop()
    random = world.loop.random
    world.loop.counts["interrupted while it was filled"] += 1
    victim = random.choice((lower, lower, upper, None))
    if victim is None:
        _cut(world, {(lower.name, upper.name), (upper.name, lower.name)}, 0.5 + random.random())
        return
    victim.end()
    if random.random() < 0.5:
        victim.disk.memory.lose_power(random)
    start_after(world, victim, random.random())


def cut_line(world: TierWorld, seconds: float) -> None:
    """Cut the link of a set to one above, in one or both directions."""
    lower = world.loop.random.choice([host for host in world.hosts.values() if host.upstream])
    upper = world.loop.random.choice(lower.upstream)
    _cut(world, {(lower.name, upper), (upper, lower.name)}, seconds)


def cut_clients(world: TierWorld, seconds: float) -> None:
    """Cut the links of targets and producers to a set."""
    host = some(world).name
    _cut(world, {("!", host), (host, "!")}, seconds)


def _cut(world: TierWorld, links: set[tuple[str, str]], seconds: float) -> None:
    """Cut these links, or one direction of them, for a while."""
    chosen = world.loop.random.choice((links, {min(links)}, {max(links)}))
    world.network.cut |= chosen
    world.loop.after(seconds, lambda: world.network.cut.difference_update(chosen))


def pause(world: TierWorld, seconds: float) -> None:
    """Pause a process."""
    host = some(world)
    host.paused_until = max(host.paused_until, world.loop.now + seconds)


def slow_down_disk(world: TierWorld, seconds: float) -> None:
    """Make every sync of a machine slow."""
    disk = some(world).disk
    disk.lag_s = 0.1 * world.loop.random.random()

    def end_slowness() -> None:
        disk.lag_s = 0.0

    world.loop.after(seconds, end_slowness)


def kill_producer(world: TierWorld, _: float) -> None:
    """Kill the upper adapter process."""
    world.end_producers()


def kill_consumer(world: TierWorld, seconds: float) -> None:
    """Kill an under adapter process."""
    world.loop.random.choice(world.consumers).stop(seconds)


def backup(world: TierWorld, _: float) -> None:
    """Keep a copy of the home and its source."""
    if world.home.up and world.foreign is None:
        world.backup = (world.home.core.memory.freeze(), world.timeline.source.fork(), world.timeline)


def restore(world: TierWorld, _: float) -> None:
    """Restore the home and its source from the backup: another history with the same past follows."""
    if world.backup is None or world.foreign is not None:
        return
    families, source, timeline = world.backup
    home = world.home
    home.end()
    home.replace_disk(on_disk(families))
    end = home.disk.content
    world.loop.say(f"the home is restored: {end}")
    home.start()
    business = home.business
    offset = business.committed.next_offset if business is not None else 0
    world.begin_timeline(timeline.fork(source.fork(), offset))
    world.loop.counts["the home was restored"] += 1


def forget(world: TierWorld, _: float) -> None:
    """Forget the business at the home; a new source creates it again."""
    if world.foreign is not None or not world.home.up:
        return
    home = world.home
    network = home.core.store.get(keys.STATE, keys.NETWORK)
    assert network is not None
    home.end()
    fresh: Families = {name: Family() for name in keys.FAMILIES}
    fresh[keys.STATE].put(keys.NETWORK, network)
    home.replace_disk(on_disk(fresh))
    home.start()
    world.begin_timeline(world.new_timeline())
    world.loop.counts["the business was forgotten and made again"] += 1


def start_other_network(world: TierWorld, seconds: float) -> None:
    """Start the home of another network at the home's address for a while."""
    if world.foreign is not None or not world.home.up:
        return
    home, before = world.home, world.timeline
    home.end()
    world.foreign = home.replace_disk(MemoryDisk())
    home.start()
    world.end_producers()
    world.timeline = world.new_timeline()  # a value that must never reach a mirror

    def return_original_disk() -> None:
        if world.foreign is None:
            return
        home.end()
        home.replace_disk(world.foreign)
        world.foreign = None
        world.end_producers()
        world.timeline = before
        home.start()

    world.put_back = return_original_disk
    world.loop.after(max(seconds, 1.0), return_original_disk)


def change_labels(world: TierWorld, seconds: float) -> None:
    """Give the labelled set other labels, and restart it."""
    host = world.hosts.get("c")
    if host is None or not host.up:
        return
    host.end()
    host.labels = ("both",) if host.labels == ("one",) else ("one",)
    start_after(world, host, min(seconds, 1.0))


def change_predicates(world: TierWorld, seconds: float) -> None:
    """Give a set, or each tandem set, other predicates and restart it; sometimes revert the change soon after."""
    chooser, hosts = world.chooser, world.hosts
    name = chooser.choice([host.name for host in hosts.values() if host.upstream])
    names = ("t", "u") if name in ("t", "u") and "u" in hosts and chooser.random() < 0.5 else (name,)
    where, before = random_where(chooser), {name: hosts[name].where for name in names}
    for name in names:
        _restart(world, hosts[name], where, min(seconds, 1.0))
    if chooser.random() < 0.4:
        for name in names:
            world.loop.after(1.5 + chooser.random(), _restart, world, hosts[name], before[name], 0.2)
    elif len(names) == 1 and (twin := hosts.get({"t": "u", "u": "t"}.get(name, ""))) is not None:
        # the sets that moved away return
        world.loop.after(5.0 + 2.0 * chooser.random(), _restart, world, twin, twin.where, 2.0)


def refill_there(world: TierWorld, _: float) -> None:
    """Fill a tandem set again with other predicates at the offset of the sets below it, which are absent during this.

    No application writes, and the absent sets are forgotten, so the set does not wait for a later cut.
    """
    if "t" in world.hosts and world.loop.now >= world.quiet_until:
        world.quiet_until = world.loop.now + AWAY_S + 3.0
        world.loop.after(1.5, _fill_there, world)


def _fill_there(world: TierWorld) -> None:
    """Stop the sets below a tandem set, and restart the tandem set with other predicates."""
    upper = world.hosts["t"]
    below = [host for host in world.hosts.values() if upper.name in host.upstream and host.up]
    if world.is_healed or not upper.up:
        return
    for host in below:
        host.end()
        start_after(world, host, AWAY_S)
    _restart(world, upper, random_where(world.chooser), 0.2)


def _restart(world: TierWorld, host: TierHost, where: dict[str, str], seconds: float) -> None:
    """Stop a set, and restart it with other predicates after a while."""
    if host.up and not world.is_healed:
        host.end()
        host.where = where
        start_after(world, host, seconds)


def on_disk(families: Families) -> MemoryDisk:
    """Return a disk with this data."""
    disk = MemoryDisk()
    disk.families = {name: family.copy() for name, family in families.items()}
    disk._base = {name: family.copy() for name, family in families.items()}
    return disk


def heal(world: TierWorld) -> None:
    """End all faults."""
    world.is_healed = True
    world.quiet_until = 0.0
    world.network.heal()
    world.interruptions.clear()
    world.put_back()
    for host in world.hosts.values():
        host.disk.lag_s = 0.0
        host.paused_until = 0.0
        if not host.up:
            host.start()


KINDS = (
    crash,
    power_loss,
    interrupt_fills,
    cut_line,
    cut_clients,
    pause,
    slow_down_disk,
    kill_producer,
    kill_consumer,
    backup,
    restore,
    forget,
    start_other_network,
    change_labels,
)
