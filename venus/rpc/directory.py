"""Client of the directory (venus.wire.Network), and the answer that a process follows (Minos 3.4.1).

A client asks its seeds, and later any broker of the sets that it knows. The client keeps the answer in a file, so that
it can start while no broker of the directory answers. The client asks again every minute and after a failure. An
answer is only a choice of addresses: each broker still checks certificates, roles, networks and epochs.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import xxhash

from venus.errors import Unavailable, VenusError
from venus.process.system import state_folder
from venus.rpc import limits
from venus.rpc.address import BrokerAddress, ClientCredentials, DirectoryLookup
from venus.rpc.channel import open_channel
from venus.rpc.sealed import ask, seal, unseal
from venus.wire import network_pb2

logger = logging.getLogger(__name__)

REFRESH_S = 60.0
#: Minimum time between two requests after failures.
AGAIN_S = 2.0
ANSWER_S = 3.0
#: Time limit for all brokers that are asked for one answer.
SEARCH_S = 10.0
FILE_BYTES_MAX = 4 << 20

Sets = tuple[tuple[str, ...], ...]
S = TypeVar("S", bound="SetSelector")


class NetworkClient:
    """Connection to the Network service of one broker."""

    def __init__(self, address: str, *, timeout_s: float = ANSWER_S) -> None:
        self._timeout_s = timeout_s
        self._channel = open_channel(address, timeout_s=timeout_s)

    def where(self, lookup: DirectoryLookup) -> network_pb2.WhereAnswer:
        """Return the sets for a client. Raises VenusError."""
        request = network_pb2.WhereRequest(role=lookup.role, business=lookup.business, site=lookup.site)
        return ask(self._channel, "Network/Where", request, network_pb2.WhereAnswer, timeout_s=self._timeout_s)

    def report(self, report: network_pb2.NetworkReport) -> network_pb2.NetworkReport:
        """Report the own set to a set above; return what that set knows. Raises VenusError."""
        return ask(self._channel, "Network/Report", report, network_pb2.NetworkReport, timeout_s=self._timeout_s)

    def share(self) -> network_pb2.NetworkReport:
        """Return the network report of another broker of the own cluster. Raises VenusError."""
        request = network_pb2.NetworkReport()
        return ask(self._channel, "Network/Share", request, network_pb2.NetworkReport, timeout_s=self._timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def ask_where(address: str, lookup: DirectoryLookup) -> network_pb2.WhereAnswer:
    """Ask one broker for the sets for a client. Raises VenusError."""
    client = NetworkClient(address)
    try:
        return client.where(lookup)
    finally:
        client.close()


class SetSelector(Protocol):
    """A selector that takes the sets of an answer, such as BrokerSelector."""

    #: Called after a set was lost.
    on_loss: Callable[[], None]

    @property
    def set_in_use(self) -> tuple[str, ...]:
        """The brokers of the set in use."""

    def replace_sets(self, sets: Sets) -> None:
        """Use these sets from now on, the nearest first."""


class DirectoryFollower(Generic[S]):
    """The answer to one question, kept up to date by a thread for the selector that uses the answer."""

    def __init__(
        self,
        lookup: DirectoryLookup,
        proof: ClientCredentials,
        make: Callable[..., S],
        *,
        folder: Path | None = None,
        where: Callable[[str, DirectoryLookup], network_pb2.WhereAnswer] = ask_where,
    ) -> None:
        self._lookup, self._proof, self._make, self._where = lookup, proof, make, where
        self._file = (folder or state_folder() / "directory") / f"{_name_of(lookup)}.sets"
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._answer = network_pb2.WhereAnswer()
        self._selector: S | None = None
        self._thread: threading.Thread | None = None
        self._trouble = ""

    def selector(self) -> S:
        """Return the selector among the sets. Raises Unavailable without a new or a stored answer."""
        with self._lock:
            if self._selector is None:
                self._answer = self._find_first()
                self._selector = self._make(*order_sets(self._answer, ()))
                self._selector.on_loss = self._woken.set
            if self._thread is None or not self._thread.is_alive():  # a forked process has no thread
                self._thread = threading.Thread(target=self._follow, name="venus-directory", daemon=True)
                self._thread.start()
            return self._selector

    def refresh(self) -> None:
        """Ask again, and use the answer. Without an answer, or if it is empty, keep the known sets."""
        selector = self._selector
        assert selector is not None, "it was created first"
        answer, failures = self._search()
        if answer is None:
            self._log_problem(f"the directory does not answer, the known sets are used: {_format_failures(failures)}")
            return
        self._log_problem("")
        if answer != self._answer:
            self._answer = answer
            self._save(answer)
            selector.replace_sets(order_sets(answer, selector.set_in_use))

    def _follow(self) -> None:
        """Refresh the answer periodically, and when a set was lost."""
        while True:
            self._woken.wait(REFRESH_S)
            self._woken.clear()
            try:
                self.refresh()
            except Exception:
                logger.exception("cannot use the answer of the directory; retrying")
            time.sleep(AGAIN_S)

    def _find_first(self) -> network_pb2.WhereAnswer:
        """Return a new answer, else the stored one. Raises Unavailable without either."""
        answer, failures = self._search()
        if answer is not None:
            self._save(answer)
            return answer
        known = self._load()
        if known is None:
            raise Unavailable(
                f"no broker of [broker] directory answers: {_format_failures(failures)}; "
                f"and no earlier answer is in {self._file}",
                hint="check [broker] directory, or name the brokers in [broker] addresses",
            )
        self._log_problem(
            f"the directory does not answer, the sets of its last answer are used: {_format_failures(failures)}"
        )
        return known

    def _search(self) -> tuple[network_pb2.WhereAnswer | None, dict[str, str]]:
        """Return the first answer that names a set, and why other brokers gave none."""
        failures: dict[str, str] = {}
        end = time.monotonic() + SEARCH_S
        known = [address for one in self._answer.sets for address in one.addresses]
        for address in dict.fromkeys([*self._lookup.seeds, *known]):
            if time.monotonic() > end:
                break
            try:
                answer = self._where(BrokerAddress(address, self._proof), self._lookup)
            except VenusError as error:
                failures[address] = str(error)
                continue
            if order_sets(answer, ()):
                return answer, failures
            failures[address] = f"it knows no set for a {self._lookup.role} of {self._lookup.business}"
        return None, failures

    def _log_problem(self, trouble: str) -> None:
        """Log a problem when it begins, and when it ends."""
        if bool(trouble) != bool(self._trouble):
            logger.warning("%s", trouble or "the directory answers again")
        self._trouble = trouble

    # -- the file ------------------------------------------------------------------------------------------------

    def _save(self, answer: network_pb2.WhereAnswer) -> None:
        """Keep the answer in a file for the next start; a failure is only logged."""
        part = self._file.with_suffix(f".{os.getpid()}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            part.write_bytes(seal(answer))
            part.replace(self._file)
        except OSError as error:
            logger.warning("the answer of the directory is not kept in %s: %s", self._file, error.strerror)

    def _load(self) -> network_pb2.WhereAnswer | None:
        """Return the last answer, None if there is none or it is damaged."""
        try:
            with self._file.open("rb") as file:
                data = file.read(FILE_BYTES_MAX)
            answer = unseal(network_pb2.WhereAnswer, data, str(self._file))
            limits.check(answer, f"{self._file}: ")
        except FileNotFoundError:
            return None
        except (OSError, VenusError) as error:
            logger.warning("an earlier answer of the directory is ignored: %s", error)
            return None
        return answer if order_sets(answer, ()) else None


def order_sets(answer: network_pb2.WhereAnswer, in_use: tuple[str, ...]) -> Sets:
    """Return the brokers of each set, the nearest first; among equally near ones the set in use.

    A broker that two sets name counts for the first of them.
    """
    ordered = sorted(answer.sets, key=lambda one: (one.rank, not set(one.addresses) & set(in_use)))
    seen: set[str] = set()
    found = []
    for one in ordered:
        own = tuple(address for address in dict.fromkeys(one.addresses) if address not in seen)
        seen.update(own)
        found += [own] if own else []
    return tuple(found)


def _name_of(lookup: DirectoryLookup) -> str:
    """Return the name of the file for the answer to a question."""
    parts = [*lookup.seeds, "", lookup.role, lookup.business, lookup.site]
    return xxhash.xxh3_64_hexdigest("\n".join(parts).encode())


def _format_failures(failures: dict[str, str]) -> str:
    """Return the failures of all asked brokers as text."""
    return "; ".join(f"{address}: {why}" for address, why in failures.items()) or "no time left"
