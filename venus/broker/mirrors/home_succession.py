"""Home of each business after promotions: this set, an upstream set, or a set that was unreachable.

A core set can become the home if the home that it mirrors is gone, because every core set has every business (Minos).

A promoted set monitors the home that it has replaced, and sets promoted at the same time. One home remains: the one
with the higher home term. If two sets have the same term, the one whose name sorts first raises its term, which
invalidates what the other set has accepted since, and asks the other set to step down.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from venus.broker.core import Core
from venus.broker.machine.mirror import Home, home_from_wire, home_term_of, home_to_wire
from venus.broker.machine.records import load_schemas
from venus.broker.mirrors.topology_position import SetPosition
from venus.errors import Refused, Unavailable, Untrusted, VenusError
from venus.model import is_address
from venus.rpc.address import BrokerAddress, ClientCredentials
from venus.rpc.admin import AdminClient, is_home
from venus.wire import broker_pb2

LOOK_EVERY_S = 1.0
ANSWER_S = 5.0
#: Maximum number of addresses of other homes to remember.
RIVALS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeAnswer:
    """Status of a possible home's broker, or why it is missing. `is_there`: the address answers, even with an error."""

    address: str
    status: broker_pb2.BrokerStatus | None = None
    trouble: str = ""
    is_there: bool = True

    def is_home(self, business: str) -> bool:
        """Whether the broker may belong to a home of the business: it answers, and its status does not deny that."""
        if not self.is_there:
            return False
        if self.status is None:
            return True
        return is_home(self.status.network, self.business_status(business))

    def business_status(self, business: str) -> broker_pb2.BusinessStatus | None:
        """Return the status of a business, None if it is unknown."""
        known = self.status.businesses if self.status is not None else ()
        return next((found for found in known if found.business == business), None)

    @property
    def homes(self) -> Iterator[str]:
        """Addresses of homes that the broker names."""
        if self.status is not None:
            yield from self.status.network.home
            for entry in self.status.businesses:
                yield from entry.home.addresses

    @property
    def set(self) -> str:
        """Description of the broker's set for messages."""
        return f"set {self.status.network.set}" if self.status is not None else "a broker"


def ask_broker(address: str, proof: ClientCredentials) -> HomeAnswer:
    """Request the status of a broker."""
    try:
        with AdminClient(BrokerAddress(address, proof), timeout_s=ANSWER_S) as admin:
            return HomeAnswer(address=address, status=admin.status())
    except Untrusted as error:
        return HomeAnswer(address=address, trouble=str(error))
    except Unavailable as error:
        return HomeAnswer(address=address, trouble=str(error), is_there=False)
    except VenusError as error:  # an error from the broker shows that it is alive
        return HomeAnswer(address=address, trouble=str(error))


def ask_homes(upstream: Iterable[str], proof: ClientCredentials) -> list[HomeAnswer]:
    """Request the status of upstream brokers, and of the homes that they name."""
    answers = {address: ask_broker(address, proof) for address in dict.fromkeys(upstream)}
    homes_named = [address for answer in answers.values() for address in answer.homes]
    named = [address for address in dict.fromkeys(homes_named) if address not in answers and is_address(address)]
    answers |= {address: ask_broker(address, proof) for address in named[:RIVALS_MAX]}
    return list(answers.values())


class OwnHomes(Protocol):
    """Changes of a business whose home is this broker set. A broker that does not lead the business does nothing."""

    def promoted_homes(self) -> Mapping[str, Home]:
        """Return the businesses whose home this set has become by a promotion."""

    def step_down(self, business: str, home: Home) -> None:
        """Make another set the home of a business."""

    def outrank(self, business: str, term: int) -> None:
        """Raise this set's home term above `term`."""


