"""Scripts in which a leader reaches the coordinator and clients, but not its followers: writes must continue.

Each script checks its condition during the cut, because everything works again afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.directed import DirectedRun, Script, cast, lines
from tests.simulation.judge import Violation
from venus.replication import messages as m
from venus.replication.position import ReplicationTimes

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.world import World

#: Longest time until a write is acknowledged after a cut, with the patience below.
WRITES_WITHIN_S = 4.0
WRITES_CONTINUE = "writes continue while a leader reaches none of its followers"
NO_BOUNCE = "a leader that resigned leaves the next term to others"
FEW_TERMS = "brokers that do not reach each other resign ever more rarely"
_PATIENCE = ReplicationTimes(lag_s=10.0, idle_s=0.2, fetch_s=0.3, silence_s=1.0)


def _writes_continue(world: World, invariant: str = WRITES_CONTINUE) -> Script:
    """Wait until a value written after now is acknowledged."""
    newest, until = world.newest_value, world.loop.now + WRITES_WITHIN_S

    def is_written() -> bool:
        if world.loop.now > until:
            raise Violation(invariant, f"nothing was acknowledged within {WRITES_WITHIN_S:g} s")
        return max(world.judge.acknowledged, default=0) > newest

    yield is_written


def _stays_away(world: World, resigned: Host) -> Script:
    """Fail if the leader that has resigned leads again while another broker can lead."""
    term = world.coordinator.record.term

    def leads_again() -> bool:
        if world.coordinator.record.leader == resigned.me:
            raise Violation(NO_BOUNCE, f"{resigned.me} leads again")
        return False

    for _ in range(8):
        yield 0.5
        leads_again()
    if world.coordinator.record.term != term:
        raise Violation(NO_BOUNCE, f"from term {term} to {world.coordinator.record.term}")


def _reaches_none(world: World) -> Script:
    """Cut the links between the leader and all of its followers."""
    a, *rest = yield from cast(world)
    world.network.cut |= lines([a], rest)
    yield from _writes_continue(world)
    yield from _stays_away(world, a)


def _is_not_heard(world: World) -> Script:
    """Drop everything from the leader to its followers, but not the other direction."""
    a, *rest = yield from cast(world)
    world.network.cut |= {(a.name, host.name) for host in rest}
    yield from _writes_continue(world)
    yield from _stays_away(world, a)


def _streams_hang(world: World) -> Script:
    """Let ballots pass, which have separate connections, while fetches and their replies are lost."""
    a, *_ = yield from cast(world)
    send = world.network.send

    def without_fetches(sender: str, receiver: str, deliver: Callable[..., None], *arguments: Any) -> None:
        event: object = arguments[0] if arguments else None
        if not (a.name in (sender, receiver) and isinstance(event, m.FetchRequest | m.FetchReply)):
            send(sender, receiver, deliver, *arguments)

    world.network.send = without_fetches  # type: ignore[method-assign, assignment]
    yield lambda: world.coordinator.record.leader is None
    yield lambda: world.coordinator.record.leader is not None
    yield from _stays_away(world, a)
    world.network.send = send  # type: ignore[method-assign]


def _one_is_cut_off(world: World) -> Script:
    """Cut one follower off from the leader: the other follower suffices."""
    a, b, *_ = yield from cast(world)
    world.network.cut |= lines([a], [b])
    yield from _writes_continue(world, "one follower that is cut off does not delay writes")


def _all_apart(world: World) -> Script:
    """Cut every broker off from every other: no leader can acknowledge anything."""
    hosts = yield from cast(world)
    world.network.cut |= lines(hosts, hosts)
    term = world.coordinator.record.term
    yield 18.0
    if world.coordinator.record.term > term + 15:
        raise Violation(FEW_TERMS, f"from term {term} to {world.coordinator.record.term}")


SCRIPTS = (
    DirectedRun(play=_reaches_none, patience=_PATIENCE),
    DirectedRun(play=_is_not_heard, patience=_PATIENCE),
    DirectedRun(play=_streams_hang, patience=_PATIENCE),
    DirectedRun(play=_one_is_cut_off, patience=_PATIENCE),
    DirectedRun(play=_all_apart, patience=_PATIENCE),
)


def script_of(seed: int) -> DirectedRun | None:
    """Return the script of a seed; one seed in a hundred has one of these."""
    return SCRIPTS[seed // 100 % len(SCRIPTS)] if seed % 100 == 98 else None
