"""`venus cluster status` and `policy`, from the coordinator alone; `venus cluster topology`, from the brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from venus.cli.invocation import CommandSet, ConfigOption, Invocation, JsonOption
from venus.cli.output import build_table
from venus.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from venus.config import Settings
    from venus.coordination.etcd import EtcdCoordinator
    from venus.network.topology import Hop, SetView
    from venus.replication.records import InstallationProgress, Leadership, LiveBroker, LossWindow

#: Long enough for an election within etcd.
ETCD_TIMEOUT_S = 5.0
LOOK_EVERY_S = 0.2

app = CommandSet(
    help="The brokers of a cluster: status, policies, move, balance, drain, add, remove, dissolve, accept-loss. "
    "The sets of a network: topology, promote."
)


@contextmanager
def open_coordinator(settings: Settings) -> Iterator[EtcdCoordinator]:
    """Connect to the coordinator of the configured cluster. Raises ConfigError without a cluster, or without etcd."""
    from venus.coordination.etcd import EtcdCoordinator
    from venus.coordination.login import build_login

    cluster = settings.cluster
    if not cluster.name:
        raise ConfigError(
            "there is no cluster: [cluster] name is not set",
            hint="a single broker needs none; for several, name, broker_id and etcd are set in [cluster]",
        )
    opened = EtcdCoordinator(
        cluster.etcd, cluster.name, lease_s=cluster.lease_s, timeout_s=ETCD_TIMEOUT_S, login=build_login(cluster)
    )
    with closing(opened):
        if opened.identity(create=False) is None:
            raise ConfigError(
                f"etcd at {', '.join(cluster.etcd)} has no cluster {cluster.name!r}",
                hint="start its first broker, or correct [cluster] name or etcd",
            )
        yield opened


@app.command()
def status(
    ctx: typer.Context,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0, help="Wait at most this long until nothing needs attention."),
    ] = 0.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show the brokers' load, which of them leads each business, and which are in sync.

    Exit code 1 if something needs attention. The figures for CPU, memory, disk and network are those of each broker's
    machine.
    """
    from venus.coordination.operator_changes import find_problems, pending_requests
    from venus.replication.leaders import count_roles

    run = Invocation.from_options(ctx, config, as_json)
    end = time.monotonic() + wait
    with open_coordinator(run.settings) as coordinator:
        while True:
            living, leaderships = coordinator.brokers(), coordinator.leaderships()
            found = [*coordinator.invalid, *find_problems(leaderships, living)]
            healthy = bool(living) and not found
            if healthy or time.monotonic() >= end:
                break
            time.sleep(LOOK_EVERY_S)
    under_way = [f"{known.business}: {line}" for known in leaderships for line in pending_requests(known, living)]
    under_way += [format_installation(broker.member.broker, one) for broker in living for one in broker.installing]
    roles = count_roles(leaderships)
    document = {
        "cluster": run.settings.cluster.name,
        "healthy": healthy,
        "problems": found,
        "brokers": [_broker_document(broker, roles) for broker in living],
        "businesses": [_business_document(leadership) for leadership in leaderships],
        "under_way": under_way,
    }
    shown: list[Any] = [
        build_table(*_BROKER_COLUMNS, "store", "", rows=[_broker_row(broker, roles) for broker in living])
    ]
    if leaderships:
        names = ("business", "leader", "term", "in sync", "replicas", "policy")
        shown += ["", build_table(*names, rows=[_business_row(leadership) for leadership in leaderships])]
    shown = shown if living else ["no broker is alive", *shown[1:]]
    lines = [*(f"~ {line}" for line in under_way), *(f"! {line}" for line in found)]
    run.out.answer(document, *shown, *([""] if lines else []), *lines)
    return 0 if healthy else 1


