"""Monitor of other homes: the one that this promoted set has replaced, and sets promoted at the same time.

One home remains: the one with the higher home term. If two sets have the same term, the one whose name sorts first
raises its term, which invalidates what the other accepted meanwhile, and asks the other to step down.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from venus.broker.machine.mirror import Home, home_from_wire, home_term_of, home_to_wire
from venus.errors import Unavailable, Untrusted, VenusError
from venus.model import is_address
from venus.rpc.address import BrokerAddress, ClientCredentials
from venus.rpc.admin import AdminClient, is_home
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
ANSWER_S = 5.0
#: Maximum number of addresses of other homes to remember.
RIVALS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeAnswer:
    """Status of a broker, or why it is missing. `is_there`: a process answers at the address, even with an error."""

    address: str
    status: broker_pb2.BrokerStatus | None = None
    trouble: str = ""
    is_there: bool = True

    def is_home(self, business: str) -> bool:
        """Whether this may be a broker of a home of the business. True unless its status denies it."""
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
    """Changes to this set's own homes. A broker that does not lead the business does nothing."""

    def promoted_homes(self) -> Mapping[str, Home]:
        """Return the businesses whose home this set has become by a promotion."""

    def step_down(self, business: str, home: Home) -> None:
        """Make another set the home of a business."""

    def outrank(self, business: str, term: int) -> None:
        """Raise this set's home term above `term`."""


@dataclass(slots=True)
class HomeMonitor:
    """Monitors brokers of `upstream`, and the homes that they name, in a thread. `set` is the name of this set."""

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
        """Return the problems, one sentence for each broker, of one business or of all."""
        chosen = [
            [text for name, text in found.items() if business in ("", name) or not name]
            for found in self.found_problems.values()
        ]
        return ["; ".join(texts) for texts in chosen if texts]

    def _resolve_home(self, answer: HomeAnswer, entry: broker_pb2.BusinessStatus, home: Home) -> str:
        """Decide which of two homes remains, this set or the other. Return the remaining problem."""
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
        replaced_by = home_to_wire(home)
        assert replaced_by is not None, "it is here"
        try:
            with AdminClient(BrokerAddress(answer.address, self.proof), timeout_s=ANSWER_S) as admin:
                admin.step_down(business, replaced_by)
        except VenusError as error:
            return f"it cannot be asked to step down: {error}"
        logger.warning("%s: asked %s at %s to step down", business, answer.set, answer.address)
        return ""
