"""`venus run`: one configuration, one command, all rows (scenario 82); and a change back to separate processes.

Refused without triggers -> `--install` -> load under writers -> following -> killed and restarted under writers -> a
second target -> separate broker and sync on the same data -> `venus run` again -> Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases.postgres import Server
from tests.support.databases.shops import PostgresShop, Shop, SqliteShop
from tests.support.pipelines.pipeline import TIMEOUT_S, Pipeline, with_password
from venus.cli.demo.servers import is_listening

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, postgres_server: Server) -> Iterator[Shop]:
    if request.param == "sqlite":
        yield SqliteShop(tmp_path)
        return
    url = postgres_server.create_database()
    yield PostgresShop(postgres_server, url, with_password(url))
    postgres_server.drop_database(url)


@pytest.fixture
def pipeline(shop: Shop, tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    urls = {name: postgres_server.create_database() for name in ("main", "second")}
    made = Pipeline(
        folder=tmp_path,
        source=shop.url,
        source_options="" if isinstance(shop, SqliteShop) else 'tables = ["shop.*"]',
        targets={"main": with_password(urls["main"])},
    )
    made.configure()
    try:
        yield made
    finally:
        made.close()
        for url in urls.values():
            postgres_server.drop_database(url)


def test_one_command_loads_and_follows_and_changes_to_services_and_back(
    shop: Shop, pipeline: Pipeline, postgres_server: Server
) -> None:
    refuse_without_triggers(shop, pipeline)
    install_load_and_follow(shop, pipeline)
    survive_kills(shop, pipeline)
    continue_as_services(shop, pipeline)
    add_a_target(shop, pipeline, postgres_server.create_database())
    assert interrupt(pipeline) == 0
    assert pipeline.log.read_text().rstrip().endswith("broker stopped")


def refuse_without_triggers(shop: Shop, pipeline: Pipeline) -> None:
    untouched = shop.catalogue()

    said = pipeline.venus("run", code=3).err.splitlines()

    assert said[-2] == "venus: source: no triggers are installed"
    assert said[-1].strip().startswith("`venus run --install` installs them")
    assert shop.catalogue() == untouched


def install_load_and_follow(shop: Shop, pipeline: Pipeline) -> None:
    shop.open_doors()
    pipeline.start("run", "run", "--install")
    wait_for_line(pipeline, "main: following")
    let_users_work(1.5)
    compare_rows(shop, pipeline, "main")

    said = pipeline.log.read_text()
    steps = ["+ ", "broker ready at ", "capture: capturing", "main: loading", "main: loaded ", "main: following"]
    assert [said.find(step) for step in steps] == sorted(said.find(step) for step in steps)
    assert all(step in said for step in steps)
    pipeline.until_ok()
    assert pipeline.ask("verify", "--target", "main")["verdict"] == "same"


def survive_kills(shop: Shop, pipeline: Pipeline) -> None:
    shop.open_doors()
    for pause_s in (0.3, 0.7):
        let_users_work(pause_s)
        pipeline.kill("run")
        let_users_work(0.3)
        start(pipeline)
    compare_rows(shop, pipeline, "main")


def continue_as_services(shop: Shop, pipeline: Pipeline) -> None:
    shop.open_doors()
    before = pipeline.status()["broker"]["next_offset"]
    assert pipeline.stop("run") == 0
    pipeline.start_broker()
    pipeline.start("sync", "sync")
    let_users_work(0.5)
    compare_rows(shop, pipeline, "main")
    assert pipeline.status()["broker"]["next_offset"] > before, "the same queue continues"
    assert [pipeline.stop(name) for name in ("sync", "broker")] == [0, 0]


def add_a_target(shop: Shop, pipeline: Pipeline, url: str) -> None:
    pipeline.targets["second"] = with_password(url)
    pipeline.configure()
    shop.open_doors()
    start(pipeline)
    wait_for_line(pipeline, "second: following")
    compare_rows(shop, pipeline, "main", "second")
    assert "main: loading" not in last_run(pipeline), "a loaded target is not loaded again"


def test_each_obstacle_is_reported_in_one_line_with_the_remedy(tmp_path: Path, postgres_server: Server) -> None:
    """The commands run in a folder with a space in its name, without a home folder, in a German locale."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    shop = SqliteShop(folder)
    url = postgres_server.create_database()
    targets = {"main": with_password(url), "away": "postgresql://venus:nothing@127.0.0.1:1/nowhere"}
    made = Pipeline(folder=folder, source=shop.url, targets=targets)
    made.environ |= {"HOME": "/nonexistent", "LC_ALL": "de_DE.UTF-8", "PATH": "/usr/bin:/bin"}
    made.configure()
    try:
        made.start("run", "run", "--install")
        wait_for_line(made, "main: following")
        made.until_said("away: rows 0", "word of the target that is away")
        made.until_said("127.0.0.1:1/nowhere cannot be reached", "its reason")
        assert "away: following" not in made.log.read_text()
        assert any("away" in problem for problem in made.status()["problems"])
        shop.open_doors()
        compare_rows(shop, made, "main")

        said = made.venus("run", code=2).err
        assert "data is in use by another broker" in said
        text = (folder / "venus.toml").read_text()
        elsewhere = text.replace('data_dir = "data"', 'data_dir = "other"')
        elsewhere = elsewhere.replace(f'http = "127.0.0.1:{made.ports[1]}"', 'http = ""')
        (folder / "venus.toml").write_text(elsewhere)
        said = made.venus("run", code=2).err
        assert f"broker.listen {made.broker} cannot be used" in said
        assert "a broker that runs already is used by `venus sync`" in said
        made.configure()
        assert made.stop("run") == 0
    finally:
        made.targets.pop("away")
        made.configure()
        made.close()
        postgres_server.drop_database(url)


def start(pipeline: Pipeline) -> None:
    """Start `venus run` and wait until it follows."""
    pipeline.start("run", "run")
    wait_for_line(pipeline, "main: following")


def last_run(pipeline: Pipeline) -> str:
    """Return the log of the newest `venus run`."""
    return pipeline.log.read_text().rpartition("$ venus run")[2]


def wait_for_line(pipeline: Pipeline, line: str) -> None:
    """Wait until the newest `venus run` has written a line."""

    def has_event() -> bool:
        assert "run" not in pipeline.running or pipeline.running["run"].poll() is None, pipeline.tail()
        return line in last_run(pipeline)

    pipeline.until(has_event, line)


def compare_rows(shop: Shop, pipeline: Pipeline, *targets: str) -> None:
    """Stop the writers, and compare every row."""
    shop.close_doors()
    pipeline.wait_until_caught_up(*targets)
    for name in targets:
        assert shop.differences(pipeline.targets[name]) == []


def interrupt(pipeline: Pipeline) -> int:
    """Send SIGINT to the whole process group, as Ctrl-C does; return the exit code."""
    process: subprocess.Popen[bytes] = pipeline.running.pop("run")
    os.killpg(process.pid, signal.SIGINT)
    code = process.wait(TIMEOUT_S)
    assert not is_listening(pipeline.ports[0])
    return code


def let_users_work(seconds: float) -> None:
    """Let users work for a while; no condition exists to wait for."""
    threading.Event().wait(seconds)
