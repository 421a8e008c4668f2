"""Place of this broker's set in the network, and everything that it pulls from upstream sets.

The id of the network is drawn once at the home, sent to every mirror, and never changed there.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping

from venus.broker.core import Core
from venus.broker.mirrors import place, uppers
from venus.broker.mirrors.looks import LOOK_EVERY_S, OTHERS_EVERY_S, Look, LookMaker, Looks
from venus.broker.mirrors.mirror_status import MirrorStatuses, tables_of
from venus.broker.mirrors.place import Place
from venus.broker.mirrors.pulls import Puller, Pulls
from venus.broker.mirrors.rows import Rows
from venus.broker.mirrors.succession import Succession
from venus.broker.mirrors.uppers import Fitness, Kind, Times
from venus.broker.mirrors.whom import NOT_YET, Above, Here, fitness
from venus.broker.pipeline.group import Group
from venus.broker.store import keys
from venus.config import Cluster
from venus.errors import NotLeader, Refused, Unavailable
from venus.network import row_filters
from venus.network.topology import PULLS_AS
from venus.rpc.address import Proof
from venus.rpc.limits import NETWORKS_MAX
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

WAIT_S = 60.0


class Network:
    """Membership of this broker in the network. A home has a place and pulls nothing. Thread-safe."""

    def __init__(
        self,
        core: Core,
        settings: Cluster,
        labels: Mapping[str, Iterable[str]],
        *,
        proof: Proof,
        may_pull: Callable[[str], None] = lambda _business: None,
        monotonic: Callable[[], float] = time.monotonic,
        puller: type[Puller] = Puller,
        look: LookMaker = Look,
        times: Times | None = None,
    ) -> None:
        self.settings = settings
        self._core, self._labels, self._monotonic = core, labels, monotonic
        self._place = Place(
            set=settings.set_name, tier=settings.tier, level=settings.level, labels=frozenset(settings.labels)
        )  # fmt: skip
        core.be_called(settings.set_name)
        self._rows = Rows(core, {name: row_filters.configured(found) for name, found in settings.where.items()})
        self._ids: tuple[str, ...] = ()
        self._refused: dict[str, str] = {}  # why nothing can be mirrored, by upstream set
        self._short: dict[str, list[str]] = {}  # labels that an upstream set does not receive
        self._looks: Looks | None = None
        if settings.is_mirror:
            self._looks = Looks(
                settings.upstream,
                proof,
                f"{PULLS_AS}{self._place.set}",
                looked=self._looked,
                pace=self._pace,
                look=look,
                named=place.named(labels, settings.labels, settings.where),
            )
        self._pulls = Pulls(core, self._above, may_pull, monotonic, puller, self._wake, times or uppers.TIMES)
        self._own: tuple[str, ...] = ()
        self._set_id = ""
        self.succession = Succession(core, self._place, settings.upstream, proof)
        self._statuses = MirrorStatuses(core, settings, labels, self._place, self._rows, self._pulls, monotonic)

    def start(self, own: Iterable[str], cluster: str = "") -> None:
        """Join the network. `own` are the addresses of this set for clients, `cluster` is its id. Blocking.

        Raises Refused if an upstream broker answers and this set cannot be downstream of it.
        """
        self._own = tuple(own)
        self.succession.enter(self._own)
        if self._looks is None:
            self.belongs_to(of_home(self._core, cluster))
            return
        self._set_id = cluster or of_set(self._core)
        self.belongs_to(read(self._core))
        if not self.succession.promoted():  # a promoted set's old home may be its mirror by now
            self._check_place(self._looks)
        self._looks.start()

    def _check_place(self, looks: Looks) -> None:
        above = looks.each()
        if not above:
            logger.warning("no broker of [cluster] upstream answers yet (%s): serving local data", looks.addresses)
        for network in above:
            if refusal := place.refusal(self._place, network, self._ids):
                raise Refused(refusal)

    def belongs_to(self, ids: tuple[str, ...]) -> None:
        """Set the ids of the network. Every answer to mirrors and consumers contains them."""
        self._ids = self._core.networks = ids

    def stop(self) -> None:
        """End every thread."""
        self.succession.stop()
        if self._looks is not None:
            self._looks.stop()
        self._pulls.stop()

    # -- producers ---------------------------------------------------------------------------------------------

    def refuse_producer(self, business: str) -> None:
        """Raise if producers may not ship here; only the home accepts them. Raises Refused, at a core set NotLeader."""
        if self._looks is None or self.succession.takes(business):
            return
        self._core.homes.refuse_consumer(business)  # a promoted set that was replaced knows the new home
        home = ", ".join(self._home()) or "not known yet"
        text = (
            f"{business}: this broker is of {self._place.tier} set {self._place.set}, which takes no changes from "
            f"producers; the home is at {home}"
        )
        if self._place.tier == "core":  # a producer that retries succeeds once this set was promoted
            raise NotLeader(text, hint="after a disaster `venus cluster promote` makes this set the home")
        raise Refused(text, hint="set [broker] addresses of the producer to the home's")

    def promote(self, business: str, *, force: bool, only_look: bool) -> broker_pb2.Promoted:
        """Make this set the home of a business whose home is gone. Blocking. Raises Refused, NotLeader, Unavailable."""
        known = [look.seen.network for look in self._looks.all] if self._looks is not None else []
        named = [address for network in known if network is not None for address in network.home]
        return self.succession.promote(business, dict.fromkeys(named), force=force, only_look=only_look)

    def _home(self) -> list[str]:
        if self.succession.is_home:
            return list(self._own)
        network = self._main.seen.network if self._looks is not None else None
        return list(network.home) if network is not None else []

    # -- what is pulled ----------------------------------------------------------------------------------------

    @property
    def _main(self) -> Look:
        """Return the upstream set in use for most businesses, or the nearest that has answered."""
        assert self._looks is not None
        for pull in self._pulls.all:
            return self._looks.of(pull.in_use)
        answered = (look for look in self._looks.all if look.seen.network is not None)
        return next(answered, self._looks.all[0])

    def _pace(self, look: Look) -> float:
        """Return the poll interval of a set: a second if it is in use, or if a business may need another set."""
        pulls = self._pulls.all
        is_calm = bool(pulls) and all(pull.is_well for pull in pulls)
        return OTHERS_EVERY_S if is_calm and look.name not in {pull.in_use for pull in pulls} else LOOK_EVERY_S

    def _wake(self) -> None:
        if self._looks is not None:
            self._looks.wake()

    def _looked(self, look: Look, renamed: Mapping[str, str]) -> None:
        """Handle the result of a poll; runs in the poller's thread, one at a time."""
        assert self._looks is not None
        if self.succession.is_home:
            self._refused.clear()
            self.succession.watch()
            return
        names = [one.name for one in self._looks.all]
        for pull in self._pulls.all:
            pull.known(names, renamed)
        if not look.seen.trouble and look.seen.network is not None:
            self._take_in(look.name, look.seen.network)
        for pull in self._pulls.all:
            pull.looked(look.name, self._fitness(look, pull.business, pull.here()))
            if pull.in_use == look.name and (entry := look.seen.businesses.get(pull.business)) is not None:
                pull.lag.seen(entry.next_offset, self._monotonic())
        if all(one.has_looked or one is look for one in self._looks.all):
            self._begin_all(names)

    def _take_in(self, name: str, network: broker_pb2.NetworkStatus) -> None:
        """Check that this set may be downstream of one that answers, and merge the network ids of both."""
        refusal = place.refusal(self._place, network, self._ids)
        if refusal != self._refused.get(name, ""):
            self._refused[name] = refusal
            if refusal:
                logger.error("nothing is mirrored from set %s: %s", name, refusal)
        if refusal:
            return
        short = place.short_of(self._place, network)
        for problem in short:
            if problem not in self._short.get(name, ()):
                logger.error("%s", problem)
        self._short[name] = short
        if network.networks and not set(network.networks) <= set(self._ids):
            self.belongs_to(remember(self._core, network.networks))

    def _fitness(self, look: Look, business: str, here: Here) -> Fitness:
        """Return how fit a set is as the upstream of a business, by its newest poll."""
        seen = look.seen
        if seen.trouble or seen.network is None:
            return Fitness(Kind.SILENT, seen.trouble or NOT_YET)
        if refusal := self._refused.get(look.name):
            return Fitness(Kind.APART, refusal)
        entry = seen.businesses.get(business)
        if entry is not None and not self.succession.follows(business, entry):
            return Fitness(Kind.APART, "it follows an older home, which was replaced")
        return fitness(entry, business, here)

    def _begin_all(self, names: list[str]) -> None:
        """Start pulling every business of the nearest set that follows the newest known home."""
        assert self._looks is not None
        promoted = self.succession.promoted()
        for look in self._looks.all:
            if look.seen.trouble or self._refused.get(look.name):
                continue
            for name, entry in look.seen.businesses.items():
                if name not in self._pulls and name not in promoted and self.succession.follows(name, entry):
                    self._begin(name, entry, names)

    def _begin(self, name: str, entry: broker_pb2.BusinessStatus, names: list[str]) -> None:
        """Start pulling a business, if it is to be mirrored and is not empty."""
        looks = self._looks
        only = place.wanted(self._labels, self.settings.labels, name)
        if looks is None or only is None or not (entry.next_offset or entry.tables or entry.tables_total):
            return
        if only and not tables_of([entry]) & {table.lower() for table in only}:
            return
        self._pulls.begin(
            name, only, self._rows.wanted(name), names,
            lambda one, here: self._fitness(looks.of(one), name, here),
        )  # fmt: skip

    def _above(self, name: str) -> Above:
        """Return the connection parameters of an upstream set. Raises Refused, Unavailable."""
        assert self._looks is not None
        look = self._looks.of(name)
        network = look.seen.network
        if refusal := self._refused.get(name):
            raise Refused(refusal)
        if network is None:
            raise Unavailable(NOT_YET)
        return Above(
            reach=look.reach, set=look.name, network=network.networks[0] if network.networks else "",
            group=look.group, own=self._ids, set_id=self._set_id, is_one_of=len(self._looks.all) > 1,
        )  # fmt: skip

    # -- status ------------------------------------------------------------------------------------------------

    def lay_over(self, status: broker_pb2.BrokerStatus, business: str = "") -> None:
        """Add the place of the set and the status of its mirrors, of one business or of all."""
        settings, is_home = self.settings, self.succession.is_home
        main = self._main if self._looks is not None and not is_home else None
        refused = self._refused.get(main.name, "") if main is not None else ""
        status.network.CopyFrom(
            broker_pb2.NetworkStatus(
                set=self._place.set, tier=self._place.tier, level=self._place.level, networks=self._ids,
                path=place.path_of(self._place, main.seen.network if main is not None else None), home=self._home(),
                labels=settings.labels, upstream=() if is_home else settings.upstream,
                former=settings.upstream if is_home else (), refused=refused,
                where=place.shown(place.about(self._rows.configured, business)),
            )
        )  # fmt: skip
        status.alarms.extend(self.succession.alarms(business))
        if main is not None and self._looks is not None:
            seen = {look.name: look.seen for look in self._looks.all}
            short = self._short.get(main.name, [])
            self._statuses.lay_over(status, main.name, seen, refused, short, self.succession.promoted(), business)


