"""Tokens: for whoever cannot have a certificate. The broker's file has their hashes, so it gives nobody access.

One line each, `#` begins a comment: `NAME sha256:HASH ROLE; ROLE`. `venus certs token` makes such a line.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from venus.errors import ConfigError
from venus.security.reading import read_secret
from venus.security.roles import Identity, roles_of

TOKEN_BYTES = 32
#: Of a token that somebody shows; more is not even hashed.
TOKEN_CHARS_MAX = 512
_LINE = re.compile(r"(\S+)\s+sha256:([0-9a-f]{64})\s+(\S.*)")


def made(name: str, roles: str) -> tuple[str, str]:
    """Return a new token, and the line that makes a broker take it. Raises ConfigError."""
    roles_of(roles.split(";"))
    if not re.fullmatch(r"[^\s#]+", name):
        raise ConfigError(f"name {name!r} has spaces or #", hint="name a token with one word")
    token = secrets.token_urlsafe(TOKEN_BYTES)
    return token, f"{name} sha256:{hashed(token)} {roles}"


def hashed(token: str) -> str:
    """Return what the file keeps of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_tokens(path: Path) -> Mapping[str, Identity]:
    """Return who comes with which token, by its hash. Raises ConfigError, which names the line."""
    found: dict[str, Identity] = {}
    text = read_secret(path, "security.token_file").decode(errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        matched = _LINE.fullmatch(content)
        if matched is None:
            hint = "each line is NAME sha256:HASH ROLE; ROLE (venus certs token makes one)"
            raise ConfigError(f"{path}:{number}: not a line of a token file", hint=hint)
        try:
            roles = roles_of(matched[3].split(";"))
        except ConfigError as error:
            raise ConfigError(f"{path}:{number}: {error}", hint=error.hint) from None
        found[matched[2]] = Identity(matched[1], roles)
    return found
