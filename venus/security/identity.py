"""Identity of a peer: its certificate's subject, its token, or both.

Tokens are for peers without a certificate. The broker's token file has only their hashes, so reading it gives no
access. The file has one line for each token, `NAME sha256:HASH ROLE; ROLE`; `#` begins a comment. `venus certs token`
creates such a line for the file.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from base64 import b64decode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from venus.errors import ConfigError
from venus.security.pem import subject_texts
from venus.security.roles import ANONYMOUS, PeerIdentity, Role, looks_like_role, parse, roles_of
from venus.security.secrets import read_secret

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

TOKEN_BYTES = 32
#: Limit of a received token; a longer one is not hashed.
TOKEN_CHARS_MAX = 512
_LINE = re.compile(r"(\S+)\s+sha256:([0-9a-f]{64})\s+(\S.*)")


def make_token(name: str, roles: str) -> tuple[str, str]:
    """Return a new token, and its line for a broker's token file. Raises ConfigError."""
    roles_of(roles.split(";"))
    if not re.fullmatch(r"[^\s#]+", name):
        raise ConfigError(f"name {name!r} has spaces or #", hint="name a token with one word")
    token = secrets.token_urlsafe(TOKEN_BYTES)
    return token, f"{name} sha256:{hash_token(token)} {roles}"


def hash_token(token: str) -> str:
    """Return the hash of a token, as in the token file."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_tokens(path: Path) -> Mapping[str, PeerIdentity]:
    """Return the identities of a token file by hash. Raises ConfigError, which names the line."""
    found: dict[str, PeerIdentity] = {}
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
        found[matched[2]] = PeerIdentity(matched[1], roles)
    return found


#: A certificate is read once for each of its holder's connections, not for each call.
CERTIFICATES_KEPT = 1024


class IdentityDirectory:
    """Roles that are not in certificates: those of tokens, and those of common names.

    The configured roles of a common name replace those of its certificate, so an empty list removes all of them.
    """

    def __init__(self, tokens: Mapping[str, PeerIdentity], by_name: Mapping[str, frozenset[Role]]) -> None:
        self._tokens, self._by_name = tokens, by_name

    def identity(self, certificate: bytes | None, token: str) -> PeerIdentity:
        """Return the identity of a certificate (PEM) and a token; without either, or with an unknown token, none."""
        found = self._identity_of_certificate(certificate) if certificate else ANONYMOUS
        if token:
            other = self._identity_of_token(token)
            if not other:
                return ANONYMOUS  # a wrong token is refused even with a valid certificate
            found = PeerIdentity(found.name or other.name, found.roles | other.roles)
        return found

    def _identity_of_certificate(self, pem: bytes) -> PeerIdentity:
        name, roles = read_subject(pem)
        return PeerIdentity(name, self._by_name.get(name, roles))

    def _identity_of_token(self, token: str) -> PeerIdentity:
        """Return the identity of a token, ANONYMOUS for an unknown one."""
        if len(token) > TOKEN_CHARS_MAX:
            return ANONYMOUS
        return self._tokens.get(hash_token(token), ANONYMOUS)


@lru_cache(CERTIFICATES_KEPT)
def read_subject(pem: bytes) -> tuple[str, frozenset[Role]]:
    """Return name and roles in a certificate that TLS has verified; an OU that is no role is ignored."""
    from cryptography import x509

    found = x509.load_pem_x509_certificate(pem)
    return subject_texts(found)[0], roles_in(found)


def roles_in(certificate: Certificate) -> frozenset[Role]:
    """Return the roles in a certificate's subject."""
    return frozenset(parse(unit) for unit in subject_texts(certificate)[1] if _is_role(unit))


def _is_role(unit: str) -> bool:
    """Return whether a certificate's organisational unit is a valid role."""
    if not looks_like_role(unit):
        return False
    try:
        parse(unit)
    except ConfigError:
        return False
    return True


def bearer(header: str) -> str:
    """Return the token of an Authorization header, "" without one; a browser sends it as the password."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic" and len(value) <= 2 * TOKEN_CHARS_MAX:
        try:
            return b64decode(value, validate=True).decode().partition(":")[2]
        except ValueError:
            return ""
    return ""


def token_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Return the token of a call's metadata, "" without one."""
    for key, value in metadata or ():
        if key == "authorization" and isinstance(value, str):
            return bearer(value)
    return ""
