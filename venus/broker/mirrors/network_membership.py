"""Place of this broker's set in the network, and everything that it pulls from upstream sets.

The home draws the id of the network once and sends it to every mirror, where the id never changes.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping

from venus.broker.core import Core
from venus.broker.mirrors import topology_position, upstream_selection
from venus.broker.mirrors.home_succession import HomeSuccession
from venus.broker.mirrors.mirror_status import MirrorRowFilters, MirrorStatuses, table_names
from venus.broker.mirrors.replicator import Replicators, ReplicatorThread
from venus.broker.mirrors.topology_position import SetPosition
from venus.broker.mirrors.upstream_monitor import (
    LOOK_EVERY_S,
    OTHERS_EVERY_S,
    PollerMaker,
    UpstreamMonitor,
    UpstreamPoller,
)
from venus.broker.mirrors.upstream_selection import (
    NOT_YET,
    Fitness,
    FitnessKind,
    LocalPosition,
    SelectionTimes,
    UpstreamEndpoint,
    judge_fitness,
)
from venus.broker.store import keys
from venus.config import ClusterSettings
from venus.errors import ConfigError, NotLeader, Refused, Unavailable
from venus.masking.border import Border
from venus.masking.rules import MAKE_KEY, RuleSet
from venus.masking.syntax import HMAC, parse_rule
from venus.network import row_filters
from venus.network.topology import PULLS_AS
from venus.rpc.address import ClientCredentials
from venus.rpc.limits import NETWORKS_MAX
from venus.security.secrets import read_masking_key
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

WAIT_S = 60.0


class NetworkMembership:
    """Membership of this broker in the network. A home has a position in it, but pulls nothing. Thread-safe."""

    def __init__(
        self,
        core: Core,
        settings: ClusterSettings,
        labels: Mapping[str, Iterable[str]],
        *,
        proof: ClientCredentials,
        may_pull: Callable[[str], None] = lambda _business: None,
        monotonic: Callable[[], float] = time.monotonic,
        thread_class: type[ReplicatorThread] = ReplicatorThread,
        look: PollerMaker = UpstreamPoller,
        times: SelectionTimes | None = None,
    ) -> None:
        self.settings = settings
        self._core, self._labels, self._monotonic = core, labels, monotonic
        self._place = SetPosition(
            set=settings.set_name, tier=settings.tier, level=settings.level, labels=frozenset(settings.labels)
        )
        core.set_name(settings.set_name)
        core.set_borders(open_borders(settings))
        self._rows = MirrorRowFilters(
            core, {name: row_filters.parse_filters(found) for name, found in settings.where.items()}
        )
        self._ids: tuple[str, ...] = ()
        self._refused: dict[str, str] = {}  # why nothing can be mirrored, by upstream set
        self._short: dict[str, list[str]] = {}  # labels that an upstream set does not receive
        self._looks: UpstreamMonitor | None = None
        if settings.is_mirror:
            self._looks = UpstreamMonitor(
                settings.upstream,
                proof,
                f"{PULLS_AS}{self._place.set}",
                looked=self._on_poll,
                pace=self._poll_interval,
                look=look,
                named=topology_position.needed_tables(labels, settings.labels, settings.where),
            )
        self._pulls = Replicators(
            core,
            self._upstream_endpoint,
            may_pull,
            monotonic,
            thread_class,
            self._wake,
            times or upstream_selection.TIMES,
        )
        self._own: tuple[str, ...] = ()
        self._set_id = ""
        self.succession = HomeSuccession(core, self._place, settings.upstream, proof)
        self._statuses = MirrorStatuses(core, settings, labels, self._place, self._rows, self._pulls, monotonic)

    def start(self, own: Iterable[str], cluster: str = "") -> None:
        """Join the network. `own` are the addresses of this set for clients, `cluster` is its id. Blocking.

        Raises Refused if an upstream broker answers and this set cannot be downstream of it.
        """
        self._own = tuple(own)
        self.succession.start(self._own)
        if self._looks is None:
            self.set_network_ids(home_network_ids(self._core, cluster))
            return
        self._set_id = cluster or own_set_id(self._core)
        self.set_network_ids(read_network_ids(self._core))
        if not self.succession.promoted_homes():  # a promoted set's old home may be its mirror by now
            self._check_place(self._looks)
        self._looks.start()

    def _check_place(self, looks: UpstreamMonitor) -> None:
        """Ask every upstream broker; raise Refused if this set cannot be downstream of one that answers."""
        above = looks.ask_all()
        if not above:
            logger.warning("no broker of [cluster] upstream answers yet (%s): serving local data", looks.addresses)
        for network in above:
            if refusal := topology_position.explain_refusal(self._place, network, self._ids):
                raise Refused(refusal)

    def set_network_ids(self, ids: tuple[str, ...]) -> None:
        """Set the ids of the network. Every answer to mirrors and consumers contains them."""
        self._ids = self._core.networks = ids

    def stop(self) -> None:
        """End every thread."""
        self.succession.stop()
        if self._looks is not None:
            self._looks.stop()
        self._pulls.stop()

    # -- producers ---------------------------------------------------------------------------------------------

    def check_producer(self, business: str) -> None:
        """Check that this set is the home, to which producers may ship. Raises Refused, or NotLeader at a core set."""
        if self._looks is None or self.succession.accepts_writes(business):
            return
        self._core.homes.refuse_consumer(business)  # a promoted set that was replaced knows the new home
        home = ", ".join(self._home_addresses()) or "not known yet"
        text = (
            f"{business}: this broker is of {self._place.tier} set {self._place.set}, which takes no changes from "
            f"producers; the home is at {home}"
        )
        if self._place.tier == "core":  # a producer that retries succeeds once this set was promoted
            raise NotLeader(text, hint="after a disaster `venus cluster promote` makes this set the home")
        raise Refused(text, hint="set [broker] addresses of the producer to the home's")

    def promote(self, business: str, *, force: bool, only_look: bool) -> broker_pb2.Promoted:
        """Make this set the home of a business whose home is gone. Blocking. Raises Refused, NotLeader, Unavailable."""
        known = [look.status.network for look in self._looks.all] if self._looks is not None else []
        named = [address for network in known if network is not None for address in network.home]
        return self.succession.promote(business, dict.fromkeys(named), force=force, only_look=only_look)

    def _home_addresses(self) -> list[str]:
        """Return the known addresses of the home's brokers."""
        if self.succession.is_home:
            return list(self._own)
        network = self._poller_in_use.status.network if self._looks is not None else None
        return list(network.home) if network is not None else []

    # -- mirrored businesses -----------------------------------------------------------------------------------

    @property
    def _poller_in_use(self) -> UpstreamPoller:
        """Return the poller of the set in use for a business; without one, of the nearest that has answered."""
        assert self._looks is not None
        for pull in self._pulls.all:
            return self._looks.poller_of(pull.in_use)
        answered = (look for look in self._looks.all if look.status.network is not None)
        return next(answered, self._looks.all[0])

    def _poll_interval(self, look: UpstreamPoller) -> float:
        """Return the poll interval of a set: a second if it is in use, or if a business may need another set."""
        pulls = self._pulls.all
        is_calm = bool(pulls) and all(pull.is_well for pull in pulls)
        return OTHERS_EVERY_S if is_calm and look.name not in {pull.in_use for pull in pulls} else LOOK_EVERY_S

    def _wake(self) -> None:
        """Poll every upstream set now, without waiting for its next turn."""
        if self._looks is not None:
            self._looks.wake()

    def _on_poll(self, look: UpstreamPoller, renamed: Mapping[str, str]) -> None:
        """Handle the result of a poll; runs in the poller's thread, one at a time."""
        assert self._looks is not None
        if self.succession.is_home:
            self._refused.clear()
            self.succession.start_monitor()
            return
        names = [one.name for one in self._looks.all]
        for pull in self._pulls.all:
            pull.update_upstreams(names, renamed)
        if not look.status.trouble and look.status.network is not None:
            self._merge_network(look.name, look.status.network)
        for pull in self._pulls.all:
            pull.on_check(look.name, self._judge_upstream(look, pull.business, pull.local_position()))
            if pull.in_use == look.name and (entry := look.status.businesses.get(pull.business)) is not None:
                pull.lag.record_end(entry.next_offset, self._monotonic())
        if all(one.has_looked or one is look for one in self._looks.all):
            self._start_all(names)

    def _merge_network(self, name: str, network: broker_pb2.NetworkStatus) -> None:
        """Check that this set may be downstream of set `name`, and merge the network ids of both."""
        refusal = topology_position.explain_refusal(self._place, network, self._ids)
        if refusal != self._refused.get(name, ""):
            self._refused[name] = refusal
            if refusal:
                logger.error("nothing is mirrored from set %s: %s", name, refusal)
        if refusal:
            return
        short = topology_position.find_missing_labels(self._place, network)
        for problem in short:
            if problem not in self._short.get(name, ()):
                logger.error("%s", problem)
        self._short[name] = short
        if network.networks and not set(network.networks) <= set(self._ids):
            self.set_network_ids(save_network_ids(self._core, network.networks))

    def _judge_upstream(self, look: UpstreamPoller, business: str, here: LocalPosition) -> Fitness:
        """Return how fit a set is as the upstream of a business, by its newest poll."""
        seen = look.status
        if seen.trouble or seen.network is None:
            return Fitness(FitnessKind.SILENT, seen.trouble or NOT_YET)
        if refusal := self._refused.get(look.name):
            return Fitness(FitnessKind.APART, refusal)
        entry = seen.businesses.get(business)
        if entry is not None and not self.succession.is_on_newest_home(business, entry):
            return Fitness(FitnessKind.APART, "it follows an older home, which was replaced")
        return judge_fitness(entry, business, here)

    def _start_all(self, names: list[str]) -> None:
        """Start pulling every business of the nearest set that follows the newest known home."""
        assert self._looks is not None
        promoted = self.succession.promoted_homes()
        for look in self._looks.all:
            if look.status.trouble or self._refused.get(look.name):
                continue
            for name, entry in look.status.businesses.items():
                if name not in self._pulls and name not in promoted and self.succession.is_on_newest_home(name, entry):
                    self._start_business(name, entry, names)

    def _start_business(self, name: str, entry: broker_pb2.BusinessStatus, names: list[str]) -> None:
        """Start pulling a business, if it is to be mirrored and is not empty."""
        looks = self._looks
        only = topology_position.select_tables(self._labels, self.settings.labels, name)
        if looks is None or only is None or not (entry.next_offset or entry.tables or entry.tables_total):
            return
        if only and not table_names([entry]) & {table.lower() for table in only}:
            return
        self._pulls.start(
            name,
            only,
            self._rows.configured_filters(name),
            names,
            lambda one, here: self._judge_upstream(looks.poller_of(one), name, here),
        )

    def _upstream_endpoint(self, name: str) -> UpstreamEndpoint:
        """Return the connection parameters of an upstream set. Raises Refused, Unavailable."""
        assert self._looks is not None
        look = self._looks.poller_of(name)
        network = look.status.network
        if refusal := self._refused.get(name):
            raise Refused(refusal)
        if network is None:
            raise Unavailable(NOT_YET)
        return UpstreamEndpoint(
            reach=look.reach,
            set=look.name,
            network=network.networks[0] if network.networks else "",
            group=look.group,
            own=self._ids,
            set_id=self._set_id,
            is_one_of=len(self._looks.all) > 1,
        )

    # -- status ------------------------------------------------------------------------------------------------

    def add_to_status(self, status: broker_pb2.BrokerStatus, business: str = "") -> None:
        """Add the place of the set and the status of its mirrors, of one business or of all."""
        settings, is_home = self.settings, self.succession.is_home
        main = self._poller_in_use if self._looks is not None and not is_home else None
        refused = self._refused.get(main.name, "") if main is not None else ""
        status.network.CopyFrom(
            broker_pb2.NetworkStatus(
                set=self._place.set,
                tier=self._place.tier,
                level=self._place.level,
                networks=self._ids,
                path=topology_position.path_of(self._place, main.status.network if main is not None else None),
                home=self._home_addresses(),
                labels=settings.labels,
                upstream=() if is_home else settings.upstream,
                former=settings.upstream if is_home else (),
                refused=refused,
                where=topology_position.format_filters(
                    topology_position.items_of_business(self._rows.configured, business)
                ),
            )
        )
        status.alarms.extend(self.succession.alarms(business))
        for entry in status.businesses:
            entry.alarms.extend(self._rows.border_alarms(entry.business))
        if main is not None and self._looks is not None:
            seen = {look.name: look.status for look in self._looks.all}
            short = self._short.get(main.name, [])
            self._statuses.add_to_status(
                status, main.name, seen, refused, short, self.succession.promoted_homes(), business
            )