def read(core: Core) -> tuple[str, ...]:
    """Return the stored ids of the network; () if there are none yet."""
    value = core.store.get(keys.STATE, keys.NETWORK)
    return tuple(json.loads(value)) if value is not None else ()


def of_home(core: Core, cluster: str = "") -> tuple[str, ...]:
    """Return the ids of a home's network; draw one the first time.

    The cluster's id is stored too: mirrors may know the home through another broker of the cluster, and a replaced home
    mirrors one of them.
    """
    drawn = () if read(core) else (uuid.uuid4().hex,)
    return remember(core, (*drawn, *([cluster] if cluster else [])))


def of_set(core: Core) -> str:
    """Return the id of a set of one broker, drawn once. It distinguishes two sets with the same name."""
    value = core.store.get(keys.STATE, keys.SET)
    if value is not None:
        return str(json.loads(value))
    drawn = uuid.uuid4().hex

    def work(group: Group) -> None:
        group.stage(keys.STATE, keys.SET, json.dumps(drawn).encode())
        group.durable = True

    core.commits.submit(work).result(WAIT_S)
    return drawn


def remember(core: Core, ids: Iterable[str]) -> tuple[str, ...]:
    """Store more ids of the network durably; return all of them, at most as many as a message may contain."""
    known = read(core)
    found = tuple(dict.fromkeys([*known, *ids]))[: max(len(known), NETWORKS_MAX)]

    def work(group: Group) -> None:
        group.stage(keys.STATE, keys.NETWORK, json.dumps(found).encode())
        group.durable = True

    if found != known:
        core.commits.submit(work).result(WAIT_S)
    return found
