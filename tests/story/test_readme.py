"""The commands of the README in order and unchanged; only addresses come from the environment."""

from __future__ import annotations

import html
import re
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.databases.postgres import Server
from tests.support.pipelines.end_to_end import run_at
from tests.support.pipelines.pipeline import Pipeline
from venus.cli.demo.shop import build_shop, compare_shop

pytestmark = [pytest.mark.integration, pytest.mark.quick, pytest.mark.timeout(600)]

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(kind: str, heading: str) -> list[str]:
    """Return the code blocks of a section."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)


def first_screen(kind: str) -> list[str]:
    """Return the code blocks before the first heading."""
    return re.findall(rf"```{kind}\n(.*?)```", README.partition("\n## ")[0], re.DOTALL)


def commands(heading: str) -> list[str]:
    """Return the command lines of a section, without prompts and comments; "" = the first screen."""
    found = blocks("console", heading) if heading else first_screen("console")
    lines = [line for block in found for line in block.splitlines()]
    return [line.removeprefix("$ ").partition("#")[0].strip() for line in lines]


@pytest.fixture
def pipeline(tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    """Make the shop of the README and two empty databases."""
    urls = {name: postgres_server.create_database() for name in ("main", "second")}
    made = Pipeline(folder=tmp_path, source="sqlite:///shop.db", targets=urls)
    made.environ = {
        "VENUS_TARGETS__MAIN__URL": urls["main"],
        "VENUS_BROKER__LISTEN": f"127.0.0.1:{made.ports[0]}",
        "VENUS_BROKER__HTTP": f"127.0.0.1:{made.ports[1]}",
        "VENUS_BROKER__FREE_BYTES_MIN": "0",
    }
    build_shop(tmp_path / "shop.db", customers=100, products=50, orders=300)
    yield made
    made.close()
    for url in urls.values():
        postgres_server.drop_database(url)


def test_the_first_screen_loads_the_rows_and_a_change_arrives(pipeline: Pipeline) -> None:
    (pipeline.folder / "venus.toml").write_text(first_screen("toml")[0])
    follow(pipeline, "")
    pipeline.until_said("main: following", "the target to follow")
    wait_equal(pipeline, "main", "public")

    change = re.findall(r'sqlite3 shop\.db "(.*?)"', README)[0]
    with closing(sqlite3.connect(pipeline.folder / "shop.db", timeout=60)) as shop, shop:
        assert shop.execute(change).rowcount == 1

    query = re.findall(r"shop=> (select .*?);", README)[-1]
    pipeline.until(lambda: run_at(pipeline.targets["main"], query) == [(1, "sent")], "the change")
    wait_equal(pipeline, "main", "public")


def test_the_recording_shows_the_first_screen() -> None:
    picture = (Path(__file__).parents[2] / "docs" / "recording.svg").read_text()
    shown = html.unescape(re.sub("<[^>]*>", "", picture)).splitlines()

    wanted = [*first_screen("toml")[0].splitlines(), *(f"$ {command}" for command in commands(""))]
    assert [line for line in wanted if line not in shown] == []
    assert any(line.startswith("-- the change was there after") for line in shown)


def test_the_commands_of_the_readme_work_in_order(pipeline: Pipeline) -> None:
    file = pipeline.folder / "venus.toml"
    follow(pipeline, "Keep your own database equal")
    wait_equal(pipeline, "main", "public")

    # not earlier, because the running `venus sync` would take it as one of its targets
    pipeline.environ["VENUS_TARGETS__SECOND__URL"] = pipeline.targets["second"]
    file.write_text(file.read_text() + blocks("toml", "A second target")[0])
    follow(pipeline, "A second target")
    wait_equal(pipeline, "second", "copy")

    set_predicate(pipeline)

    follow(pipeline, "Cut over")


def set_predicate(pipeline: Pipeline) -> None:
    """Give the second target the predicate of the README; it is applied while the source is off."""
    file = pipeline.folder / "venus.toml"
    whole, predicate = blocks("toml", "A second target")
    file.write_text(file.read_text().replace(whole, predicate))
    condition = tomllib.loads(predicate)["targets"]["second"]["where"]["orders"]
    with closing(sqlite3.connect(pipeline.folder / "shop.db", timeout=60)) as shop:
        wanted = shop.execute(f"SELECT count(*), sum(id) FROM orders WHERE {condition}").fetchall()
        assert 0 < wanted[0][0] < shop.execute("SELECT count(*) FROM orders").fetchone()[0]
    pipeline.start("second", "sync", "--apply-only", "--target", "second")
    there = "SELECT count(*), sum(id)::bigint FROM copy.orders"
    pipeline.until(lambda: run_at(pipeline.targets["second"], there) == wanted, "the rows of the predicate")

    def shows_predicate() -> bool:
        status = pipeline.ask("status", code=(0, 1))
        (orders,) = [t for t in status["targets"][1]["tables"] if t["name"].endswith(".orders")]
        return (orders["predicate"], orders["rows_removed"]) == (condition, 300 - wanted[0][0])

    pipeline.until(shows_predicate, "status to show the predicate", every_s=0.5)


def follow(pipeline: Pipeline, heading: str) -> None:
    """Run the commands of a section; `&` means the same as in a shell."""
    for command in commands(heading):
        assert command.startswith("venus "), command
        words = command.removeprefix("venus ").split()
        if words[0] == "init":
            write_first_configuration(pipeline, words)
        elif words[-1] == "&" or words[0] == "run":  # the README shows the next commands in another window
            pipeline.start(words[0], *(word for word in words if word != "&"))
            if words[0] == "broker":
                pipeline.until_said("broker listens on", "the broker")
        else:
            pipeline.venus(*words, code=(0, 1) if words[0] == "status" else 0)


def write_first_configuration(pipeline: Pipeline, words: list[str]) -> None:
    """Run `venus init` with the test's own target, and continue with the file on the README's first screen."""
    file, shown = pipeline.folder / "venus.toml", first_screen("toml")[0]
    file.unlink(missing_ok=True)
    pipeline.venus(words[0], words[1], pipeline.targets["main"])
    written = tomllib.loads(file.read_text())
    assert written["source"] == tomllib.loads(shown)["source"]
    assert written["targets"].keys() == tomllib.loads(shown)["targets"].keys()
    file.write_text(shown)


def wait_equal(pipeline: Pipeline, target: str, schema: str) -> None:
    """Wait until the target equals the source, which no session writes to."""
    shop = pipeline.folder / "shop.db"
    pipeline.until(
        lambda: not compare_shop(shop, pipeline.targets[target], schema=schema).different, f"{target} to be equal"
    )


def test_the_venus_script_is_on_the_path_of_the_environment() -> None:
    venus = shutil.which("venus", path=str(Path(sys.executable).parent))
    assert venus is not None

    assert subprocess.run([venus, "version"], capture_output=True, timeout=60).returncode == 0
