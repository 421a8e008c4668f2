"""A real Oracle in a container, for `make test-oracle`, which fails with one line if there is no Docker.

Whoever runs these files among others gets them skipped instead.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from venus.adapters.dialects.oracle.session.driver import parse_driver_url
from venus.adapters.dialects.oracle.source import OracleSource

IMAGE = "gvenzl/oracle-free:slim-faststart"
PASSWORD = "venus_Test1"
ABSENT = "no Docker engine answers on this machine: the Oracle suite starts Oracle Free in a container"
_numbers = count(1)


def _docker_runs() -> bool:
    docker = shutil.which("docker")
    return docker is not None and not subprocess.run([docker, "info"], capture_output=True, check=False).returncode


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is here before pytest selects by marks. Raises UsageError if it was asked for and cannot be run."""
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    wanted = config.option.markexpr
    absent = "not oracle" not in wanted and here and not _docker_runs()
    if absent and "oracle" in wanted:  # green without an Oracle would be a lie
        raise pytest.UsageError(ABSENT)
    for item in here:
        item.add_marker(pytest.mark.oracle)
        if absent:
            item.add_marker(pytest.mark.skip(reason=ABSENT))


@pytest.fixture(scope="session")
def oracle_server() -> Iterator[str]:
    """Start Oracle Free; give the place of its database as it stands in a URL."""
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.waiting_utils import wait_for_logs

    container = DockerContainer(IMAGE).with_env("ORACLE_PASSWORD", PASSWORD).with_exposed_ports(1521)
    with container:
        wait_for_logs(container, "DATABASE IS READY TO USE", timeout=600)
        yield f"{container.get_container_host_ip()}:{container.get_exposed_port(1521)}"


@pytest.fixture
def schema(oracle_server: str) -> str:
    """Make an empty schema; return the URL of its owner."""
    import oracledb

    host, port = oracle_server.split(":")
    name = f"APP{next(_numbers)}"
    with oracledb.connect(
        user="system", password=PASSWORD, host=host, port=int(port), service_name="FREEPDB1"
    ) as system:
        cursor = system.cursor()
        cursor.execute(f"CREATE USER {name} IDENTIFIED BY {PASSWORD} QUOTA UNLIMITED ON USERS")
        cursor.execute(f"GRANT CREATE SESSION, CREATE TABLE, CREATE SEQUENCE, CREATE TRIGGER, CREATE VIEW TO {name}")
    return f"oracle+oracledb://{name}:{PASSWORD}@{oracle_server}/?service_name=FREEPDB1"


@pytest.fixture
def application(schema: str) -> Iterator[Any]:
    """Open a session of the application."""
    connection = parse_driver_url(schema)[0].connect()
    yield connection
    connection.close()


@pytest.fixture
def source(schema: str) -> Iterator[OracleSource]:
    """Open the source."""
    source = OracleSource(*parse_driver_url(schema))
    yield source
    source.close()
