"""A real Oracle for the cases of `venus prove`: the schema of VENUS_ORACLE_URL, or Oracle Free in a container.

Without either, `make test-oracle` fails with one line. In other test runs these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from venus.adapters.dialects.oracle.proving import OracleScratch

IMAGE = "gvenzl/oracle-free:slim-faststart"
PASSWORD = "venus_Test1"
#: Fixture with the URL of an empty schema, all of whose objects are dropped after each test.
VARIABLE = "VENUS_ORACLE_URL"
ABSENT = f"no Oracle: set {VARIABLE} to the URL of an empty schema, or start Docker, which runs Oracle Free"


def _is_available() -> bool:
    if os.environ.get(VARIABLE):
        return True
    docker = shutil.which("docker")
    return docker is not None and not subprocess.run([docker, "info"], capture_output=True, check=False).returncode


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of this folder. Raises UsageError if they were requested and cannot run."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    wanted = config.option.markexpr
    absent = "not oracle" not in wanted and here and not _is_available()
    if absent and "oracle" in wanted:  # a green run without an Oracle would be wrong
        raise pytest.UsageError(ABSENT)
    for item in here:
        item.add_marker(pytest.mark.oracle)
        if absent:
            item.add_marker(pytest.mark.skip(reason=ABSENT))


@pytest.fixture(scope="session")
def oracle_url() -> Iterator[str]:
    """Return the URL of an empty schema."""
    if given := os.environ.get(VARIABLE):
        yield given
        return
    import oracledb
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.waiting_utils import wait_for_logs

    container = DockerContainer(IMAGE).with_env("ORACLE_PASSWORD", PASSWORD).with_exposed_ports(1521)
    with container:
        wait_for_logs(container, "DATABASE IS READY TO USE", timeout=600)
        host, port = container.get_container_host_ip(), int(container.get_exposed_port(1521))
        scratch = OracleScratch(f"oracle+oracledb://VENUS_PROVE:choose_one@{host}:{port}/?service_name=FREEPDB1")
        system = oracledb.connect(user="system", password=PASSWORD, host=host, port=port, service_name="FREEPDB1")
        with system, system.cursor() as cursor:
            for statement in scratch.script().partition("\n--")[0].rstrip(";").split(";\n"):
                cursor.execute(statement)
        yield scratch.url


@pytest.fixture
def place(oracle_url: str) -> Iterator[OracleScratch]:
    """Empty the schema, which must contain only objects of these tests."""
    scratch = OracleScratch(oracle_url)
    found = scratch.list_objects()
    assert not found, f"{scratch.name} is not empty: {found[:10]}"
    yield scratch
    scratch.clear()
