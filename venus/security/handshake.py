"""TLS at a broker's two ports. Each new connection gets the certificates that are in the files at that moment."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from venus.security.files import Files, Material


def grpc_credentials(files: Files, begun: Callable[[], None]) -> grpc.ServerCredentials:
    """Return what the gRPC port is opened with; `begun` is called for each connection, from a thread of gRPC's."""

    def fetch() -> grpc.ServerCertificateConfiguration:
        begun()
        return _configuration(files.current())

    first = files.current()
    return grpc.dynamic_ssl_server_credentials(
        _configuration(first), fetch, require_client_authentication=first.ca is not None
    )


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.pair.key, material.pair.chain)], material.ca)


class HttpContext(ssl.SSLContext):
    """The context of the HTTP port: passes each connection to a context made of the newest files.

    A context cannot forget an authority that it has loaded, so a renewal needs a new one. Browsers mostly have no
    certificate: it is taken if there is one, and a token will do.
    """

    _files: Files
    _made_of: Material | None
    _now: ssl.SSLContext

    @classmethod
    def of(cls, files: Files) -> HttpContext:
        """Return a context for these files."""
        self = cls(ssl.PROTOCOL_TLS_SERVER)
        self._files, self._made_of = files, None
        self._renew()
        return self

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:  # asyncio's own call for each connection
        """Begin a connection."""
        return self._renew().wrap_bio(*arguments, **options)

    def _renew(self) -> ssl.SSLContext:
        material = self._files.current()
        if material is not self._made_of:
            self._now, self._made_of = _context(material), material
        return self._now


def _context(material: Material) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if material.ca is not None:
        context.load_verify_locations(cadata=material.ca.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
    with tempfile.TemporaryDirectory(prefix="venus-") as folder:  # 0700: Python reads chains from files only
        chain, key = Path(folder, "chain"), Path(folder, "key")
        chain.write_bytes(material.pair.chain)
        key.touch(mode=0o600)
        key.write_bytes(material.pair.key)
        context.load_cert_chain(chain, key)
    return context