def open_borders(settings: ClusterSettings) -> dict[str, Border]:
    """Return the rules for columns that the sets below receive, by business. Raises ConfigError for an unusable key."""
    path, option = settings.masking_key_file, "cluster.masking_key_file"
    key = read_masking_key(path, option) if path else None
    found = {}
    for business, columns in settings.columns.items():
        rules = RuleSet(
            place=f"cluster.columns.{business}",
            rules={name: parse_rule(value) for name, value in columns.items()},
            key_id=key.key_id if key is not None else "",
        )
        hashed = next((name for name, rule in rules.rules.items() if rule.mask == HMAC), "")
        if hashed and key is None:
            raise ConfigError(f"{rules.place}.{hashed}: hmac needs a key, and {option} is not set", hint=MAKE_KEY)
        if rules.rules:
            found[business] = Border(rules, key)
    return found


def read_network_ids(core: Core) -> tuple[str, ...]:
    """Return the stored ids of the network; () if there are none yet."""
    value = core.store.get(keys.STATE, keys.NETWORK)
    return tuple(json.loads(value)) if value is not None else ()


def home_network_ids(core: Core, cluster: str = "") -> tuple[str, ...]:
    """Return the ids of a home's network; draw one the first time.

    The cluster's id is stored too: mirrors may know the home through another broker of the cluster, and a replaced
    home mirrors one of its former mirrors.
    """
    drawn = () if read_network_ids(core) else (uuid.uuid4().hex,)
    return save_network_ids(core, (*drawn, *([cluster] if cluster else [])))


def own_set_id(core: Core) -> str:
    """Return the id of a set of one broker, drawn once. It distinguishes two sets with the same name."""
    value = core.store.get(keys.STATE, keys.SET)
    if value is not None:
        return str(json.loads(value))
    drawn = uuid.uuid4().hex
    stored = json.dumps(drawn).encode()
    core.commits.submit(lambda group: group.stage(keys.STATE, keys.SET, stored, durable=True)).result(WAIT_S)
    return drawn


def save_network_ids(core: Core, ids: Iterable[str]) -> tuple[str, ...]:
    """Store more ids of the network durably; return all of them, at most as many as a message may contain."""
    known = read_network_ids(core)
    found = tuple(dict.fromkeys([*known, *ids]))[: max(len(known), NETWORKS_MAX)]
    stored = json.dumps(found).encode()
    if found != known:
        core.commits.submit(lambda group: group.stage(keys.STATE, keys.NETWORK, stored, durable=True)).result(WAIT_S)
    return found
