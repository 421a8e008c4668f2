"""Directed histories for situations that random ones hardly ever reach: one seed in ten runs one of these scripts.

A script is a generator: it yields a number of seconds to wait, or a condition to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tests.simulation.network import BadCalls
from venus.replication import messages as m
from venus.replication.position import ReplicationTimes
from venus.replication.records import Policy

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.world import World

Script = Iterator[float | Callable[[], bool]]
LOOK_EVERY_S = 0.005
#: A script ends if one of its conditions takes longer than this.
GIVES_UP_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectedRun:
    """A script, and the parameters of its world."""

    play: Callable[[World], Script]
    policy: Policy = Policy.CONSISTENCY
    brokers: int = 3
    min_in_sync: int = 2
    patience: ReplicationTimes = field(default_factory=lambda: ReplicationTimes(lag_s=10.0, idle_s=0.2, fetch_s=0.3))


def play(world: World, directed: DirectedRun) -> None:
    """Run a script step by step."""
    script = directed.play(world)
    name = directed.play.__name__.strip("_").replace("_", " ")

    def advance(wanted: Callable[[], bool] | None, since: float) -> None:
        loop = world.loop
        if loop.now >= world.cruel_until or (wanted is not None and loop.now - since > GIVES_UP_S):
            loop.counts[f"script given up: {name}"] += 1
            world.cruel_until = loop.now
            return
        if wanted is not None and not wanted():
            loop.after(LOOK_EVERY_S, advance, wanted, since)
            return
        found = next(script, None)
        if found is None:
            loop.counts[f"script: {name}"] += 1
            world.cruel_until = loop.now
        elif callable(found):
            advance(found, loop.now)
        else:
            loop.after(found, advance, None, loop.now + found)

    advance(None, world.loop.now)


# -- steps that scripts share ------------------------------------------------------------------------------------------


def cast(world: World) -> Generator[float | Callable[[], bool], None, list[Host]]:
    """Wait until all brokers are in sync; return them, the leader first."""
    yield lambda: world.leader is not None and len(world.coordinator.record.in_sync) == len(world.hosts)
    leader = world.leader
    assert leader is not None
    return [leader, *(host for host in world.hosts.values() if host is not leader)]


def _until_in_sync(world: World, *hosts: Host) -> Callable[[], bool]:
    """Return a condition: the record's in-sync set is exactly these brokers."""
    return lambda: world.coordinator.record.in_sync == {host.me for host in hosts}


def _until_leader(host: Host) -> Callable[[], bool]:
    """Return a condition: this broker leads."""
    return lambda: host.world.leader is host


def lines(hosts: Iterable[Host], others: Iterable[Host] = ()) -> set[tuple[str, str]]:
    """Return the links between brokers and others, or the coordinator, in both directions."""
    pairs = {(a.name, b.name) for a in hosts for b in others if a is not b} or {(a.name, "@") for a in hosts}
    return pairs | {(b, a) for a, b in pairs}


def _kill(host: Host) -> None:
    """End a broker's process."""
    host.end()
    host.disk.crash()


def _until_elected(*hosts: Host) -> Callable[[], bool]:
    """Return a condition: one of these brokers runs an election."""
    return lambda: any(host.replica._elections._running is not None for host in hosts)


def _who_elects(*hosts: Host) -> Host:
    """Return the broker that runs an election."""
    return next(host for host in hosts if host.replica._elections._running is not None)


class _EventTap:
    """Records replies from one broker to another, as copies or instead of their delivery."""

    def __init__(self, source: Host, target: Host, wanted: Callable[[m.Answer], bool], *, holds: bool = False) -> None:
        self.kept: list[m.FetchReply] = []
        self._target, self._holds = target, holds
        network, line = source.world.network, (source.name, target.name)
        send = network.send

        def tap(sender: str, receiver: str, deliver: Callable[..., None], *arguments: Any) -> None:
            event: object = arguments[0] if arguments else None
            here = (sender, receiver) == line
            if here and isinstance(event, m.FetchReply) and event.answer is not None and wanted(event.answer):
                self.kept.append(event)
                if self._holds:
                    return
            send(sender, receiver, deliver, *arguments)

        network.send = tap  # type: ignore[method-assign, assignment]

    def release(self) -> None:
        """Deliver the first recorded reply."""
        self._holds = False
        self._target.take(self.kept[0])


