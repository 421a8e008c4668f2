"""The broker sets of the network for `venus cluster topology`: their upstreams, and the lag of each hop.

The command queries the configured brokers, the sets of their directory and all upstream sets, and merges the answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from venus.cli.probes import status_time_us
from venus.errors import VenusError
from venus.network.scheduling import Load, load_rate
from venus.network.topology import (
    PULLS_AS,
    BrokerSet,
    Hop,
    SetView,
    Tier,
    TopologyView,
    measure_hops,
    merge_reports,
    topology_problems,
)
from venus.rpc.address import CONSUMER, BrokerAddress, ClientCredentials, DirectoryLookup
from venus.rpc.admin import AdminClient, is_home
from venus.rpc.directory import ask_where
from venus.wire import broker_pb2

SETS_MAX = 200
ASKED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    """The answer of the brokers of a set: their status, or the error."""

    addresses: tuple[str, ...]
    status: broker_pb2.BrokerStatus | None = None
    error: str = ""
    set: str = ""  # its name in the directory


def read_network(starts: Iterable[tuple[str, ...]], proof: ClientCredentials) -> TopologyView:
    """Query the brokers at these addresses, a tuple for each set, and every set above them; merge the answers."""
    answers: list[BrokerAnswer] = []
    asked: set[str] = set()
    waiting = list(starts)
    named = _sets_of_directory(waiting, proof)
    waiting += named
    with ThreadPoolExecutor(ASKED_AT_ONCE, "venus-topology") as pool:
        while waiting and len(answers) < SETS_MAX:
            new = [one for one in dict.fromkeys(waiting) if not asked.issuperset(one)]
            asked.update(address for one in new for address in one)
            found = [
                replace(one, set=named.get(one.addresses, ""))
                for one in pool.map(lambda one: _query_brokers(one, proof), new)
            ]
            answers += found
            waiting = [
                tuple(entries)
                for answer in found
                if answer.status is not None
                for entries in _known_addresses(answer.status)
                if entries
            ]
    return build_view(answers)


def _sets_of_directory(starts: Iterable[tuple[str, ...]], proof: ClientCredentials) -> dict[tuple[str, ...], str]:
    """Return the name of each set by its addresses, from the directory of the first broker that answers."""
    for address in [address for one in starts for address in one]:
        try:
            answer = ask_where(BrokerAddress(address, proof), DirectoryLookup((), CONSUMER, ""))
        except VenusError:
            continue
        return {tuple(one.addresses): one.set for one in answer.sets}
    return {}


def _known_addresses(status: broker_pb2.BrokerStatus) -> Iterable[Iterable[str]]:
    """Yield the addresses of other sets that a broker knows, grouped by set."""
    yield status.network.upstream
    yield status.network.former
    yield status.network.home
    for entry in status.businesses:
        if entry.replaced:
            yield entry.home.addresses


def _query_brokers(addresses: tuple[str, ...], proof: ClientCredentials) -> BrokerAnswer:
    """Query the status of the brokers at these addresses; an error becomes part of the answer."""
    try:
        with AdminClient(BrokerAddress(",".join(addresses), proof)) as admin:
            return BrokerAnswer(addresses, status=admin.status())
    except VenusError as error:
        return BrokerAnswer(addresses, error=str(error))


def build_view(answers: Iterable[BrokerAnswer]) -> TopologyView:
    """Merge answers into a view: sets that answered, sets that did not, and sets that only others know."""
    known_sets = [
        (_build_set(one.status.network, one.addresses), one.status) for one in answers if one.status is not None
    ]
    topology, problems = merge_reports(found for found, _ in known_sets)
    problems += [
        *_duplicate_names(known_sets),
        *topology_problems(topology.sets, complete=False),
        *_double_homes(known_sets),
    ]
    views: dict[str, SetView] = {}
    for found, status in known_sets:
        whole = topology.find_set(found.name) or found
        if found.name not in views:
            views[found.name] = SetView(
                set=whole,
                pulls_from=_find_upstream(status),
                businesses=tuple(_build_hop(entry, status_time_us(status)) for entry in status.businesses),
                trouble=status.network.refused,
                loads=_loads(status),
            )
    for found, status in known_sets:
        for lower in _downstream_sets(found, status):
            known = views.get(lower.set.name)
            if known is None:
                views[lower.set.name] = lower
            elif not known.asked:
                views[lower.set.name] = replace(known, businesses=(*known.businesses, *lower.businesses))
    for answer in answers:
        if answer.error and not any(set(answer.addresses) & set(one.set.addresses) for one in views.values()):
            name = answer.set or ", ".join(answer.addresses)
            known = views.get(name) or SetView(set=_unknown_set(name, 0), asked=False)
            views[name] = replace(known, trouble=f"no answer: {answer.error}")
    return TopologyView(measure_hops(views.values()), tuple(dict.fromkeys(problems)))


def _duplicate_names(known_sets: Iterable[tuple[BrokerSet, broker_pb2.BrokerStatus]]) -> Iterable[str]:
    """Yield a sentence for each name that several sets share: they would alternate as one consumer of the set above."""
    homes: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for found, status in known_sets:
        # The brokers of a cluster are one set; a single broker may have been queried at several addresses.
        identity = status.cluster or str(status.started_at_us)
        homes[found.name].setdefault(identity, ", ".join(found.addresses))
    for name, places in homes.items():
        if len(places) > 1:
            where = " and at ".join(places.values())
            yield f"several sets are called {name}: at {where}; give each a [cluster] set of its own"


def _build_set(network: broker_pb2.NetworkStatus, addresses: tuple[str, ...]) -> BrokerSet:
    """Return the broker set that a broker's status describes."""
    tier = Tier(network.tier) if network.tier in list(Tier) else Tier.CORE
    return BrokerSet(
        name=network.set or ", ".join(addresses),
        tier=tier,
        level=network.level,
        upstream=tuple(network.upstream),
        labels=frozenset(network.labels),
        where=frozenset(network.where),
        addresses=addresses,
    )


