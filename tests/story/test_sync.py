"""`venus sync` as a supervisor: its loops fail, die and end one by one, and the other loops continue.

One pipeline for the file: a SQLite source, a working target, and one whose server never existed.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress

import psutil
import psycopg2
import pytest

from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import Pipeline, with_password
from tests.support.processes import forked

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory, postgres_server: Server) -> Iterator[Pipeline]:
    folder = tmp_path_factory.mktemp("sync")
    url = postgres_server.create_database()
    targets = {"main": with_password(url), "broken": "postgresql://venus:none@127.0.0.1:1/nowhere"}
    made = Pipeline(folder=folder, source=f"sqlite:///{folder}/app.db", targets=targets)
    made.environ["TEST_NEW_INTERPRETERS"] = "1"  # the loops: each is a child process with its arguments in /proc
    made.configure()
    try:
        write(made, "CREATE TABLE t (id INTEGER PRIMARY KEY)")
        made.venus("install-triggers")
        made.start_broker()
        made.venus("migrate", "--target", "main")
        made.start("sync", "sync", "--json")
        yield made
    finally:
        made.close()
        postgres_server.drop_database(url)


def write(pipeline: Pipeline, statement: str) -> None:
    with closing(sqlite3.connect(pipeline.folder / "app.db", timeout=30, isolation_level=None)) as connection:
        connection.execute(statement)


def check_arrival(pipeline: Pipeline, number: int) -> None:
    """Write a row and wait until the target has it."""
    write(pipeline, f"INSERT INTO t VALUES ({number})")

    def has_row() -> bool:
        with closing(psycopg2.connect(libpq(pipeline.targets["main"]))) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT 1 FROM t WHERE id = %s", (number,))
            return cursor.fetchone() is not None

    pipeline.until(has_row, f"row {number}", every_s=0.1)


def loops(pipeline: Pipeline) -> dict[str, psutil.Process]:
    """Return the child processes of `venus sync` by their task."""
    found = {}
    for child in psutil.Process(pipeline.running["sync"].pid).children():
        with suppress(psutil.Error):  # it has just ended
            words = child.cmdline()
            if "--with-parent" in words:  # else it has only been forked, or has ended
                found["capture" if "--capture-only" in words else words[words.index("--target") + 1]] = child
    return found


def events(pipeline: Pipeline, loop: str) -> list[dict[str, object]]:
    """Return the events of a loop: one JSON object per line."""
    lines = [json.loads(line) for line in pipeline.log.read_text().splitlines() if line.startswith('{"loop"')]
    return [line for line in lines if line["loop"] == loop]


def test_a_missing_target_does_not_stop_the_other(pipeline: Pipeline) -> None:
    check_arrival(pipeline, 1)

    pipeline.until(lambda: "cannot be reached" in str(events(pipeline, "broken")), "word of the broken target")
    assert any("broken" in problem for problem in pipeline.status()["problems"])
    check_arrival(pipeline, 2)


@pytest.mark.parametrize("loop", ["capture", "main"])
def test_a_loop_that_is_killed_is_started_again(pipeline: Pipeline, loop: str) -> None:
    pipeline.until(lambda: loop in loops(pipeline), loop)
    killed = loops(pipeline)[loop]
    others = {name: child.pid for name, child in loops(pipeline).items() if name != loop}

    killed.kill()

    check_arrival(pipeline, 10 if loop == "capture" else 11)
    assert loops(pipeline)[loop].pid != killed.pid
    assert {name: child.pid for name, child in loops(pipeline).items() if name != loop} == others
    (restart,) = [event for event in events(pipeline, loop) if event["event"] == "restarts"]
    assert restart["code"] == -9


@pytest.mark.parametrize("options", [("--capture-only",), ()])
def test_a_second_instance_is_refused_in_one_line_while_the_first_lives(
    pipeline: Pipeline, options: tuple[str, ...]
) -> None:
    pipeline.until(lambda: pipeline.status()["broker"]["producer"], "the first capture")
    capture = loops(pipeline)["capture"].pid

    said = pipeline.venus("sync", *options, code=3).err.splitlines()

    holder = pipeline.status()["broker"]["producer"]
    assert any(f"capture of business main is held by {holder}, connected since" in line for line in said), said
    assert said[-1].strip().startswith("Stop it there, or run `venus sync --take-over`")
    assert loops(pipeline)["capture"].pid == capture
    check_arrival(pipeline, 20 + len(options))


def test_a_process_that_takes_over_ends_the_first_with_an_error(pipeline: Pipeline) -> None:
    pipeline.start("rival", "sync", "--capture-only", "--take-over")

    assert pipeline.running.pop("sync").wait(240) == 3
    assert "venus: capture has ended, and the targets were stopped: " in pipeline.log.read_text()
    check_later_arrival(pipeline, "rival")


def check_later_arrival(pipeline: Pipeline, rival: str) -> None:
    """Kill what captures; the next one is let in, without --take-over, and everything arrives."""
    pipeline.kill(rival)
    pipeline.start("sync", "sync", "--json")
    check_arrival(pipeline, 25)
    assert pipeline.running["sync"].poll() is None


@pytest.mark.parametrize("options", [("--json",), ()])
def test_a_closed_output_pipe_ends_it_without_a_traceback(pipeline: Pipeline, options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "venus.cli", "sync", "--apply-only", "--target", "broken", *options]
    process = forked.popen(
        command, cwd=pipeline.folder, env=pipeline._environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read().decode()
    assert process.wait(120) == 141
    assert "BrokenPipe" not in said
    assert "Traceback" not in said


def test_the_loops_end_with_their_parent(pipeline: Pipeline) -> None:
    children = list(loops(pipeline).values())
    assert children

    pipeline.kill("sync")

    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
    pipeline.start("sync", "sync", "--target", "main")
    check_arrival(pipeline, 30)
    assert pipeline.stop("sync") == 0


def test_a_child_stops_in_order_when_its_parents_end_of_stdin_closes() -> None:
    code = (
        "import threading; from venus.cli.supervisor import stop_with_parent\n"
        "stop = threading.Event(); stop_with_parent(stop); print('ready', flush=True)\n"
        "print('asked to stop' if stop.wait(60) else 'left alone')"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    assert child.poll() is None

    said, _ = child.communicate(timeout=60)

    assert said == "asked to stop\n"
