"""Where a broker is, and how to prove who we are there.

An address is passed on in tasks, options and messages everywhere; it is still the text HOST:PORT, and what belongs to
it travels along, also when it is pickled for a worker. Certificates travel as names of files: a worker on another
machine reads its own. A token travels with the task, as the targets' passwords do, and is in no text of the address.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import SecretStr

if TYPE_CHECKING:
    from venus.config import Settings

NO_SECRET = SecretStr("")
TOKEN_VARIABLE = "VENUS_SECURITY__CLIENT_TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a client shows and believes. `ca` empty: no TLS."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    token_file: str = ""
    token: SecretStr = NO_SECRET


NONE = Proof()


class Address(str):
    """HOST:PORT of a broker, with the proof for it. An ordinary text is an address without TLS."""

    proof: Proof = NONE

    def __new__(cls, text: str, proof: Proof = NONE) -> Address:
        """Join the two."""
        self = super().__new__(cls, text)
        self.proof = proof
        return self


def broker_of(settings: Settings) -> Address:
    """Return where the broker of the settings is."""
    own = settings.security
    proof = Proof(
        ca=own.ca, certificate=own.certificate if own.ca else "", key=own.key if own.ca else "",
        token_file=own.client_token_file, token=own.client_token,
    )  # fmt: skip
    return Address(settings.broker.reach, proof)


def in_options(address: Address) -> dict[str, str]:
    """Return an address as options of a data source of Spark, whose plans and event logs show them: no secret."""
    proof = address.proof
    named = {"ca": proof.ca, "certificate": proof.certificate, "key": proof.key, "token_file": proof.token_file}
    return {"address": str(address)} | {name: value for name, value in named.items() if value}


def from_options(options: Mapping[str, str]) -> Address:
    """Return the address in options of a data source; a token that is in no file is in the environment."""
    token = os.environ.get(TOKEN_VARIABLE, "") if options.get("ca") else ""
    names = {name: options.get(name, "") for name in ("ca", "certificate", "key", "token_file")}
    return Address(options["address"], Proof(**names, token=SecretStr(token)))


def proof_of(address: str) -> Proof:
    """Return what belongs to an address."""
    return address.proof if isinstance(address, Address) else NONE
