"""`venus cluster move`, `balance`, `drain`, `add`, `remove`: which brokers replicate and lead a business.

Each command writes a request to the coordinator and waits until the brokers have fulfilled it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from venus.cli.cluster import open_coordinator
from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.errors import ConfigError, Unavailable, VenusError
from venus.model import count_phrase
from venus.text.formatting import format_duration, suggest_nearest

if TYPE_CHECKING:
    from venus.cli.output import Output
    from venus.coordination.etcd import EtcdCoordinator
    from venus.replication.leaders import Move
    from venus.replication.records import Leadership, LiveBroker


TRIES_MAX = 20
LOOK_EVERY_S = 0.05
#: How often the reason for waiting is printed.
SAY_EVERY_S = 5.0
SAFE = "it continues by itself: `venus cluster status` shows the progress; the command can be repeated safely"

LATER = "repeat the command when `venus cluster status` shows all replicas in sync"
LONGER = "repeat the command; --wait SECONDS allows more time"
BALANCED = "each broker leads about as many businesses as it can"

Make = Callable[["Leadership", Collection["LiveBroker"]], "Leadership"]


def read_record(coordinator: EtcdCoordinator, name: str) -> Leadership:
    """Read the record of a business. Raises ConfigError for an unknown name, and suggests a similar one."""
    found = coordinator.read(name)
    if found is None:
        known = [one.business for one in coordinator.leaderships()]
        raise ConfigError(
            f"the cluster has no business {name!r}{suggest_nearest(name, known)}",
            hint=f"it has {', '.join(known) or 'none'}",
        )
    return found


def change_record(coordinator: EtcdCoordinator, name: str, make: Make) -> Leadership:
    """Replace the record of a business with the result of `make`; an equal record is not written."""
    for _ in range(TRIES_MAX):
        known = read_record(coordinator, name)
        after = make(known, coordinator.brokers())
        stored = known if after == known else coordinator.swap(known, after)
        if stored is not None:
            return stored
    raise Unavailable(f"the record of {name} keeps changing", hint="try again")


def wait_until_done(
    out: Output, seconds: float, find_reason: Callable[[], list[str]], hint: str = SAFE, *, since: float | None = None
) -> float:
    """Wait until `find_reason` returns no reason to wait; return how long it took. Raises Unavailable after `seconds`.

    `since`: when the time limit began, if it covers several steps.
    """
    began = printed_at = time.monotonic()
    since = began if since is None else since
    printed = ""
    while waiting := find_reason():
        now = time.monotonic()
        if now - since >= seconds:
            raise Unavailable(f"not done after {seconds:g} s: {'; '.join(waiting)}", hint=hint)
        text = "; ".join(waiting)
        if text != printed and now - began > 1 and (not printed or now - printed_at > SAY_EVERY_S):
            printed, printed_at = text, now
            out.say(text)
        time.sleep(LOOK_EVERY_S)
    return time.monotonic() - began


def record_document(known: Leadership) -> dict[str, object]:
    """Return the JSON document of a record."""
    return {
        "business": known.business,
        "leader": None if known.leader is None else known.leader.broker,
        "term": known.term,
        "in_sync": sorted(member.broker for member in known.in_sync),
        "replicas": list(known.replicas),
    }


BrokerArgument = Annotated[
    str, typer.Argument(metavar="BROKER", help="A broker's id, as `venus cluster status` shows it.")
]
WaitOption = Annotated[
    float,
    typer.Option(
        "--wait", metavar="SECONDS", min=0, help="How long to wait until it is done; it continues by itself afterwards."
    ),
]
BusinessesOption = Annotated[
    list[str] | None, typer.Option("--business", metavar="NAME", help="Only this business; may be repeated.")
]
WAIT_S = 600.0


def move(
    ctx: typer.Context,
    business: Annotated[str, typer.Argument(metavar="BUSINESS", help="As `venus cluster status` shows it.")],
    leader: Annotated[
        str | None, typer.Option("--leader", metavar="BROKER", help="The broker that leads from now on.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="BROKER", help="The broker whose replica moves.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--to", metavar="BROKER", help="The broker that gets the replica.")
    ] = None,
    wait: WaitOption = WAIT_S,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Make another broker lead a business (--leader), or move a replica to another broker (--from, --to).

    The new leader must be in sync; no write is lost, and writers wait for less than a second. A replica that moves is
    copied first; the old replica is removed once the new one is in sync.
    """
    run = Invocation.from_options(ctx, config, as_json)
    if (leader is None) == (source is None and target is None) or (source is None) != (target is None):
        raise ConfigError(
            "say what moves: --leader BROKER, or --from BROKER --to BROKER",
            hint="`venus cluster status` shows leaders and replicas",
        )
    with open_coordinator(run.settings) as coordinator:
        if leader is not None:
            return _move_leader(run, coordinator, business, leader, wait)
        return _move_replica(run, coordinator, business, str(source), str(target), wait)