@app.command()
def policy(
    ctx: typer.Context,
    business: Annotated[str, typer.Argument(metavar="BUSINESS", help="As `venus cluster status` lists it.")],
    wanted: Annotated[
        str, typer.Argument(metavar="consistency|availability", help="The new policy: consistency or availability.")
    ],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Set what a business does when too few of its replicas are alive; takes effect within a second.

    Under `consistency` writes are refused until enough replicas are in sync. Under `availability` the brokers that are
    alive continue; possible losses are shown until `venus verify --repair` repairs them.
    """
    from venus.coordination.operator_changes import change_policy
    from venus.replication.records import Policy
    from venus.text.formatting import suggest_nearest

    run = Invocation.from_options(ctx, config, as_json)
    if wanted not in list(Policy):
        known = [each.value for each in Policy]
        raise ConfigError(
            f"{wanted}: invalid policy{suggest_nearest(wanted, known)}", hint=f"one of {', '.join(known)}"
        )
    with open_coordinator(run.settings) as coordinator:
        before, after = change_policy(coordinator, business, Policy(wanted), run.settings.cluster.min_in_sync)
    same = before == after
    needed = f"{after.min_in_sync} replica{'s' if after.min_in_sync > 1 else ''} in sync for a write"
    line = f"{business} {'has' if same else 'now has'} the policy {after.policy.value}: it needs {needed}"
    document = {
        "business": business,
        "policy": after.policy.value,
        "min_in_sync": after.min_in_sync,
        "was": {"policy": before.policy.value, "min_in_sync": before.min_in_sync},
        "changed": not same,
    }
    short = len(after.in_sync) < after.min_in_sync
    waiting = f"! {len(after.in_sync)} of them {'are' if len(after.in_sync) != 1 else 'is'} in sync: writes are refused"
    run.out.answer(document, line, *([f"{waiting} until more have caught up"] if short else []))
    return 0


_BROKER_COLUMNS = ("broker", "address", "site", "CPU", "memory", "disk", "network", "leads", "follows")

Roles = Mapping[str, tuple[int, int]]


def _broker_document(broker: LiveBroker, roles: Roles) -> dict[str, Any]:
    """Return the JSON object of a broker in `venus cluster status --json`."""
    leads, follows = roles.get(broker.member.broker, (0, 0))
    return {
        "broker": broker.member.broker,
        "store": broker.member.store,
        "address": broker.address,
        "site": broker.site,
        "priority": broker.priority,
        "draining": broker.draining,
        "version": broker.version,
        "unhealthy": broker.unhealthy,
        "installing": [asdict(one) for one in broker.installing],
        "load": None if broker.load is None else asdict(broker.load),
        "leads": leads,
        "follows": follows,
    }


def _business_document(found: Leadership) -> dict[str, Any]:
    """Return the JSON object of a business in `venus cluster status --json`."""
    return {
        "business": found.business,
        "leader": None if found.leader is None else found.leader.broker,
        "term": found.term,
        "in_sync": sorted(member.broker for member in found.in_sync),
        "last_in_sync": sorted(member.broker for member in found.last_in_sync),
        "replicas": list(found.replicas),
        "policy": found.policy.value,
        "min_in_sync": found.min_in_sync,
        "unclean_terms": list(found.unclean_terms),
        "leaving": list(found.leaving),
        "successor": found.successor,
        "losses": [loss_document(window) for window in found.losses],
    }


def loss_document(window: LossWindow) -> dict[str, Any]:
    """Return the JSON document of a window in which an unclean election may have lost changes."""
    return {
        "term": window.term,
        "first_offset": window.first_offset,
        "end_offset": window.end_offset if window.is_measured else None,
        "changes": window.rows if window.is_measured else None,
        "first_batch": window.first_batch,
        "last_batch": window.last_batch if window.is_measured else None,
        "verified": list(window.verified),
    }


def format_installation(broker: str, found: InstallationProgress) -> str:
    """Describe the progress of a broker that copies the data of a business from its leader."""
    from venus.text.formatting import format_bytes, format_duration

    expected = f" of about {found.records_expected:,}" if found.records_expected else ""
    left = f", about {format_duration(found.seconds_left)} left" if found.seconds_left >= 0 else ""
    return (
        f"{found.business} is installed at {broker} from {found.leader}: {found.records:,}{expected} records, "
        f"{format_bytes(found.nbytes)}, {format_bytes(found.bytes_per_s)}/s{left}"
    )


def _broker_row(broker: LiveBroker, roles: Roles) -> tuple[object, ...]:
    """Return the line about a broker in the output of `venus cluster status`."""
    state = "draining" if broker.draining else "alive"
    if broker.unhealthy:
        state += f", not healthy: {broker.unhealthy}"
    load = broker.load
    shares = (load.cpu, load.memory, load.disk, load.network) if load is not None else (None,) * 4
    shown = [None if share is None else f"{share:.0%}" for share in shares]
    place = broker.member.broker, broker.address, broker.site or None
    return *place, *shown, *roles.get(broker.member.broker, (0, 0)), broker.member.store, state


def _business_row(found: Leadership) -> tuple[object, ...]:
    """Return the line about a business in the output of `venus cluster status`."""
    in_sync = ", ".join(sorted(member.broker for member in found.in_sync))
    return (
        found.business,
        None if found.leader is None else found.leader.broker,
        found.term,
        f"{in_sync or '-'} (needs {found.min_in_sync})",
        ", ".join(found.replicas),
        found.policy.value,
    )


@app.command()
def topology(
    ctx: typer.Context,
    addresses: Annotated[
        list[str] | None,
        typer.Argument(metavar="HOST:PORT", help="More brokers to ask, one of each set; separated by spaces."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Draw the broker sets, their upstreams, offsets and lag. Exit code 1 if something needs attention.

    The command queries the brokers of `[broker] addresses` and `further`, the sets that these know, and all upstream
    sets. Any other set is shown as its upstream sees it.
    """
    from venus.cli.topology import read_network
    from venus.model import PORT_MAX, is_address
    from venus.network.topology import draw
    from venus.rpc.address import broker_address, proof_of

    run = Invocation.from_options(ctx, config, as_json)
    for address in addresses or ():
        if not is_address(address):
            raise ConfigError(
                f"{address} should be HOST:PORT, with a port up to {PORT_MAX}",
                hint="name brokers of more sets, separated by spaces",
            )
    reach = broker_address(run.settings)
    seeds = run.settings.broker.seeds
    known = [[seed] for seed in seeds] if seeds else [one.split(",") for one in reach.split(";")]
    starts = [tuple(one) for one in [*known, *([address] for address in addresses or ())]]
    view = read_network(starts, proof_of(reach))
    if not any(one.asked for one in view.sets):
        raise Unavailable("; ".join(view.complaints), hint="check [broker] address and addresses")
    document = {
        "healthy": not view.complaints,
        "problems": list(view.complaints),
        "sets": [_set_document(one) for one in view.sets],
    }
    lines = draw(view, run.out.console.width)
    run.out.answer(document, *lines, *([""] if view.complaints else []), *(f"! {line}" for line in view.complaints))
    return 1 if view.complaints else 0


def _set_document(one: SetView) -> dict[str, Any]:
    """Return the JSON object of a broker set in `venus cluster topology --json`."""
    return {
        "set": one.set.name,
        "asked": one.asked,
        "tier": one.set.tier.value if one.asked else None,
        "level": one.set.level,
        "addresses": list(one.set.addresses),
        "upstream": list(one.set.upstream),
        "labels": sorted(one.set.labels),
        "where": sorted(one.set.where),
        "pulls_from": one.pulls_from or None,
        "trouble": one.trouble,
        "load_mean": one.mean_load if one.loads else None,
        "load_deviation": one.load_deviation if one.loads else None,
        "businesses": [_hop_document(hop) for hop in one.businesses],
    }


def _hop_document(hop: Hop) -> dict[str, Any]:
    """Return the JSON object of a business at a broker set: its offset, lag and state there."""
    return {
        "business": hop.business,
        "offset": hop.offset,
        "behind": hop.behind,
        "behind_s": hop.behind_s,
        "from_home_s": hop.hop_s,
        "mean_s": hop.mean_s,
        "deviation_s": hop.deviation_s,
        "state": hop.state,
        "reason": hop.reason,
        "nearest": hop.nearest or None,
        "away_s": hop.away_s,
        "not_back": hop.not_back,
    }
