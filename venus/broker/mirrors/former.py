"""The home that a promoted set has replaced: whether it answers, and that it steps down when it comes back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from venus.broker.machine import home as homes
from venus.broker.machine.home import Home
from venus.errors import Unavailable, Untrusted, VenusError
from venus.rpc.address import Address, Proof
from venus.rpc.admin import Admin
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
ANSWER_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a broker has said, or why it has not. `is_there`: a process answers there, whatever it says."""

    address: str
    status: broker_pb2.BrokerStatus | None = None
    trouble: str = ""
    is_there: bool = True

    def is_home(self, business: str) -> bool:
        """Whether this may be a broker of a home of the business: nobody has told it otherwise."""
        if not self.is_there:
            return False
        if self.status is None:
            return True
        entry = next((found for found in self.status.businesses if found.business == business), None)
        is_mirror = bool(self.status.network.upstream) or (entry is not None and entry.HasField("mirror"))
        return not is_mirror and not (entry is not None and entry.replaced)

    @property
    def set(self) -> str:
        """The set, as far as it is known."""
        return f"set {self.status.network.set}" if self.status is not None else "a broker"


def ask(address: str, proof: Proof) -> Answer:
    """Ask a broker how it stands."""
    try:
        with Admin(Address(address, proof), timeout_s=ANSWER_S) as admin:
            return Answer(address=address, status=admin.status())
    except Untrusted as error:
        return Answer(address=address, trouble=str(error))
    except Unavailable as error:
        return Answer(address=address, trouble=str(error), is_there=False)
    except VenusError as error:  # it refuses us, so it lives
        return Answer(address=address, trouble=str(error))


def ask_homes(upstream: Iterable[str], proof: Proof) -> list[Answer]:
    """Ask brokers of the sets above, and of the home that they name."""
    answers = {address: ask(address, proof) for address in dict.fromkeys(upstream)}
    named = [
        address
        for answer in list(answers.values())
        if answer.status is not None
        for address in answer.status.network.home
    ]
    answers |= {address: ask(address, proof) for address in named if address not in answers}
    return list(answers.values())


@dataclass(slots=True)
class Former:
    """Watches the brokers of `upstream` in a thread, and tells those that are a home that they were replaced.

    `here` returns the businesses of which this set has become the home.
    """

    upstream: tuple[str, ...]
    proof: Proof
    here: Callable[[], Mapping[str, Home]]
    #: What each broker that is there has been found to be: a sentence for people, or empty.
    found: dict[str, str] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch from now on; once is enough."""
        if self._thread is None and self.upstream:
            self._thread = threading.Thread(target=self._run, name="venus-former-home", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            for address in self.upstream:
                try:
                    self.found[address] = self.look(ask(address, self.proof))
                except Exception:
                    logger.exception("the former home at %s cannot be watched; it is tried again", address)
            self._stop.wait(LOOK_EVERY_S)

    def look(self, answer: Answer) -> str:
        """Tell a home that comes back that it was replaced; return what is wrong with it, in words."""
        if not answer.is_there:
            return ""
        if answer.status is None:
            return f"a broker at {answer.address} answers, and may take writes as the former home: {answer.trouble}"
        said = []
        for name, home in self.here().items():
            if answer.is_home(name) and (trouble := self._tell(answer, name, home)):
                said.append(f"{answer.set} at {answer.address} is a home of {name} as well: {trouble}")
        return "; ".join(said)

    def _tell(self, answer: Answer, business: str, home: Home) -> str:
        assert answer.status is not None
        entry = next((found for found in answer.status.businesses if found.business == business), None)
        if entry is None:
            return ""  # it has nothing of it any more
        replaced_by = homes.said(home)
        assert replaced_by is not None, "it is here"
        if entry.home.home_term >= home.term:
            return f"its home term is {entry.home.home_term}, and {home.term} here: stop one of the two sets"
        try:
            with Admin(Address(answer.address, self.proof), timeout_s=ANSWER_S) as admin:
                admin.step_down(business, replaced_by)
        except VenusError as error:
            return f"it cannot be told to step down: {error}"
        logger.warning("%s: %s at %s was told to step down", business, answer.set, answer.address)
        return ""