@dataclass(slots=True)
class HomeMonitor:
    """Thread that monitors brokers of `upstream` and the homes that they name. `set` is the name of this set."""

    set: str
    upstream: tuple[str, ...]
    proof: ClientCredentials
    own: OwnHomes
    #: Problems of each reachable broker, by business; "" = a problem of the broker itself.
    found_problems: dict[str, dict[str, str]] = field(default_factory=dict)
    _rivals: dict[str, None] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the monitor thread, once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="venus-former-home", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def add(self, addresses: Iterable[str]) -> None:
        """Monitor these addresses too: they claim to be a home."""
        new = [address for address in addresses if is_address(address) and address not in self._rivals]
        self._rivals = dict.fromkeys([*self._rivals, *new][-RIVALS_MAX:])

    def _run(self) -> None:
        """Ask all monitored brokers for their status, and resolve competing homes, until stopped."""
        while not self._stop.is_set():
            try:
                answers = ask_homes([*self.upstream, *self._rivals], self.proof)
                self.found_problems = {answer.address: self.resolve(answer) for answer in answers}
            except Exception:
                logger.exception("cannot monitor the former home; retrying")
            self._stop.wait(LOOK_EVERY_S)

    def resolve(self, answer: HomeAnswer) -> dict[str, str]:
        """Resolve competing homes so that one remains; return the problems by business."""
        if not answer.is_there:
            return {}
        if answer.status is None:
            what = f"a broker at {answer.address} answers, and may take writes as the former home: {answer.trouble}"
            return {"": what}
        said = {}
        for name, home in self.own.promoted_homes().items():
            entry = answer.business_status(name)  # None = it no longer has the business
            if entry is not None and answer.is_home(name) and (trouble := self._resolve_home(answer, entry, home)):
                said[name] = f"{answer.set} at {answer.address} is a home of {name} as well: {trouble}"
        return said

    def problems(self, business: str = "") -> list[str]:
        """Return the problems with other homes, one sentence for each broker, of one business or of all."""
        chosen = [
            [text for name, text in found.items() if business in ("", name) or not name]
            for found in self.found_problems.values()
        ]
        return ["; ".join(texts) for texts in chosen if texts]

    def _resolve_home(self, answer: HomeAnswer, entry: broker_pb2.BusinessStatus, home: Home) -> str:
        """Decide whether this set or the other one remains the home; return the problem that remains."""
        other = home_from_wire(entry.home)
        if home_term_of(other) < home.term:
            return self._ask_to_step_down(answer, entry.business, home)
        assert other is not None, "it was promoted"
        if other.set == self.set:
            return ""  # a broker of this set
        if other.term > home.term:
            self.own.step_down(entry.business, other)
            return f"its home term is {other.term}, and {home.term} here: this set steps down"
        if self.set < other.set:
            self.own.outrank(entry.business, other.term)
            return "both were promoted at the same time: this set stays the home"
        self._ask_to_step_down(answer, entry.business, home)  # it may not know this set
        return f"both were promoted at the same time: this set steps down as soon as set {other.set} asks for it"

    def _ask_to_step_down(self, answer: HomeAnswer, business: str, home: Home) -> str:
        """Ask a broker of the other set to step down; return the problem that remains."""
        replaced_by = home_to_wire(home)
        assert replaced_by is not None, "it is here"
        try:
            with AdminClient(BrokerAddress(answer.address, self.proof), timeout_s=ANSWER_S) as admin:
                admin.step_down(business, replaced_by)
        except VenusError as error:
            return f"it cannot be asked to step down: {error}"
        logger.warning("%s: asked %s at %s to step down", business, answer.set, answer.address)
        return ""


logger = logging.getLogger(__name__)

WAIT_S = 60.0
NOTE_S = 5.0


class HomeSuccession:
    """Promotions of this set. All state but the monitor of the former home is in the logs. Thread-safe."""

    def __init__(self, core: Core, place: SetPosition, upstream: Sequence[str], proof: ClientCredentials) -> None:
        self._core, self._place, self._upstream, self._proof = core, place, tuple(upstream), proof
        self._own: tuple[str, ...] = ()
        self._former = HomeMonitor(set=place.set, upstream=self._upstream, proof=proof, own=self)

    def start(self, own: Sequence[str]) -> None:
        """Set the addresses of this set; start the monitor of other homes if this set was promoted."""
        self._own = tuple(own)
        if self.promoted_homes():
            self.start_monitor()

    def start_monitor(self) -> None:
        """Start monitoring the former home and other homes."""
        self._former.start()

    def add_rival(self, home: Home) -> None:
        """Monitor a set that claims to be the home."""
        self._former.add(home.addresses)

    def stop(self) -> None:
        """End the monitor."""
        self._former.stop()

    def promoted_homes(self) -> dict[str, Home]:
        """Return the businesses whose home this set has become by a promotion."""
        found = {business.name: business.committed.home for business in self._core.catalogue.list_stored()}
        return {name: home for name, home in found.items() if home is not None and home.here}

    def step_down(self, business: str, home: Home) -> None:
        """Make another set the home of a business, if this broker leads it."""
        with suppress(VenusError, TimeoutError):
            self._core.homes.note(business, home).result(NOTE_S)

    def outrank(self, business: str, term: int) -> None:
        """Raise this set's home term above `term`, if this broker leads the business."""
        home = Home(set=self._place.set, term=term + 1, addresses=self._own, here=True)
        with suppress(VenusError, TimeoutError):
            if self._core.homes.confirm(business, home).result(NOTE_S):
                logger.warning(
                    "%s: another set was promoted at the same time; this one stays the home, home term %d",
                    business,
                    home.term,
                )

    @property
    def is_home(self) -> bool:
        """Whether this set accepts the writes of all its businesses, by configuration or by promotions."""
        if not self._upstream:
            return True
        here = self.promoted_homes()
        return bool(here) and all(b.name in here for b in self._core.catalogue.list_stored() if b.committed.mirror)

    def accepts_writes(self, business: str) -> bool:
        """Whether producers may ship for a business here."""
        return business in self.promoted_homes() or (self.is_home and not self._core.catalogue.has_stored(business))

    def promote(self, business: str, named: Iterable[str], *, force: bool, only_look: bool) -> broker_pb2.Promoted:
        """Make this set the home. `named` are further known addresses of the old home. Blocking."""
        answers = ask_homes([*self._upstream, *named], self._proof)
        said = preview_promotion(self._core, self._place, business, answers, force=force)
        if not only_look:
            said = become_home(self._core, said, self._own)
            logger.warning("%s: this set was promoted: it is the home now, home term %d", business, said.home_term)
            self.start_monitor()
        return said

    def is_on_newest_home(self, name: str, entry: broker_pb2.BusinessStatus) -> bool:
        """Whether the upstream follows the newest home known here. Records a newer home."""
        if not self._core.catalogue.has_stored(name):
            return not entry.replaced
        other, business = home_from_wire(entry.home), self._core.catalogue.find(name)
        known = business.committed.home
        if known is not None and known.here:
            return True
        if home_term_of(other) < home_term_of(known) or entry.replaced:
            return False
        if other is not None and known is not None and other.term == known.term and other.set != known.set:
            return False  # both were promoted: the one that remains will raise its home term
        if other is not None and other.term > home_term_of(known) and business.committed.is_mirror:
            with suppress(VenusError):  # another broker of this set leads, or the next poll retries
                self._core.homes.note(name, other).result(NOTE_S)
        return True

    def alarms(self, business: str = "") -> list[str]:
        """Return alarms of promotions against the configuration and of the old home, of one business or of all."""
        here = self.promoted_homes()
        if not self._upstream:
            return self._former.problems(business)
        if not here or (business and business not in here):
            return []
        names, above = business or ", ".join(sorted(here)), ", ".join(self._upstream)
        said = (
            f"this set was promoted and is the home of {names}, though [cluster] upstream still names {above}: remove "
            "upstream from the configuration once the old home is a mirror, or is lost permanently; until then it is "
            "monitored, and asked to step down"
        )
        return [said, *self._former.problems(business)]


