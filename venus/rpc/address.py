"""Address of a broker, with the credentials of the client.

An address is the text HOST:PORT and carries its credentials along, also when it is pickled for a worker. Certificates
travel as file names: a worker on another machine reads its own files. A token travels with the task, as the targets'
passwords do, and is never part of the text.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

from pydantic import SecretStr

if TYPE_CHECKING:
    from venus.config import Settings

NO_SECRET = SecretStr("")
TOKEN_VARIABLE = "VENUS_SECURITY__CLIENT_TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """Credentials that a client shows, and the authority that it trusts. Without `ca` there is no TLS."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    token_file: str = ""
    token: SecretStr = NO_SECRET


NONE = ClientCredentials()
#: Roles of a client in the directory (venus/network/directory.py).
PRODUCER, CONSUMER = "producer", "consumer"


@dataclass(frozen=True, slots=True)
class DirectoryLookup:
    """A question to the directory: which sets are for this client. `seeds` are brokers of any set."""

    seeds: tuple[str, ...]
    role: str
    business: str
    site: str = ""


class BrokerAddress(str):
    """HOST:PORT of a broker, with the client's credentials. A plain str is an address without TLS."""

    proof: ClientCredentials = NONE
    #: Where the increments are read: None = at the leader, else at the nearest replica, as seen from this site.
    near: str | None = None
    #: If set, the directory names the brokers, and the text has the seeds to ask.
    lookup: DirectoryLookup | None = None
    #: Whether streams may use a Unix socket if the broker is on this machine (local_socket.py).
    may_be_local: bool = False

    def __new__(cls, text: str, proof: ClientCredentials = NONE) -> BrokerAddress:
        """Create an address from its text and credentials."""
        self = super().__new__(cls, text)
        self.proof = proof
        return self


def broker_address(settings: Settings, role: str = "") -> BrokerAddress:
    """Return the address of the broker in the settings.

    With `[broker] directory` it is the nearest set for a role: by default for consumers, or for producers if there is
    no target.
    """
    own = settings.security
    proof = ClientCredentials(
        ca=own.ca,
        certificate=own.certificate if own.ca else "",
        key=own.key if own.ca else "",
        token_file=own.client_token_file,
        token=own.client_token,
    )
    if seeds := settings.broker.seeds:
        chosen = role or (CONSUMER if settings.targets else PRODUCER)
        address = find_by_directory(seeds, chosen, settings.business.name, settings.cluster.site, proof)
    else:
        address = BrokerAddress(settings.broker.reach, proof)
        is_one = not settings.broker.addresses and not settings.broker.further and not settings.cluster.name
        may_be_local = settings.broker.local_streams and is_one and not own.ca
        address.may_be_local = may_be_local and is_loopback_address(address)
    if settings.broker.read_from == "nearest":
        address.near = settings.cluster.site
    return address


def is_loopback_address(address: str) -> bool:
    """Return whether HOST:PORT is on this machine, judged without a look-up, because names can change."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def find_by_directory(
    seeds: Sequence[str], role: str, business: str, site: str, proof: ClientCredentials
) -> BrokerAddress:
    """Return the address of the nearest set for a role, which connections find by asking the seeds."""
    address = BrokerAddress(",".join(seeds), proof)
    address.lookup = DirectoryLookup(tuple(seeds), role, business, site)
    return address


def lookup_of(address: str) -> DirectoryLookup | None:
    """Return the question to the directory for an address; None if the address names the brokers."""
    return address.lookup if isinstance(address, BrokerAddress) else None


def to_options(address: BrokerAddress) -> dict[str, str]:
    """Return an address as options of a Spark data source, without secrets: plans and event logs show options."""
    proof = address.proof
    named = {"ca": proof.ca, "certificate": proof.certificate, "key": proof.key, "token_file": proof.token_file}
    if address.lookup is not None:
        named |= {"directory": str(address), "site": address.lookup.site}
    return {"address": str(address)} | {name: value for name, value in named.items() if value}


def from_options(options: Mapping[str, str]) -> BrokerAddress:
    """Return the address in options of a data source; without a token file the token comes from the environment."""
    token = os.environ.get(TOKEN_VARIABLE, "") if options.get("ca") else ""
    names = {name: options.get(name, "") for name in ("ca", "certificate", "key", "token_file")}
    proof = ClientCredentials(**names, token=SecretStr(token))
    if seeds := options.get("directory"):
        return find_by_directory(seeds.split(","), CONSUMER, options["business"], options.get("site", ""), proof)
    return BrokerAddress(options["address"], proof)


def proof_of(address: str) -> ClientCredentials:
    """Return the credentials of an address."""
    return address.proof if isinstance(address, BrokerAddress) else NONE
