"""etcd with TLS, client certificates, users and passwords: who is let in, and what the others are told."""

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
from pydantic import SecretStr

from tests.support.broker_clusters import BrokerCluster, Writer
from tests.support.certificates import HOSTS, Authority
from tests.support.etcd import EtcdCluster, require_binary, running_etcd
from venus.coordination.etcd import EtcdCoordinator
from venus.coordination.login import NO_LOGIN, Login
from venus.errors import ConfigError, Refused, Unavailable
from venus.security.authority import issue

pytestmark = pytest.mark.fault
PASSWORD = "s3cret-of-etcd"


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Login:
    """Issue what etcd and a broker need, as `venus certs` does."""
    authority = Authority(tmp_path_factory.mktemp("etcd") / "certs")
    authority.issue("etcd", hosts=HOSTS)
    authority.issue("member", "broker")
    folder = authority.folder
    return Login(ca=authority.ca, certificate=str(folder / "member.crt"), key=str(folder / "member.key"))


@pytest.fixture(scope="module")
def etcd(login: Login) -> Iterator[EtcdCluster]:
    """Start an etcd that asks for certificates."""
    with running_etcd(authority=Path(login.ca).parent, login=login) as cluster:
        yield cluster


def identity(etcd: EtcdCluster, login: Login) -> str | None:
    with closing(EtcdCoordinator(etcd.addresses, etcd.new_name(), timeout_s=3.0, login=login)) as coordinator:
        return coordinator.identity(create=True)


def test_a_certificate_lets_in_and_nothing_else_does(etcd: EtcdCluster, login: Login) -> None:
    assert identity(etcd, login)
    with pytest.raises(Unavailable) as caught:
        identity(etcd, NO_LOGIN)
    assert "if it speaks TLS, set etcd_ca" in caught.value.hint
    with pytest.raises(Unavailable) as caught:
        identity(etcd, Login(ca=login.ca))
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


def test_half_a_renewal_costs_no_connection(etcd: EtcdCluster, login: Login, tmp_path: Path) -> None:
    """A lease would end between the two files, and with it what the broker leads."""
    authority = Path(login.ca).parent
    issue(authority, "renewed", datetime.now(UTC), roles=("broker",))
    certificate, key = tmp_path / "own.crt", tmp_path / "own.key"
    shutil.copy(login.certificate, certificate)
    shutil.copy(login.key, key)
    own = replace(login, certificate=str(certificate), key=str(key))
    with closing(EtcdCoordinator(etcd.addresses, etcd.new_name(), timeout_s=3.0, login=own)) as coordinator:
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
        identity(etcd, replace(own, key=str(tmp_path / "none.key")))  # one that never had any is told


def test_a_user_proves_himself_and_again_when_his_token_ends(login: Login) -> None:
    with running_etcd(authority=Path(login.ca).parent, login=login) as etcd:
        administer(etcd, login, "user", "add", f"root:{PASSWORD}")
        administer(etcd, login, "user", "grant-role", "root", "root")
        administer(etcd, login, "user", "add", f"venus:{PASSWORD}")
        administer(etcd, login, "role", "add", "brokers")
        administer(etcd, login, "role", "grant-permission", "brokers", "--prefix=true", "readwrite", "/venus/")
        administer(etcd, login, "user", "grant-role", "venus", "brokers")
        administer(etcd, login, "auth", "enable")

        user = replace(login, user="venus", password=SecretStr(PASSWORD))
        with pytest.raises(Refused, match="does not accept user venus") as caught:
            identity(etcd, replace(user, password=SecretStr("wrong")))
        assert "etcd_password" in caught.value.hint
        assert "wrong" not in str(caught.value)
        name = etcd.new_name()
        with closing(EtcdCoordinator(etcd.addresses, name, timeout_s=10.0, login=user)) as coordinator:
            known = coordinator.identity(create=True)
            assert known
            etcd.nodes[0].kill()
            etcd.nodes[0].start()  # its tokens are gone
            assert coordinator.identity(create=False) == known


def administer(etcd: EtcdCluster, login: Login, *arguments: str) -> None:
    files = [f"--cacert={login.ca}", f"--cert={login.certificate}", f"--key={login.key}"]
    command = [require_binary("etcdctl"), f"--endpoints=https://{etcd.addresses[0]}", *files, *arguments]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"ETCDCTL_API": "3"}, timeout=30)