def _tail(world: World, a: Host, b: Host, c: Host) -> Script:
    """Let the leader a send b entries that c does not get, then let c lead without b noticing."""
    b.draining, b.registered = True, False  # so that c is elected
    yield 1.2
    world.network.cut |= {(a.name, c.name)}
    yield lambda: b.disk.durable_end > c.disk.content.end
    _kill(a)
    world.network.cut.clear()
    world.network.cut |= lines([b], [c])
    yield _until_leader(c)


def _tail_and_a_slow_log(world: World) -> Generator[float | Callable[[], bool], None, Host]:
    """Let b be elected just before it truncates its tail; return the broker that has the same tail."""
    a, b, c = yield from cast(world)
    yield from _tail(world, a, b, c)
    b.disk.lag_s = 2.5
    b.log.order(("trim", 1))  # so that its log is busy
    yield 0.02
    world.network.cut.clear()
    yield lambda: b.replica.position.ordered > b.replica.position.done
    _kill(c)
    world.coordinator.leave(c.me)
    yield lambda: b.replica.leads
    b.disk.lag_s = 0.5
    return a


# -- scripts -------------------------------------------------------------------------------------------------------


def _fewer_are_enough(world: World) -> Script:
    """Lower the minimum to one while a leader's log is about to truncate entries of the former leader."""
    yield from _tail_and_a_slow_log(world)
    record = world.coordinator.record
    world.coordinator.swap(record, replace(record, min_in_sync=1, last_in_sync=frozenset()))
    yield 1.0


def _same_tail(world: World) -> Script:
    """Let a follower fetch that has the very entries that its leader is about to truncate."""
    a = yield from _tail_and_a_slow_log(world)
    a.start()
    a.read()
    yield lambda: a.me in world.coordinator.record.in_sync
    world.network.cut |= {(host, a.name) for host in world.hosts}
    yield 1.5
    world.network.cut.clear()


def _answer_of_an_older_term(world: World) -> Script:
    """Let entries sent in an older term arrive when the same broker leads again."""
    a, b, c = yield from cast(world)
    world.frame = 1
    behind: list[int] = []  # end of b's log when c began to lag

    def is_second_answer(answer: m.Answer) -> bool:
        return bool(behind) and isinstance(answer, m.Entries) and bool(answer.entries) and answer.first > behind[0]

    tap = _EventTap(a, b, is_second_answer, holds=True)
    b.draining, b.registered = True, False
    yield 1.2
    yield lambda: a.disk.content.end == b.disk.durable_end == c.disk.durable_end
    world.network.cut |= {(a.name, c.name)}
    behind.append(b.disk.content.end)
    yield lambda: bool(tap.kept) and b.disk.durable_end == c.disk.content.end + 1
    _kill(a)
    world.network.cut.clear()
    yield _until_leader(c)
    late = tap.kept[0].answer
    assert isinstance(late, m.Entries)
    yield lambda: b.disk.durable_end == late.first and b.replica.position.last_term > late.term
    world.network.cut |= lines([b], [c])
    a.start()
    a.read()
    yield lambda: a.me in world.coordinator.record.in_sync
    c.step(m.HandOverRequest(to=a.me))
    yield lambda: a.replica.leads and b.replica.known is not None and b.replica.known.leader == a.me
    yield lambda: b.disk.content.end == late.first
    tap.release()
    yield 0.5


def _late_diverge(world: World) -> Script:
    """Deliver the reply "the logs diverge" a second time, when they no longer diverge."""
    a, b, c = yield from cast(world)
    tap = _EventTap(c, b, lambda answer: isinstance(answer, m.LogsDiverge))
    yield from _tail(world, a, b, c)
    world.network.cut.clear()
    yield lambda: bool(tap.kept) and b.me in world.coordinator.record.in_sync
    yield 0.5
    tap.release()
    yield 0.5


def _late_trimmed(world: World) -> Script:
    """Deliver the reply "the leader's log begins later" a second time, when it is no longer relevant."""
    a, b, c = yield from cast(world)
    tap = _EventTap(a, b, lambda answer: isinstance(answer, m.LogTrimmed))
    world.network.cut |= lines([b], [a])
    yield _until_in_sync(world, a, c)
    behind = b.disk.content.end
    yield lambda: len(a.disk.content.applied) > behind + 1
    a.log.order(("trim", len(a.disk.content.applied) + 1))
    yield lambda: a.disk.content.start > behind
    world.network.cut.clear()
    yield lambda: bool(tap.kept) and b.me in world.coordinator.record.in_sync
    yield 0.5
    tap.release()
    yield 0.5