def _move_leader(run: Invocation, coordinator: EtcdCoordinator, name: str, broker: str, seconds: float) -> int:
    """Make a broker the leader of a business, and print the new record."""
    before = read_record(coordinator, name)
    took = _hand_over(run, coordinator, name, broker, seconds)
    after = read_record(coordinator, name)
    line = f"{name} is led by {broker} in term {after.term}, after {took:.2f} s"
    if before.leader == after.leader:
        line = f"{name} is led by {broker} already"
    run.out.answer({**record_document(after), "seconds": round(took, 3)}, line)
    return 0


def _hand_over(
    run: Invocation, coordinator: EtcdCoordinator, name: str, broker: str, seconds: float, since: float | None = None
) -> float:
    """Make a broker the leader of a business; return the seconds that this took. Raises Refused, Unavailable."""
    from venus.coordination import operator_changes

    change_record(coordinator, name, lambda known, living: operator_changes.request_leader(known, broker, living))

    def find_reason() -> list[str]:
        """Return the reason to wait until the broker leads. Raises Unavailable if the hand-over was given up."""
        known = read_record(coordinator, name)
        led_by = known.leader.broker if known.leader is not None else "no broker"
        if led_by != broker and not known.successor:
            raise Unavailable(
                f"{name} is still led by {led_by}: {broker} did not catch up in time, or is gone",
                hint="`venus cluster status` shows the replicas in sync; try again",
            )
        return [] if led_by == broker else [f"{name} is handed over to {broker}"]

    return wait_until_done(run.out, seconds, find_reason, since=since)