def _refuse_masked(core: Core, business: str) -> None:
    """Raise Refused if a set above masks columns: no source could give this set the plain values."""
    schemas = load_schemas(core.store, core.catalogue.find(business).number)
    if masked := sorted({schema.qualified_name for _, schema in schemas if schema.masked_above}):
        raise Refused(
            f"{business}: a set above masks columns of {', '.join(masked)}, so this set cannot become its home",
            hint="Promote a set that mirrors the home itself, without [cluster.columns] between them",
        )


def preview_promotion(
    core: Core, place: SetPosition, business: str, answers: Sequence[HomeAnswer], *, force: bool
) -> broker_pb2.Promoted:
    """Return what a promotion would do. Raises Refused with a hint, Unavailable for an unknown business.

    `answers` come from the upstream sets and the home; there are none if no address is configured.
    """
    if place.tier != "core":
        raise Refused(
            f"set {place.set} is of tier {place.tier}: only a core set becomes the home, because those have everything",
            hint='run it at a core set, or start this one with [cluster] tier = "core" if it mirrors everything',
        )
    core.homes.check_promotable(business)
    _refuse_masked(core, business)
    trouble = _home_problem(business, answers)
    if trouble and not force:
        raise Refused(
            f"{business}: {trouble}",
            hint="stop the brokers of the old home first; with --force two sets take writes until the old one is "
            "reached and asked to step down, and what it accepts until then is not here",
        )
    found = core.catalogue.find(business)
    state = found.committed
    assert state.mirror is not None, "only a mirror is promoted"
    return broker_pb2.Promoted(
        business=business,
        set=place.set,
        old_set=state.mirror.set,
        home_term=_next_home_term(business, state.home, answers),
        next_offset=state.next_offset,
        last_batch=state.last_batch,
        last_committed_at_us=found.committed_at_us,
        trouble=trouble or "; ".join(answer.trouble for answer in answers),
    )


def become_home(core: Core, said: broker_pb2.Promoted, own: Sequence[str]) -> broker_pb2.Promoted:
    """Make this set the home; return `said` and the end of its queue. Blocking. Raises Refused, NotLeader."""
    home = Home(set=said.set, term=said.home_term, addresses=tuple(own), here=True)
    core.homes.become(said.business, home).result(WAIT_S)
    state = core.catalogue.find(said.business).committed
    said.next_offset, said.last_batch = state.next_offset, state.last_batch
    return said


def _home_problem(business: str, answers: Sequence[HomeAnswer]) -> str:
    """Return why the home of a business may still be alive; empty = none of its brokers answers."""
    if not answers:
        return "the home cannot be asked whether it is alive: [cluster] upstream is not set"
    alive = [answer for answer in answers if answer.is_home(business)]
    if not alive:
        return ""
    first = alive[0]
    why = f" ({first.trouble})" if first.trouble else ""
    return f"the home is not gone, {first.set} at {first.address} answers{why}: there would be two homes"


def _next_home_term(business: str, known: Home | None, answers: Sequence[HomeAnswer]) -> int:
    """Return a home term above every known one."""
    terms = [
        entry.home.home_term
        for answer in answers
        if answer.status is not None
        for entry in answer.status.businesses
        if entry.business == business
    ]
    return max([home_term_of(known), *terms]) + 1