def _high_unheard(world: World) -> Script:
    """Elect a leader that does not know the high watermark; its follower has only entries up to the known one."""
    a, b, c = yield from cast(world)
    c.stopping = True
    world.coordinator.leave(c.me)
    yield _until_in_sync(world, a, b)
    world.rate, b.disk.lag_s = 0.0, 0.05
    yield lambda: a.disk.content.end == b.replica.high + 1 == c.disk.durable_end
    index = a.disk.content.end
    world.network.cut |= {(a.name, c.name)}
    world.write(a)
    yield lambda: b.disk.content.end > index
    world.network.cut |= {(a.name, b.name)}
    yield lambda: len(a.disk.content.applied) >= index
    _kill(a)
    world.network.cut.clear()
    c.disk.lag_s = 2.0
    c.stopping = False
    c.lease_again()
    yield _until_leader(b)
    yield 1.5


def _one_comes_back(world: World) -> Script:
    """Let the only complete broker return while the incomplete others elect without it."""
    a, b, *rest = yield from cast(world)
    world.network.cut |= lines(rest, world.hosts.values())
    yield _until_in_sync(world, a, b)
    _kill(a)
    _kill(b)
    yield _until_elected(*rest)
    b.start()
    b.draining = True  # so that it leaves elections to others
    b.lease_again()
    yield 1.0


def _living_unheard(world: World) -> Script:
    """Let a broker learn from nothing but the record that the leader has its lease again."""
    a, *rest = yield from cast(world)
    world.network.cut |= lines(rest, world.hosts.values())
    yield _until_in_sync(world, a)
    world.network.cut |= lines([a])
    yield _until_elected(*rest)
    elects = _who_elects(*rest)
    elects.deaf = True
    world.network.cut |= lines([host for host in rest if host is not elects])
    world.network.cut -= lines([a])
    a.lease_again()
    yield 2.0


def _swap_across_leases(world: World) -> Script:
    """Let the answer to a swap arrive after the lease of its request has ended and the next one has begun."""
    a, b, c, *rest = yield from cast(world)
    network, coordinator = world.network, world.coordinator
    network.cut |= lines([c, *rest], world.hosts.values())
    yield _until_in_sync(world, a, b)
    yield lambda: a.replica.refusal(world.loop.now) == ""
    network.bad_calls[a.name, "leases"] = BadCalls(lost=1.0)
    yield lambda: coordinator.lease_of(a.me) - world.loop.now < 0.05
    network.bad_calls[a.name, "swaps"] = BadCalls(late_s=0.9)
    network.cut |= lines([b])
    coordinator.leave(b.me)
    yield _until_elected(c, *rest)
    elects = _who_elects(c, *rest)
    network.cut |= {("@", elects.name), *lines([host for host in (c, *rest) if host is not elects])}
    network.bad_calls.pop((a.name, "leases"))
    a.lease_again()
    yield 2.0


_IMPATIENT = ReplicationTimes(lag_s=0.3, idle_s=0.2, fetch_s=0.3, ballot_s=0.5, election_every_s=0.3)
_FIVE = {"policy": Policy.AVAILABILITY, "brokers": 5, "min_in_sync": 1, "patience": _IMPATIENT}

SCRIPTS = (
    DirectedRun(play=_fewer_are_enough),
    DirectedRun(play=_same_tail),
    DirectedRun(play=_answer_of_an_older_term),
    DirectedRun(play=_late_diverge),
    DirectedRun(play=_late_trimmed, patience=_IMPATIENT),
    DirectedRun(play=_one_comes_back, **_FIVE),  # type: ignore[arg-type]
    DirectedRun(play=_living_unheard, **_FIVE),  # type: ignore[arg-type]
    DirectedRun(play=_swap_across_leases, **_FIVE),  # type: ignore[arg-type]
    DirectedRun(play=_high_unheard),
)


def script_of(seed: int) -> DirectedRun | None:
    """Return the script of a seed; nine seeds in ten have none."""
    return SCRIPTS[seed // 10 % len(SCRIPTS)] if seed % 10 == 9 else None
