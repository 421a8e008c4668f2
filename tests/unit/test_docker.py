"""The compose files and the Dockerfile name only existing commands, options, ports, services and files.

No Docker is needed. story/test_image.py executes the steps of the Dockerfile.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.dockerfile import CARRIED_OUT, instructions
from tests.unit.test_cli import commands
from venus.cli.run import require_one_process
from venus.config import Settings
from venus.config import load as load_config

ROOT = Path(__file__).parents[2]
FILES = {"plain": ["compose.yaml"], "oracle": ["compose.yaml", "compose.oracle.yaml"]}
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()


def compose(names: list[str]) -> dict[str, Any]:
    """Return the services; later files override earlier ones, as with `docker compose -f A -f B`."""
    services: dict[str, Any] = {}
    for name in names:
        for service, found in yaml.safe_load((ROOT / "docker" / name).read_text())["services"].items():
            services[service] = _override(services.get(service, {}), found)
    return services


def _override(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return {**below, **{key: _override(below.get(key), value) for key, value in above.items()}}


@pytest.mark.parametrize("names", FILES.values(), ids=FILES)
def test_every_service_that_is_waited_for_exists_and_has_a_health_check(names: list[str]) -> None:
    services = compose(names)
    waited_for = {other for service in services.values() for other in service.get("depends_on", {})}

    assert waited_for >= {"postgres"}
    assert all(services[name]["healthcheck"]["test"] for name in {*waited_for, "venus"})


@pytest.mark.parametrize("names", FILES.values(), ids=FILES)
def test_the_environment_is_a_valid_configuration(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    service = compose(names)["venus"]
    for option, value in service["environment"].items():
        monkeypatch.setenv(option, value)
    settings: Settings = load_config(None)
    dialect = settings.source.url.get_secret_value().partition("+")[0].partition(":")[0]
    assert dialect == ("oracle" if len(names) == 2 else "postgresql")
    assert set(settings.targets) == {"main"}
    assert settings.broker.address == "venus:7400"
    assert service["command"] == ["run", "--install"]
    require_one_process(settings)


def test_the_commands_in_the_comments_exist() -> None:
    text = "".join((ROOT / "docker" / name).read_text() for name in FILES["oracle"])
    named = re.findall(r"run --rm venus ([a-z-]+)", text)

    assert len(named) >= 3
    assert set(named) <= set(commands())


def test_the_image_has_the_commands_and_ports_of_the_playground() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    ports = {port.rpartition(":")[2] for port in compose(FILES["plain"])["venus"]["ports"]}
    extras = compose(FILES["oracle"])["venus"]["build"]["args"]["EXTRAS"]

    assert 'ENTRYPOINT ["venus"]' in DOCKERFILE
    assert 'CMD ["run"]' in DOCKERFILE
    assert "venus = " in setup["options.entry_points"]["console_scripts"]
    assert set(re.search(r"EXPOSE (.*)", DOCKERFILE)[1].split()) == ports  # type: ignore[index]
    assert extras.strip("[]") in setup["options.extras_require"]
    assert f'"{setup["metadata"]["name"]}${{EXTRAS}}"' in DOCKERFILE


@pytest.mark.full
def test_the_oracle_suite_fails_without_an_oracle(tmp_path: Path) -> None:
    """Run as by `make test-oracle`, without Docker."""
    (recipe,) = re.findall(r"pytest (-m oracle \S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *recipe.split()],
        cwd=ROOT,
        env=os.environ | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.strip().splitlines() == [
        "ERROR: no Oracle: set VENUS_ORACLE_URL to the URL of an empty schema, or start Docker, which runs Oracle Free"
    ]


def test_every_instruction_of_the_dockerfile_is_supported_by_the_image_test() -> None:
    """Otherwise the slow test of the image would skip some."""
    words = [word for word, _ in instructions(DOCKERFILE)]

    assert set(words) <= CARRIED_OUT
    assert words.count("FROM") == 2
    assert words.count("RUN") == 3
