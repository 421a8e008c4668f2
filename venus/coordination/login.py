"""Login at etcd: a certificate, a user with a password, or nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
from pydantic import SecretStr

from venus.config import ClusterSettings
from venus.security import pem
from venus.security.secrets import read_secret

NO_SECRET = SecretStr("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Credentials for etcd. `ca` empty: no TLS. `user` empty: the user that the certificate names, or none."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    user: str = ""
    password: SecretStr = NO_SECRET
    password_file: str = ""

    def read_credentials(self) -> grpc.ChannelCredentials | None:
        """Read the files and return the channel credentials; None without TLS. Raises ConfigError."""
        if not self.ca:
            return None
        now = datetime.now(UTC)
        authorities = pem.authorities(Path(self.ca), now, "cluster.etcd_")
        if not self.certificate:
            return grpc.ssl_channel_credentials(authorities)
        own = pem.pair(Path(self.certificate), Path(self.key), now, "cluster.etcd_")
        return grpc.ssl_channel_credentials(authorities, own.key, own.chain)

    def modification_times(self) -> tuple[int, ...]:
        """Return the modification times of the files: newer ones require a new channel."""
        named = filter(None, (self.ca, self.certificate, self.key))
        return tuple(os.stat(name).st_mtime_ns if os.path.exists(name) else 0 for name in named)

    def read_password(self) -> str:
        """Read the user's password. Raises ConfigError."""
        if self.password_file:
            content = read_secret(Path(self.password_file), "cluster.etcd_password_file")
            return content.decode(errors="replace").splitlines()[0].strip() if content else ""
        return self.password.get_secret_value()


NO_LOGIN = Login()


def build_login(cluster: ClusterSettings) -> Login:
    """Return the login of the settings."""
    return Login(
        ca=cluster.etcd_ca,
        certificate=cluster.etcd_certificate,
        key=cluster.etcd_key,
        user=cluster.etcd_user,
        password=cluster.etcd_password,
        password_file=cluster.etcd_password_file,
    )