def _double_homes(known_sets: Iterable[tuple[BrokerSet, broker_pb2.BrokerStatus]]) -> Iterable[str]:
    """Yield a sentence for each business that has two home sets."""
    homes: dict[tuple[str, str], dict[str, int]] = {}
    for found, status in known_sets:
        for entry in status.businesses:
            if is_home(status.network, entry):
                for network in status.network.networks[:1]:
                    homes.setdefault((network, entry.business), {})[found.name] = entry.home.home_term
    for (_, business), sets in homes.items():
        if len(sets) > 1:
            named = " and ".join(f"set {name} (home term {term})" for name, term in sorted(sets.items()))
            newest = min(sets, key=lambda name: (-sets[name], name))
            yield (
                f"{business} has two homes, {named}: stop all but {newest}, name its brokers in the others' [cluster] "
                "upstream, and start them again"
            )


def _unknown_set(name: str, level: int) -> BrokerSet:
    """Return a set of which only the name and the level are known."""
    return BrokerSet(name=name, tier=Tier.ACCESS if level else Tier.CORE, level=level)


def _find_upstream(status: broker_pb2.BrokerStatus) -> str:
    """Return the name of the upstream set that is connected, or was connected last."""
    connected = [entry.mirror.set for entry in status.businesses if entry.HasField("mirror") and entry.mirror.set]
    return next(iter(connected), status.network.path[-2] if len(status.network.path) > 1 else "")


def _loads(status: broker_pb2.BrokerStatus) -> tuple[float, ...]:
    """Return the load of each broker of the set: the newest value in a cluster, the mean for a single broker."""
    brokers = (broker for broker in status.brokers if broker.reported)
    found = (Load(memory=one.memory, cpu=one.cpu, disk=one.disk, network=one.network) for one in brokers)
    return tuple(load_rate(load.used) for load in found) or ((status.load_mean,) if status.load_mean else ())


def _build_hop(entry: broker_pb2.BusinessStatus, now_us: int) -> Hop:
    """Return the offset, the lag and the state of a business at a set."""
    if not entry.HasField("mirror"):
        reason = f"set {entry.home.set} has become the home; name its brokers in [cluster] upstream"
        state, why = ("replaced", reason) if entry.replaced else ("", "")
        return Hop(business=entry.business, offset=entry.next_offset, state=state, reason=why)
    mirror = entry.mirror
    known = mirror.state != "waiting"
    return Hop(
        business=entry.business,
        offset=entry.next_offset,
        behind=mirror.lag if known else None,
        behind_s=mirror.lag_ms / 1000,
        hop_s=mirror.hop_ms / 1000,
        home_mean_s=mirror.hop_mean_s,
        home_variance=mirror.hop_variance,
        state=mirror.state,
        reason=mirror.reason,
        nearest=mirror.nearest,
        not_back=mirror.not_back,
        away_s=max(0.0, (now_us - mirror.away_since_us) / 1e6) if mirror.nearest else 0.0,
    )


def _downstream_sets(upper: BrokerSet, status: broker_pb2.BrokerStatus) -> Iterable[SetView]:
    """Yield the sets that pull from `upper`, with the offsets that they have acknowledged there."""
    for entry in status.businesses:
        for consumer in entry.consumers:
            if consumer.group.startswith(PULLS_AS):
                hop = Hop(
                    business=entry.business,
                    offset=consumer.acknowledged,
                    behind=max(0, entry.next_offset - consumer.acknowledged),
                    state="" if consumer.connected else "not connected",
                )
                lower = _unknown_set(consumer.group.removeprefix(PULLS_AS), upper.level + 1)
                yield SetView(set=lower, asked=False, pulls_from=upper.name, businesses=(hop,))
