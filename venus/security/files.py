"""The certificates of a broker while it runs: read again when their files change, and never replaced by bad ones.

A renewal replaces two files, one after the other. Between the two they do not belong together; then what was read
before stays in use, and the next connection looks again. Streams that are open stay open: TLS asks for certificates
only when a connection begins.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from venus.config import Security
from venus.errors import ConfigError
from venus.security import pem
from venus.security.identify import Directory
from venus.security.roles import roles_of
from venus.security.tokens import read_tokens

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Material:
    """What a broker needs for a handshake."""

    pair: pem.Pair
    #: None: no certificate is asked for.
    ca: bytes | None
    directory: Directory


class Files:
    """The files of [security]; thread-safe."""

    def __init__(self, settings: Security, clock: Callable[[], datetime]) -> None:
        """Read and check all of them. Raises ConfigError."""
        self._settings, self._clock = settings, clock
        self._lock = threading.Lock()
        self._seen = self._stamps()
        self._material = self._read()
        self._complaint = ""
        #: How often new files were taken into use.
        self.renewals = 0

    def current(self) -> Material:
        """Return what is in use now, after a look at the files."""
        with self._lock:
            stamps = self._stamps()
            if stamps != self._seen:
                self._renew(stamps)
            return self._material

    def _renew(self, stamps: list[tuple[int, ...]]) -> None:
        try:
            self._material = self._read()
        except (ConfigError, OSError) as error:  # between two files of one renewal: the next connection looks again
            if str(error) != self._complaint:
                logger.warning("renewed files of [security] are not used yet: %s", error)
            self._complaint = str(error)
            return
        self._seen, self._complaint = stamps, ""
        self.renewals += 1
        logger.info("renewed files of [security] are in use, until %s", pem.day(self._end()))

    def problems(self) -> list[str]:
        """Return what needs somebody."""
        material, found = self.current(), []
        if self._complaint:
            found.append(f"renewed files of [security] cannot be used: {self._complaint}")
        left = self._end() - self._clock()
        if left < pem.ENDING:
            when = f"expires on {pem.day(self._end())}" if left.total_seconds() > 0 else "has expired"
            found.append(
                f"the broker's certificate ({pem.subject_texts(material.pair.certificate)[0]}) {when}: renew it"
            )
        return found

    def _end(self) -> datetime:
        return self._material.pair.certificate.not_valid_after_utc

    def _read(self) -> Material:
        own, now = self._settings, self._clock()
        pair = pem.pair(Path(own.certificate), Path(own.key), now)
        ca = pem.authorities(Path(own.ca), now) if own.client_auth == "certificate" or own.ca else None
        tokens = read_tokens(Path(own.token_file)) if own.token_file else {}
        return Material(pair, ca, Directory(tokens, {name: roles_of(texts) for name, texts in own.roles.items()}))

    def _stamps(self) -> list[tuple[int, ...]]:
        own = self._settings
        return [_stamp(name) for name in (own.certificate, own.key, own.ca, own.token_file) if name]


def _stamp(name: str) -> tuple[int, ...]:
    try:
        found = os.stat(name)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ino, found.st_size


def opened(settings: Security, advertised: str, clock: Callable[[], datetime]) -> Files:
    """Return the files of a broker that clients reach as `advertised`. Raises ConfigError."""
    files = Files(settings, clock)
    if host := _host(advertised):
        pem.check_host(files.current().pair.certificate, host)
    return files


def _host(advertised: str) -> str:
    """Return the host that clients ask for; none for an address that stands for all of a machine's."""
    host = advertised.rpartition(":")[0].strip("[]")
    return "" if host in ("", "0.0.0.0", "::") else host
