"""The walk through docs/how-to/regions.md: every file and every command, unchanged.

Only addresses differ: free ports, and databases of this test. `&` and `%N` mean the same as in a shell.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.brokers.feed import query
from tests.support.databases.postgres import Server
from tests.support.pipelines.pipeline import Answer, Pipeline
from tests.support.ports import free_ports
from venus.cli.demo.shop import build_shop

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "regions.md").read_text().partition("\n## ")[0]
FILES = {
    block.split("\n", 1)[0].removeprefix("# "): block for block in re.findall(r"```toml\n(# .*?)```", TEXT, re.DOTALL)
}
CONSOLES = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
SALES = {"customers", "orders", "order_lines"}
TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1"


class DocumentShell:
    """Shell that runs the document's commands in a folder of its own."""

    def __init__(self, folder: Path, targets: dict[str, str]) -> None:
        self.pipeline = Pipeline(folder=folder, source="", targets=targets)
        ports = sorted({port for text in FILES.values() for port in re.findall(r"127\.0\.0\.1:(\d+)", text)})
        self._ports = dict(zip(ports, free_ports(len(ports)), strict=True))
        self._jobs: list[str] = []
        for name, text in FILES.items():
            for target, url in targets.items():
                text = text.replace(f"postgresql://venus@{target}-db/shop", url)
            (folder / name).write_text(self._replace_ports(text))
        build_shop(folder / "shop.db", customers=100, products=50, orders=300)

    def _replace_ports(self, text: str) -> str:
        """Return a text with free ports in place of the document's."""
        return re.sub(r"(127\.0\.0\.1):(\d+)", lambda m: f"{m[1]}:{self._ports[m[2]]}", text)

    def run_line(self, command: str) -> Answer | None:
        """Execute one line."""
        words = self._replace_ports(command).split()
        if words[0] == "kill":
            self.pipeline.kill(self._jobs[int(words[-1].removeprefix("%")) - 1])
            return None
        assert words.pop(0) == "venus", command
        if words[-1] == "&":
            name = f"{len(self._jobs) + 1} {command}"
            self._jobs.append(name)
            log, line = self.pipeline.log, "broker listens on"
            said = log.read_text().count(line) if log.exists() else 0
            self.pipeline.start(name, *words[:-1])
            if words[0] == "broker":
                self.pipeline.until(lambda: log.read_text().count(line) > said, command)
            return None
        code = {"topology": (0, 1), "status": (0, 1)}.get(words[1] if words[0] == "cluster" else words[0], (0,))
        return self.pipeline.venus(*words, code=code)

    def insert_customer(self, number: int) -> None:
        """Insert a customer at head office, as the application does."""
        row = (number, "new", f"{number}@example.com", "2026-11-22 10:00:00")
        with closing(sqlite3.connect(self.pipeline.folder / "shop.db", timeout=30)) as shop, shop:
            shop.execute("INSERT INTO customers (id, name, email, created_at) VALUES (?, ?, ?, ?)", row)

    def shop(self, statement: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.pipeline.folder / "shop.db", timeout=30)) as shop:
            return shop.execute(statement).fetchall()


@pytest.fixture
def walk(tmp_path: Path, postgres_server: Server) -> Iterator[DocumentShell]:
    urls = {name: postgres_server.create_database() for name in ("eu", "asia")}
    made = DocumentShell(tmp_path, urls)
    yield made
    made.pipeline.close()
    for url in urls.values():
        postgres_server.drop_database(url)


def lines(block: str) -> list[str]:
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def stable_lines(lines: list[str]) -> list[str]:
    """Return a drawing without the parts that differ from run to run."""
    return [re.sub(r"(?<=main)  .*|127\.0\.0\.1:\d+| · load \d+%", "", line).rstrip() for line in lines]


def has_equal_counts(walk: DocumentShell, target: str, tables: set[str]) -> bool:
    return all(
        query(walk.pipeline.targets[target], f"SELECT count(*) FROM {table}")
        == walk.shop(f"SELECT count(*) FROM {table}")
        for table in tables
    )


def test_the_commands_of_the_walk_work(walk: DocumentShell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    until = walk.pipeline.until
    started, topology, targets, lost, back = (lines(block) for block in CONSOLES)
    assert (len(FILES), len(started), len(targets)) == (5, 7, 5)
    for command in started:
        walk.run_line(command)

    drawn: list[str] = []

    def is_level() -> bool:
        found = walk.run_line(topology[0])
        assert found is not None
        drawn[:] = found.out.splitlines()
        return found.code == 0 and sum("level," in line for line in drawn) == 4

    until(is_level, "every set to be level", every_s=0.5)
    assert stable_lines(drawn) == stable_lines(CONSOLES[1].splitlines()[1:])

    for command in targets[:-1]:
        said = walk.run_line(command)
        labelled = "customers, order_lines, orders" if "eu" in command else "products"
        assert said is None or f"the broker set here mirrors {labelled} only" in said.out
    assert {name for (name,) in query(walk.pipeline.targets["eu"], TABLES)} == SALES
    assert {name for (name,) in query(walk.pipeline.targets["asia"], TABLES)} == {"products"}
    walk.insert_customer(9001)
    until(lambda: has_equal_counts(walk, "eu", SALES), "the target of eu", every_s=0.2)
    until(lambda: (walk.run_line(targets[-1]) or Answer(1, "", "")).code == 0, "a healthy status", every_s=0.5)

    walk.run_line(lost[0])
    walk.insert_customer(9002)
    until(lambda: has_equal_counts(walk, "eu", SALES), "the target to continue at us")
    until(lambda: "hq -> tandem -> us" in (walk.run_line(lost[1]) or Answer(1, "", "")).out, "the path", every_s=0.5)
    drawn_now = walk.run_line(lost[2])
    assert drawn_now is not None
    assert drawn_now.code == 1
    assert "no answer" in drawn_now.out

    walk.run_line(back[0])
    walk.insert_customer(9003)
    until(lambda: (walk.run_line(back[1]) or Answer(1, "", "")).code == 0, "eu to be back", every_s=0.5)
    until(lambda: has_equal_counts(walk, "eu", SALES), "the target of eu")
    until(lambda: has_equal_counts(walk, "asia", {"products"}), "the target of asia")
    verified = walk.run_line(back[2])
    assert verified is not None
    assert "the broker set here mirrors customers, order_lines, orders only" in verified.out + verified.err


def test_every_command_of_the_walk_is_run() -> None:
    assert len(CONSOLES) == 5
    assert {line.split()[0] for block in CONSOLES for line in lines(block)} == {"venus", "kill"}
