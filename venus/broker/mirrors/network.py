"""The place of this broker's set in the network, and everything that it pulls from the set above."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from venus.broker.core import Core
from venus.broker.machine.mirror import Mirror
from venus.broker.mirrors import identity, place
from venus.broker.mirrors.lag import Lag
from venus.broker.mirrors.place import Place
from venus.broker.mirrors.progress import State, Told
from venus.broker.mirrors.puller import Puller
from venus.broker.mirrors.pulling import Above
from venus.broker.mirrors.rows import Rows
from venus.broker.mirrors.succession import Succession
from venus.broker.mirrors.upstream import Seen, Upstream
from venus.config import Cluster
from venus.errors import NotLeader, Refused, Unavailable
from venus.network import row_filters
from venus.network.topology import PULLS_AS
from venus.rpc.address import Address, Proof
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

#: Without an answer for so long the set above counts as cut off.
CUT_OFF_S = 5.0
NOT_YET = "the set above has not answered yet"


class Network:
    """Thread-safe. A home has a place and pulls nothing."""

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
    ) -> None:
        self.settings = settings
        self._core, self._labels, self._may_pull = core, labels, may_pull
        self._monotonic, self._puller = monotonic, puller
        self._place = Place(
            set=settings.set_name, tier=settings.tier, level=settings.level, labels=frozenset(settings.labels)
        )  # fmt: skip
        core.be_called(settings.set_name)
        self._rows = Rows(core, {name: row_filters.configured(found) for name, found in settings.where.items()})
        self._ids: tuple[str, ...] = ()
        self._refused = ""
        self._short: list[str] = []  # labels that the set above does not get
        self._lock = threading.Lock()
        self._pullers: dict[str, Puller] = {}
        self._lags: dict[str, Lag] = {}
        self._upstream: Upstream | None = None
        if settings.is_mirror:
            self._upstream = Upstream(
                Address(",".join(settings.upstream), proof), f"{PULLS_AS}{self._place.set}", self._looked
            )
        self._own: tuple[str, ...] = ()
        self._set_id = ""
        self._began_us = core.clock_us()
        self.succession = Succession(core, self._place, settings.upstream, proof)

    def start(self, own: Iterable[str], cluster: str = "") -> None:
        """Take the place; `own` are the addresses under which clients find this set, `cluster` its id. Blocking.

        Raises Refused if a broker of the sets above answers, and this one cannot be below it.
        """
        self._own = tuple(own)
        self.succession.enter(self._own)
        if self._upstream is None:
            self.belongs_to(identity.of_home(self._core, cluster))
            return
        self._set_id = cluster or identity.of_set(self._core)
        self.belongs_to(identity.read(self._core))
        if not self.succession.promoted():  # then the old home may be a mirror of this set by now
            self._check_place()
        self._upstream.start()

    def _check_place(self) -> None:
        assert self._upstream is not None
        above = self._upstream.each()
        if not above:
            logger.warning(
                "no broker of [cluster] upstream answers yet (%s): what is here is served", self._upstream.reach
            )
        for network in above:
            if refusal := place.refusal(self._place, network, self._ids):
                raise Refused(refusal)

    def belongs_to(self, ids: tuple[str, ...]) -> None:
        """Know the ids of the network; every answer to who pulls or reads here has them."""
        self._ids = self._core.networks = ids

    def stop(self) -> None:
        """End every thread."""
        self.succession.stop()
        if self._upstream is not None:
            self._upstream.stop()
        with self._lock:
            pullers = list(self._pullers.values())
        for puller in pullers:
            puller.stop()

    # -- producers ---------------------------------------------------------------------------------------------

    def refuse_producer(self, business: str) -> None:
        """Raise where no producer may ship, which is done at the home alone: Refused, NotLeader at a core set."""
        if self._upstream is None or self.succession.takes(business):
            return
        self._core.homes.refuse_consumer(business)  # a promoted set that was replaced knows who is the home
        home = ", ".join(self._home()) or "not known yet"
        text = (
            f"{business}: this broker is of {self._place.tier} set {self._place.set}, which takes no changes from "
            f"producers; the home is at {home}"
        )
        if self._place.tier == "core":  # whoever waits there finds it at work once it was promoted
            raise NotLeader(text, hint="after a disaster `venus cluster promote` makes this set the home")
        raise Refused(text, hint="set [broker] addresses of the producer to the home's")

    def promote(self, business: str, *, force: bool, only_look: bool) -> broker_pb2.Promoted:
        """Make this set the home of a business whose home is gone. Blocking. Raises Refused, NotLeader, Unavailable."""
        seen = self._upstream.seen.network if self._upstream is not None else None
        named = seen.home if seen is not None else ()
        return self.succession.promote(business, named, force=force, only_look=only_look)

    def _home(self) -> list[str]:
        if self.succession.is_home:
            return list(self._own)
        network = self._upstream.seen.network if self._upstream is not None else None
        return list(network.home) if network is not None else []

    # -- what is pulled ----------------------------------------------------------------------------------------

    def _looked(self, seen: Seen) -> None:
        """Take in what the set above says; in the thread that asks it."""
        if self.succession.is_home:
            self._refused = ""
            self.succession.watch()
            return
        if seen.trouble or seen.network is None:
            return
        refusal = place.refusal(self._place, seen.network, self._ids)
        if refusal != self._refused:
            self._refused = refusal
            if refusal:
                logger.error("nothing is mirrored: %s", refusal)
        if refusal:
            return
        short = place.short_of(self._place, seen.network)
        for problem in short:
            if problem not in self._short:
                logger.error("%s", problem)
        self._short = short
        if seen.network.networks and not set(seen.network.networks) <= set(self._ids):
            self.belongs_to(identity.remember(self._core, seen.network.networks))
        self._take_in(seen)

    def _take_in(self, seen: Seen) -> None:
        """Pull what is there, from whoever follows the newest home that is known."""
        upstream, now = self._upstream, self._monotonic()
        assert upstream is not None
        for name, entry in seen.businesses.items():
            if not self.succession.follows(name, entry):
                upstream.pass_over()
            elif name not in self.succession.promoted():
                self._lags.setdefault(name, Lag()).seen(entry.next_offset, now)
                self._pull(name, entry)

    def _pull(self, name: str, entry: broker_pb2.BusinessStatus) -> None:
        """Pull a business from now on, if it is to be mirrored and has something."""
        only = place.wanted(self._labels, self.settings.labels, name)
        if name in self._pullers or only is None or not (entry.next_offset or entry.tables):
            return
        if only and not tables_of([entry]) & {table.lower() for table in only}:
            return
        puller = self._puller(self._core, name, only, self._above, self._may_pull, self._rows.wanted(name))
        with self._lock:
            self._pullers[name] = puller
        puller.start()

    def _above(self) -> Above:
        """Return whom to pull from. Raises Refused, Unavailable."""
        assert self._upstream is not None
        network = self._upstream.seen.network
        if self._refused:
            raise Refused(self._refused)
        if network is None:
            raise Unavailable(NOT_YET)
        return Above(
            reach=self._upstream.reach, set=network.set, network=network.networks[0] if network.networks else "",
            group=self._upstream.group, own=self._ids, set_id=self._set_id,
        )  # fmt: skip

    # -- status ------------------------------------------------------------------------------------------------

    def lay_over(self, status: broker_pb2.BrokerStatus) -> None:
        """Add the place of the set, and how each mirror stands."""
        settings, upstream, is_home = self.settings, self._upstream, self.succession.is_home
        above = upstream.seen.network if upstream is not None and not is_home else None
        status.network.CopyFrom(
            broker_pb2.NetworkStatus(
                set=self._place.set, tier=self._place.tier, level=self._place.level, networks=self._ids,
                path=place.path_of(self._place, above), home=self._home(), labels=settings.labels,
                upstream=() if is_home else settings.upstream, former=settings.upstream if is_home else (),
                refused=self._refused, where=place.shown(self._rows.configured),
            )
        )  # fmt: skip
        here = self.succession.promoted()
        status.alarms.extend(self.succession.alarms())
        if upstream is None or is_home:
            return
        mirrored = []
        for entry in status.businesses:
            told = self._told(entry.business, upstream.seen)
            if told is not None and entry.business not in here:
                mirrored.append(entry.business)
                entry.mirror.CopyFrom(self._mirror(entry, told, upstream.seen))
                is_told = entry.mirror.state == State.REFUSED and (self._refused or upstream.seen.barred)
                entry.alarms.extend([] if is_told else alarms_of(entry.mirror))
                entry.alarms.extend(self._rows.alarms(entry.business, self._place.set, self._above_of(entry.business)))
        status.alarms.extend(self._alarms(upstream.seen, mirrored))
        if not self._refused and not upstream.seen.barred:
            status.alarms.extend(self._unlisted({entry.business for entry in status.businesses}))

    def _unlisted(self, listed: Collection[str]) -> list[str]:
        """Return which businesses are refused before anything of them is here."""
        told = {name: puller.progress.told for name, puller in list(self._pullers.items()) if name not in listed}
        return [
            f"this set mirrors nothing of {name}: {found.reason}"
            for name, found in told.items()
            if found.state is State.REFUSED
        ]

    def _alarms(self, seen: Seen, mirrored: Sequence[str]) -> list[str]:
        """Return what is wrong with the set as a whole, one sentence for all of its businesses."""
        if self._refused:
            return [f"this set mirrors nothing: {self._refused}"]
        if seen.barred:
            return [f"this set mirrors nothing new: {seen.trouble}"]
        if seen.trouble and self._monotonic() - seen.since > CUT_OFF_S:
            where = f"set {seen.network.set}" if seen.network is not None else "the set above"
            served = f", what is here of {', '.join(mirrored)} is served" if mirrored else ""
            return [f"{where} does not answer for {self._monotonic() - seen.since:,.0f} s{served}: {seen.trouble}"]
        if seen.network is None:
            return self._short
        absent = self._rows.absent(seen.network.set, {n: tables_of([e]) for n, e in seen.businesses.items()})
        if self._labels:
            tables = tables_of(seen.businesses.values())
            absent += place.absent(self._labels, self.settings.labels, seen.businesses, tables)
        return self._short + absent

    def _above_of(self, business: str) -> broker_pb2.MirrorStatus | None:
        """Return how the set above mirrors a business itself, as far as it has said; None = it has all of it."""
        entry = self._upstream.seen.businesses.get(business) if self._upstream is not None else None
        return entry.mirror if entry is not None and entry.HasField("mirror") else None

    def _told(self, name: str, seen: Seen) -> Told | None:
        """Return what a mirror says of itself; one is there before the set above has answered for the first time."""
        if (puller := self._pullers.get(name)) is not None:
            return puller.progress.told
        asks = place.wanted(self._labels, self.settings.labels, name) is not None and seen.network is None
        if not asks or not self._core.catalogue.known(name).committed.is_mirror:
            return None
        return Told(state=State.CUT_OFF, reason=seen.trouble or NOT_YET, since_us=self._began_us)

    def _mirror(self, entry: broker_pb2.BusinessStatus, told: Told, seen: Seen) -> broker_pb2.MirrorStatus:
        now = self._monotonic()
        lag = self._lags.get(entry.business) or Lag()
        state, reason, since_us = told.state, told.reason, told.since_us
        if state is State.FOLLOWING and seen.trouble and now - seen.since > CUT_OFF_S:
            state, reason = State.CUT_OFF, seen.trouble
            since_us = self._core.clock_us() - int((now - seen.since) * 1e6)
        if state is State.CUT_OFF and not seen.trouble and seen.network is not None:
            state = State.WAITING  # it answers, but not for this business
        business = self._core.catalogue.known(entry.business)
        if state is State.FOLLOWING and not business.is_filled:
            state = State.FILLING
        mirror = business.committed.mirror
        # What follows has nothing that is not above; the set above is asked once a second only.
        above = max(lag.upstream_offset, entry.next_offset if state is State.FOLLOWING else 0)
        return broker_pb2.MirrorStatus(
            state=state, reason=reason, since_us=since_us, address=told.address,
            set=mirror.set if mirror is not None else "", upstream_offset=above,
            lag=lag.offsets(entry.next_offset), lag_ms=lag.ms(entry.next_offset, now), hop_ms=told.hop_ms,
            bytes=told.nbytes, rows=told.rows, rows_expected=mirror.rows if mirror is not None else 0,
            only=self._only(entry.business, mirror), fills=told.fills,
            where=self._rows.here(entry.business, self._above_of(entry.business)),
        )  # fmt: skip

    def _only(self, business: str, mirror: Mirror | None) -> tuple[str, ...]:
        if (puller := self._pullers.get(business)) is not None:
            return puller.only
        return mirror.only if mirror is not None else ()


def tables_of(businesses: Iterable[broker_pb2.BusinessStatus]) -> set[str]:
    """Return the tables by name, with and without their namespace, in lower case."""
    found = set[str]()
    for entry in businesses:
        for table in entry.tables:
            found |= {table.name.lower(), f"{table.namespace}.{table.name}".lower()}
    return found


def alarms_of(mirror: broker_pb2.MirrorStatus) -> list[str]:
    """Return what somebody has to know of a mirror; that nobody above answers is said once, of the whole set."""
    match mirror.state:
        case State.WAITING if mirror.reason:
            return [f"the mirror waits for set {mirror.set or 'above'}: {mirror.reason}"]
        case State.REFUSED:
            return [f"the mirror is refused by set {mirror.set or 'above'}: {mirror.reason}"]
        case State.FILLING if mirror.reason:
            return [f"the mirror takes the full data again: {mirror.reason}"]
    return []
