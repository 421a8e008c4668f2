"""TLS to the databases with certificates of the test's own authority: by each driver's URL options."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg2
import pytest
from pydantic import SecretStr

from tests.support.brokers.certificates import Authority
from tests.support.databases.mariadb import DEFAULT_MODE, MariaServer, running_mariadb
from tests.support.databases.tls_postgres import running_tls_postgres
from venus.adapters.dialects.registry import open_source
from venus.adapters.targets.mysql.session import MysqlSession
from venus.adapters.targets.postgresql.session import TargetSession
from venus.config import Settings, SourceSettings
from venus.errors import ConfigError, VenusError

pytestmark = pytest.mark.integration

Use = Callable[[str], bool]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certs") / "certs", hosts=("127.0.0.1",))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger") / "certs", hosts=("127.0.0.1",))


@pytest.fixture(scope="module")
def postgres(authority: Authority) -> Iterator[int]:
    with running_tls_postgres(authority.folder / "broker.crt", authority.folder / "broker.key") as port:
        yield port


@pytest.fixture(scope="module")
def mariadb(authority: Authority) -> Iterator[MariaServer]:
    certificate = (f"--ssl-cert={authority.folder}/broker.crt", f"--ssl-key={authority.folder}/broker.key")
    with running_mariadb(DEFAULT_MODE, *certificate) as server:
        server.execute("CREATE DATABASE shop")
        server.execute("CREATE TABLE shop.items (id int PRIMARY KEY)")
        server.execute("CREATE USER tls@'127.0.0.1' REQUIRE SSL")
        server.execute("GRANT ALL ON *.* TO tls@'127.0.0.1'")
        yield server


def source(url: str) -> bool:
    opened = open_source(Settings(source=SourceSettings(url=SecretStr(url))))
    try:
        return bool(opened.dictionary.read_table_names() is not None)
    finally:
        opened.close()


def target(url: str) -> bool:
    session = TargetSession(url, application="test")
    try:
        row = session.row("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        return bool(row and row[0])
    finally:
        session.close()


@pytest.mark.parametrize("use", [source, target])
def test_postgresql_is_verified_by_authority_and_host(
    postgres: int, authority: Authority, stranger: Authority, use: Use
) -> None:
    def url(host: str, mode: str, ca: str) -> str:
        return f"postgresql://postgres@{host}:{postgres}/postgres?sslmode={mode}&sslrootcert={ca}"

    assert use(url("127.0.0.1", "verify-full", authority.ca))
    for wrong, says in (
        (url("127.0.0.1", "verify-full", stranger.ca), "certificate verify failed"),
        (url("localhost", "verify-full", authority.ca), "does not match host name"),
        (url("127.0.0.1", "disable", authority.ca), "no encryption"),
    ):
        with pytest.raises(VenusError) as caught:
            use(wrong)
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_connection_to_postgresql_is_encrypted(postgres: int, authority: Authority) -> None:
    assert target(f"postgresql://postgres@127.0.0.1:{postgres}/postgres?sslmode=require")
    with pytest.raises(psycopg2.OperationalError, match="no encryption"):
        psycopg2.connect(f"postgresql://postgres@127.0.0.1:{postgres}/postgres?sslmode=disable")


def test_mariadb_is_verified_by_authority_and_host(
    mariadb: MariaServer, authority: Authority, stranger: Authority
) -> None:
    def url(host: str, ca: str) -> str:
        return f"mysql+pymysql://tls@{host}:{mariadb.port}/shop?ssl_ca={ca}"

    assert source(url("127.0.0.1", authority.ca))
    for wrong, says in (
        (url("127.0.0.1", stranger.ca), "certificate verify failed"),
        (url("localhost", authority.ca), "certificate is not valid for 'localhost'"),
    ):
        with pytest.raises(VenusError) as caught:
            source(wrong)
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)


def test_mariadb_without_an_authority_is_encrypted_and_reads_no_system_certificates(
    mariadb: MariaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver would read them for each connection, which takes 30 ms of CPU, without using them."""
    read: list[object] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: read.append(True))

    assert source(f"mysql+pymysql://tls@127.0.0.1:{mariadb.port}/shop")  # the server requires encryption for this user
    MysqlSession(f"mysql+pymysql://tls@127.0.0.1:{mariadb.port}/shop", application="test").close()

    assert not read


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_wrong_file_for_mariadb_is_reported_in_one_line(
    mariadb: MariaServer, tmp_path: Path, content: str | None
) -> None:
    ca = tmp_path / "ca.crt"
    if content is not None:
        ca.write_text(content)

    with pytest.raises(ConfigError, match="a certificate or key of the URL cannot be read") as caught:
        source(f"mysql+pymysql://tls@127.0.0.1:{mariadb.port}/shop?ssl_ca={ca}")
    assert "ssl_ca" in caught.value.hint


def test_a_target_detects_that_the_peers_machine_is_gone(postgres: int) -> None:
    """Otherwise the lock of a load's worker whose machine is gone would last for hours, and block its successor."""
    session = TargetSession(f"postgresql://postgres@127.0.0.1:{postgres}/postgres?sslmode=require", application="test")
    found = session.rows("SELECT name, setting FROM pg_settings WHERE name LIKE 'tcp\\_keepalives%'")
    session.close()

    seconds = {name.removeprefix("tcp_keepalives_"): int(value) for name, value in found}
    assert seconds["idle"] + seconds["count"] * seconds["interval"] <= 60
    assert all(seconds.values()), "0 = as the system has it"
