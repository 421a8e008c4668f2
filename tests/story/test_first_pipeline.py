"""The commands of docs/tutorial/first-pipeline.md in order and unchanged; SQLite to PostgreSQL."""

from __future__ import annotations

import re
import sqlite3
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.databases.postgres import Server
from tests.support.pipelines.end_to_end import run_at
from tests.support.pipelines.pipeline import Pipeline
from venus.cli.demo.shop import build_shop, compare_shop

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial" / "first-pipeline.md").read_text()
CONSOLES = [block.splitlines() for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)]
(CONFIGURATION,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def pipeline(tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    url = postgres_server.create_database()
    made = Pipeline(folder=tmp_path, source="sqlite:///shop.db", targets={"main": url})
    build_shop(tmp_path / "shop.db", customers=100, products=50, orders=300)
    yield made
    made.close()
    postgres_server.drop_database(url)


def test_the_commands_of_the_tutorial_work(pipeline: Pipeline) -> None:
    pipeline.environ = {
        "VENUS_TARGETS__MAIN__URL": pipeline.targets["main"],
        "VENUS_BROKER__LISTEN": f"127.0.0.1:{pipeline.ports[0]}",
        "VENUS_BROKER__HTTP": f"127.0.0.1:{pipeline.ports[1]}",
        "VENUS_BROKER__FREE_BYTES_MIN": "0",
    }
    configure, look, begin, status, verify, leave = CONSOLES
    write_configuration(pipeline, configure)
    for line in (*look, *begin):
        run(pipeline, line)
    shop = pipeline.folder / "shop.db"
    pipeline.until(lambda: not compare_shop(shop, pipeline.targets["main"]).different, "the target to be equal")

    with closing(sqlite3.connect(shop, timeout=30)) as connection, connection:
        connection.execute("UPDATE customers SET name = 'changed' WHERE id = 1")
    arrived = "SELECT name FROM customers WHERE id = 1"
    pipeline.until(lambda: run_at(pipeline.targets["main"], arrived) == [("changed",)], "the change to arrive")
    pipeline.until(lambda: pipeline.venus("status", code=(0, 1)).code == 0, "a healthy status", every_s=0.5)

    for line in (*status, *verify, *leave):
        run(pipeline, line)


def write_configuration(pipeline: Pipeline, lines: list[str]) -> None:
    """Run `venus init` with the test's own target, and continue with the file that the page shows."""
    (line,) = lines
    words = line.removeprefix("$ venus ").split()
    assert words[0] == "init"
    file = pipeline.folder / "venus.toml"
    file.unlink(missing_ok=True)
    pipeline.venus(*words[:2], pipeline.targets["main"])
    written, shown = tomllib.loads(file.read_text()), tomllib.loads(CONFIGURATION)
    assert (written["source"], written["targets"].keys()) == (shown["source"], shown["targets"].keys())
    file.write_text(CONFIGURATION)


def run(pipeline: Pipeline, line: str) -> None:
    """Run a line; `&` means the same as in a shell."""
    words = line.removeprefix("$ venus ").split()
    if words[-1] != "&":
        pipeline.venus(*words)
        return
    pipeline.start(words[0], *words[:-1])
    assert words[0] == "run"
    pipeline.until_said("main: following", "the load")
