"""etcd with TLS, client certificates, users and passwords: which logins succeed, and how others are refused."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pydantic import SecretStr

from tests.support.brokers.broker_clusters import BrokerCluster, Writer
from tests.support.brokers.certificates import HOSTS, Authority
from tests.support.brokers.etcd import EtcdCluster, require_binary, running_etcd
from venus.coordination.etcd import EtcdCoordinator
from venus.coordination.login import NO_LOGIN, Login
from venus.errors import ConfigError, Refused, Unavailable
from venus.security.authority import issue_certificate

pytestmark = pytest.mark.fault
PASSWORD = "s3cret-of-etcd"


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Login:
    """Issue the certificates of etcd and a broker, as `venus certs` does."""
    authority = Authority(tmp_path_factory.mktemp("etcd") / "certs")
    authority.issue("etcd", hosts=HOSTS)
    authority.issue("member", "broker")
    folder = authority.folder
    return Login(ca=authority.ca, certificate=str(folder / "member.crt"), key=str(folder / "member.key"))


@pytest.fixture(scope="module")
def etcd(login: Login) -> Iterator[EtcdCluster]:
    """Start an etcd that requires client certificates."""
    with running_etcd(authority=Path(login.ca).parent, login=login) as cluster:
        yield cluster


def identity(etcd: EtcdCluster, login: Login, *, timeout_s: float = 60.0) -> str | None:
    with closing(EtcdCoordinator(etcd.addresses, etcd.new_name(), timeout_s=timeout_s, login=login)) as coordinator:
        return coordinator.identity(create=True)


def test_only_a_certificate_of_the_authority_is_let_in(etcd: EtcdCluster, login: Login) -> None:
    assert identity(etcd, login)
    with pytest.raises(Unavailable) as caught:
        identity(etcd, NO_LOGIN, timeout_s=3.0)
    assert "if it speaks TLS, set etcd_ca" in caught.value.hint
    with pytest.raises(Unavailable) as caught:
        identity(etcd, Login(ca=login.ca), timeout_s=3.0)
    assert "its certificate must name them" in caught.value.hint


def test_brokers_agree_over_tls(etcd: EtcdCluster, login: Login, tmp_path: Path) -> None:
    with BrokerCluster(
        tmp_path, etcd, etcd_ca=login.ca, etcd_certificate=login.certificate, etcd_key=login.key
    ) as cluster:
        writer = Writer(cluster)
        writer.write(2)
        cluster.brokers[writer.leader].kill()
        writer.write(2)
        assert writer.acknowledged == 4


def test_a_half_finished_renewal_ends_no_connection(etcd: EtcdCluster, login: Login, tmp_path: Path) -> None:
    """If the time between the two files cost the connection, the broker's lease and its leaderships would end."""
    authority = Path(login.ca).parent
    issue_certificate(authority, "renewed", datetime.now(UTC), roles=("broker",))
    certificate, key = tmp_path / "own.crt", tmp_path / "own.key"
    shutil.copy(login.certificate, certificate)
    shutil.copy(login.key, key)
    own = replace(login, certificate=str(certificate), key=str(key))
    with closing(EtcdCoordinator(etcd.addresses, etcd.new_name(), timeout_s=60.0, login=own)) as coordinator:
        known = coordinator.identity(create=True)
        shutil.copy(authority / "renewed.crt", certificate)
        assert coordinator.identity(create=False) == known
        certificate.unlink()
        assert coordinator.identity(create=False) == known

        shutil.copy(authority / "renewed.crt", certificate)
        shutil.copy(authority / "renewed.key", key)
        key.chmod(0o600)
        assert coordinator.identity(create=False) == known
    with pytest.raises(ConfigError, match="no such file"):
        identity(etcd, replace(own, key=str(tmp_path / "none.key")))  # without any key file the connection is refused


def test_a_user_logs_in_again_when_the_token_expires(login: Login) -> None:
    with running_etcd(authority=Path(login.ca).parent, login=login) as etcd:
        require_login(etcd, login)

        user = replace(login, user="venus", password=SecretStr(PASSWORD))
        with pytest.raises(Refused, match="does not accept user venus") as caught:
            identity(etcd, replace(user, password=SecretStr("wrong")))
        assert "etcd_password" in caught.value.hint
        assert "wrong" not in str(caught.value)
        name = etcd.new_name()
        with closing(EtcdCoordinator(etcd.addresses, name, timeout_s=60.0, login=user)) as coordinator:
            known = coordinator.identity(create=True)
            assert known
            etcd.nodes[0].kill()
            etcd.nodes[0].start()  # the restarted etcd no longer knows its tokens
            assert coordinator.identity(create=False) == known


def signing_keys(folder: Path) -> list[str]:
    """Return the options by which etcd signs its tokens: a signed token names the revision of users and roles."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "token.key").write_bytes(private)
    (folder / "token.pub").write_bytes(public)
    named = f"pub-key={folder}/token.pub,priv-key={folder}/token.key"
    return [f"--auth-token=jwt,{named},sign-method=RS256,ttl=10m"]


def test_a_signed_token_is_replaced_when_users_were_changed(login: Login, tmp_path: Path) -> None:
    """The client presented the old token until the broker was restarted, and the broker's lease ended."""
    signed = signing_keys(tmp_path)
    with running_etcd(authority=Path(login.ca).parent, login=login, options=signed) as etcd:
        require_login(etcd, login)
        user = replace(login, user="venus", password=SecretStr(PASSWORD))
        with closing(EtcdCoordinator(etcd.addresses, etcd.new_name(), timeout_s=60.0, login=user)) as coordinator:
            known = coordinator.identity(create=True)
            administer(etcd, login, "user", "add", f"stranger:{PASSWORD}", user=f"root:{PASSWORD}")
            assert coordinator.identity(create=False) == known


def require_login(etcd: EtcdCluster, login: Login) -> None:
    """Create the user venus with access to the keys of VENUS, and require every client to log in."""
    administer(etcd, login, "user", "add", f"root:{PASSWORD}")
    administer(etcd, login, "user", "grant-role", "root", "root")
    administer(etcd, login, "user", "add", f"venus:{PASSWORD}")
    administer(etcd, login, "role", "add", "brokers")
    administer(etcd, login, "role", "grant-permission", "brokers", "--prefix=true", "readwrite", "/venus/")
    administer(etcd, login, "user", "grant-role", "venus", "brokers")
    administer(etcd, login, "auth", "enable")


def administer(etcd: EtcdCluster, login: Login, *arguments: str, user: str = "") -> None:
    files = [f"--cacert={login.ca}", f"--cert={login.certificate}", f"--key={login.key}"]
    command = [require_binary("etcdctl"), f"--endpoints=https://{etcd.addresses[0]}", *files, *arguments]
    command += [f"--user={user}"] if user else []
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"ETCDCTL_API": "3"}, timeout=60)