def balance(
    ctx: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show which business would move where, and why.")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait until it is done.")
    ] = WAIT_S,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Let each broker lead about as many businesses: hand some over, one at a time.

    A business moves only to a broker that has a replica in sync and no higher load; the business's writers wait for
    less than a second. Nothing moves while a replica is missing or a broker is degraded.
    """
    run = Invocation.from_options(ctx, config, as_json)
    with open_coordinator(run.settings) as coordinator:
        moves, obstacle = _plan_balance(coordinator)
        if not dry_run:
            done: list[dict[str, Any]] = []
            try:
                done.extend(_hand_over_one_by_one(run, coordinator, wait) if moves else ())
            except VenusError:
                if done:
                    _answer_moves(run, done)
                raise
            _answer_moves(run, done)
            return 0
    lines = [f"{move.business}: {move.source} -> {move.target} ({move.reason})" for move in moves]
    later = [f"! not now: {obstacle}"] if moves and obstacle else []
    document = {"moves": [asdict(move) | {"reason": move.reason} for move in moves], "obstacle": obstacle}
    run.out.answer(document, *(lines or [BALANCED]), *later)
    return 0


def _answer_moves(run: Invocation, done: list[dict[str, Any]]) -> None:
    """Print which businesses were handed over, or that the cluster was balanced already."""
    line = f"{count_phrase(len(done), 'business', 'businesses')} handed over" if done else BALANCED
    run.out.answer({"moves": done}, line)


def _hand_over_one_by_one(run: Invocation, coordinator: EtcdCoordinator, seconds: float) -> Iterator[dict[str, Any]]:
    """Balance the cluster, with a new plan after each hand-over; yield each business that has moved."""
    began = time.monotonic()
    while True:
        wait_until_done(run.out, seconds, partial(_find_balance_obstacles, coordinator), LATER, since=began)
        moves, _ = _plan_balance(coordinator)
        if not moves:
            return
        if time.monotonic() - began >= seconds:
            left = count_phrase(len(moves), "hand-over")
            raise Unavailable(f"not done after {seconds:g} s: {left} left", hint=LONGER)
        move = moves[0]
        took = _hand_over(run, coordinator, move.business, move.target, seconds, began)
        run.out.say(f"{move.business}: {move.source} -> {move.target} after {took:.2f} s ({move.reason})")
        yield asdict(move) | {"reason": move.reason, "seconds": round(took, 3)}


def _find_balance_obstacles(coordinator: EtcdCoordinator) -> list[str]:
    """Return the reason why no hand-over may begin now; empty if one may."""
    obstacle = _plan_balance(coordinator)[1]
    return [obstacle] if obstacle else []


def _plan_balance(coordinator: EtcdCoordinator) -> tuple[list[Move], str]:
    """Return the hand-overs that balance the cluster, and the reason why none may begin now, if there is one."""
    from venus.replication.leaders import find_obstacle, plan_moves

    records, live = coordinator.leaderships(), {broker.member: broker for broker in coordinator.brokers()}
    return plan_moves(records, live), find_obstacle(records, live)


def _move_replica(
    run: Invocation, coordinator: EtcdCoordinator, name: str, source: str, target: str, seconds: float
) -> int:
    """Move a replica of a business to another broker, wait until that is done, and print the new record."""
    from venus.coordination import operator_changes

    change_record(coordinator, name, lambda known, living: operator_changes.move_replica(known, source, target, living))

    def find_reason() -> list[str]:
        """Return the reasons to wait until the replica has moved."""
        known = read_record(coordinator, name)
        if source not in known.replicas and known.leader is not None and known.leader.broker != source:
            return []
        return [f"{name}: {line}" for line in operator_changes.pending_requests(known, coordinator.brokers())] or [
            f"{name} moves"
        ]

    took = wait_until_done(run.out, seconds, find_reason)
    after = read_record(coordinator, name)
    line = f"the replica of {name} is at {target} instead of {source}, after {format_duration(took)}"
    run.out.answer({**record_document(after), "seconds": round(took, 3)}, line)
    return 0


def drain(
    ctx: typer.Context,
    broker: BrokerArgument,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take part again.")] = False,
    wait: WaitOption = WAIT_S,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Take a broker out of service: others lead what it leads, and get copies of what it has.

    The broker's replicas are copied to free brokers. Without a free broker the replicas stay, and follow again when
    their broker is back. The broker gets no new replica until --undo. For a short restart, just stop and start the
    broker.
    """
    from venus.coordination import operator_changes

    run = Invocation.from_options(ctx, config, as_json)
    with open_coordinator(run.settings) as coordinator:
        operator_changes.check_broker(broker, _broker_names(coordinator))
        if undo:
            return _undo_drain(run, coordinator, broker)
        for known in coordinator.leaderships():
            operator_changes.check_drain(known, broker, coordinator.brokers())
        coordinator.drain(broker, draining=True)
        took = wait_until_done(run.out, wait, partial(_find_drain_obstacles, coordinator, broker))
        left = [known for known in coordinator.leaderships() if broker in known.replicas]
    line = f"broker {broker} leads nothing; it can be stopped with no write refused, after {format_duration(took)}"
    kept = [f"{known.business} keeps its replica there: no other broker is free" for known in left]
    document = {"broker": broker, "draining": True, "kept": [known.business for known in left], "seconds": took}
    run.out.answer(document, line, *kept)
    return 0


def _find_drain_obstacles(coordinator: EtcdCoordinator, broker: str) -> list[str]:
    """Return the reasons why a broker is not drained yet."""
    from venus.coordination import operator_changes

    living, waiting = coordinator.brokers(), []
    for known in coordinator.leaderships():
        if not operator_changes.is_drained(known, broker, living):
            reasons = operator_changes.pending_requests(known, living) or ["it is led by broker " + broker]
            waiting += [f"{known.business}: {reason}" for reason in reasons]
    return waiting


def _undo_drain(run: Invocation, coordinator: EtcdCoordinator, broker: str) -> int:
    """Let a drained broker accept replicas again."""
    from venus.coordination import operator_changes

    coordinator.drain(broker, draining=False)
    for known in coordinator.leaderships():
        change_record(coordinator, known.business, lambda found, _: operator_changes.keep_replica(found, broker))
    run.out.answer({"broker": broker, "draining": False}, f"broker {broker} accepts replicas again")
    return 0


