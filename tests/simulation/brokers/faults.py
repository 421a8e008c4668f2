"""Faults of whole brokers only: clocks, disk space, disk errors, damage, clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation import faults as common

if TYPE_CHECKING:
    from tests.simulation.brokers.world import BrokerWorld


def step_clock(world: BrokerWorld, _: float) -> None:
    """Set the clock of a machine forward or back."""
    host = world.loop.random.choice(list(world.hosts.values()))
    host.clock_ahead_s += world.loop.random.choice((-86400.0, -60.0, -1.0, 1.0, 60.0, 86400.0))


def fill_disk(world: BrokerWorld, seconds: float) -> None:
    """Leave almost no free space on a machine."""
    host = common.some(world)
    host.free_bytes = world.loop.random.choice((0, 1 << 19))

    def free_space() -> None:
        host.free_bytes = 1 << 30

    world.loop.after(seconds, free_space)


def fail_next_write(world: BrokerWorld, _: float) -> None:
    """Make one of the next writes of a broker fail."""
    host = common.some(world)
    if host.up:
        host.disk.memory.fails_after = world.loop.random.randint(0, 20)


def flip_bit(world: BrokerWorld, seconds: float) -> None:
    """Flip a bit in the log of a broker that is down, if other brokers have all its entries."""
    host, record = common.some(world), world.coordinator.record
    others = {other.me for other in world.hosts.values() if other is not host}
    if not host.up or world.damaged or not record.candidates & others:
        return
    host.end()
    if host.disk.memory.flip(world.loop.random):
        world.damaged = host.disk.store
    common.restart_after(world, host, seconds)


def cut_client_lines(world: BrokerWorld, seconds: float) -> None:
    """Cut clients from a broker, in one direction or in both."""
    host = common.some(world).name
    cut = world.loop.random.choice(({("!", host), (host, "!")}, {("!", host)}, {(host, "!")}))
    common.cut(world, cut, seconds)


def kill_producers(world: BrokerWorld, _: float) -> None:
    """Kill every upper adapter process."""
    for producer in world.producers:
        producer.end()


def kill_consumer(world: BrokerWorld, seconds: float) -> None:
    """Kill an under adapter, sometimes for so long that the queue is trimmed."""
    world.loop.random.choice(world.consumers).stop(seconds)


KINDS = (
    *common.KINDS,
    step_clock,
    fill_disk,
    fail_next_write,
    flip_bit,
    cut_client_lines,
    kill_producers,
    kill_consumer,
)