def add(
    ctx: typer.Context,
    broker: BrokerArgument,
    business: BusinessesOption = None,
    wait: WaitOption = WAIT_S,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Add a running broker: it gets a replica of each business that has too few, or of the one named.

    First start the new broker with the [cluster] section of the others, and with its own id and data directory.
    """
    from venus.coordination import operator_changes

    run = Invocation.from_options(ctx, config, as_json)
    wanted = run.settings.cluster.replicas
    with open_coordinator(run.settings) as coordinator:
        operator_changes.check_broker(broker, {one.member.broker for one in coordinator.brokers()})
        coordinator.drain(broker, draining=False)
        names = business or [
            known.business
            for known in coordinator.leaderships()
            if operator_changes.has_too_few_replicas(known, wanted)
        ]
        make = partial(_add_replica, broker=broker, wanted=wanted)
        for name in names:
            change_record(coordinator, name, make)
        took = wait_until_done(run.out, wait, partial(_find_late_replicas, coordinator, names, broker))
    line = f"broker {broker} is in sync for {', '.join(names)}, after {format_duration(took)}"
    if not names:
        line = f"broker {broker} accepts replicas; no business lacks one: --business NAME adds one anyway"
    run.out.answer({"broker": broker, "businesses": names, "seconds": round(took, 3)}, line)
    return 0


def _add_replica(known: Leadership, living: Any, *, broker: str, wanted: int) -> Leadership:
    """Return the record of a business after a replica was added at this broker."""
    from venus.coordination import operator_changes

    return operator_changes.add_replica(known, broker, living, wanted)


def _find_late_replicas(coordinator: EtcdCoordinator, names: list[str], broker: str) -> list[str]:
    """Return a sentence for each business whose replica at this broker is not in sync yet."""
    found = [read_record(coordinator, name) for name in names]
    late = [known.business for known in found if broker not in {member.broker for member in known.in_sync}]
    return [f"broker {broker} is not in sync for {name} yet" for name in late]


def remove(
    ctx: typer.Context,
    broker: BrokerArgument,
    business: BusinessesOption = None,
    wait: WaitOption = WAIT_S,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Remove a broker's replicas permanently, with their data, whether it is alive or not.

    The command is refused if fewer replicas would stay in sync than a write needs. Free brokers get replicas instead,
    unless --business is given. `venus cluster drain` copies the replicas first.
    """
    from venus.coordination import operator_changes

    run = Invocation.from_options(ctx, config, as_json)
    with open_coordinator(run.settings) as coordinator:
        operator_changes.check_broker(broker, _broker_names(coordinator))
        living = coordinator.brokers()
        found = [read_record(coordinator, name) for name in business or ()] or list(coordinator.leaderships())
        has = [known for known in found if broker in known.replicas]
        make: Callable[[Leadership, Any], Leadership] = partial(_remove_replica, broker=broker, fewer=bool(business))
        for known in has:
            make(known, living)  # check all before changing one
        if not business:
            coordinator.drain(broker, draining=True)
        for known in has:
            change_record(coordinator, known.business, make)
        names = [known.business for known in has]
        took = wait_until_done(
            run.out, wait, partial(_find_remaining_replicas, coordinator, [one.business for one in found], broker)
        )
    alive = any(one.member.broker == broker for one in living)
    line = f"broker {broker} has no replica of {', '.join(names) or 'anything'} any more"
    if alive and not business:
        line += ": it can be stopped"
    run.out.answer({"broker": broker, "businesses": names, "alive": alive, "seconds": round(took, 3)}, line)
    return 0


def _remove_replica(known: Leadership, living: Any, *, broker: str, fewer: bool) -> Leadership:
    """Return the record of a business after its replica at this broker was removed."""
    from venus.coordination import operator_changes

    return operator_changes.remove_replica(known, broker, living, fewer=fewer)


def _find_remaining_replicas(coordinator: EtcdCoordinator, names: list[str], broker: str) -> list[str]:
    """Return a sentence for each business in whose in-sync set the removed broker still is."""
    waiting = []
    for name in names:
        known = coordinator.read(name)
        if known is not None and broker in {member.broker for member in known.in_sync}:
            waiting.append(f"{name}: the leader has not removed broker {broker} yet")
    return waiting


def _broker_names(coordinator: EtcdCoordinator) -> set[str]:
    """Return every broker that is alive, has a replica, or is draining."""
    replicas = {name for known in coordinator.leaderships() for name in known.replicas}
    return replicas | {one.member.broker for one in coordinator.brokers()} | coordinator.draining_brokers()
