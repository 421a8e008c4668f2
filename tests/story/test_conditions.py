"""A table or adapter that needs attention is visible everywhere: status, metrics, health, page; so is its recovery.

One broker, one `venus sync`, a SQLite source; the broker's words are compared with those of `venus status`, which reads
the databases.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser

from tests.story.test_fall_back import open_pair
from tests.story.test_fall_back_held import interrupt
from tests.story.test_trouble import RunningPipeline
from tests.support import browsers
from tests.support.databases.postgres import Server
from tests.support.pipelines.pipeline import Pipeline, with_password

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

#: A text that is not UTF-8: SQLite keeps it as TEXT, and VENUS cannot carry it.
UNFIT = "INSERT INTO unfit VALUES (2, CAST(x'ff' AS TEXT))"


class WatchedPipeline(RunningPipeline):
    """The pipeline, and a browser if one is installed."""

    browser: Browser | None = None


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser | None]:
    if not any(map(shutil.which, browsers.NAMES)):
        yield None
        return
    with browsers.run_browser() as found:
        yield found


@pytest.fixture(scope="module")
def running(
    browser: Browser | None, tmp_path_factory: pytest.TempPathFactory, postgres_server: Server
) -> Iterator[WatchedPipeline]:
    url = postgres_server.create_database()
    folder = tmp_path_factory.mktemp("standing")
    pipeline = Pipeline(folder=folder, source=f"sqlite:///{folder}/app.db", targets={"main": with_password(url)})
    pipeline.configure()
    made = WatchedPipeline(pipeline, postgres_server)
    made.browser = browser
    try:
        made.write("CREATE TABLE steady (id INTEGER PRIMARY KEY, v TEXT)", "PRAGMA journal_mode = WAL")
        for table in ("unfit", "strict", "missed"):
            made.create_table(table)
        pipeline.venus("install-triggers")
        pipeline.start_broker()
        pipeline.venus("migrate", "--target", "main")
        pipeline.start("sync", "sync")
        made.wait_until_healthy()
        yield made
    finally:
        pipeline.close()
        postgres_server.drop_database(url)


def get(running: WatchedPipeline, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{running.pipeline.ports[1]}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metric(running: WatchedPipeline, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", get(running, "/metrics")[1], re.MULTILINE)
    return float(found[1]) if found else -1.0


def page(running: WatchedPipeline) -> str:
    """Return the text of the page in a browser, or its HTML without one."""
    if running.browser is None:
        return get(running, "/status.json")[1]
    with browsers.open_page(running.browser, f"http://127.0.0.1:{running.pipeline.ports[1]}/") as seen:
        return seen.page.content()


def check_all_places(running: WatchedPipeline, sentence: str, gauge: str) -> None:
    """Wait until the broker says this sentence, and every place shows it and no other."""
    running.pipeline.until(lambda: sentence in get(running, "/health")[1], f"/health to say {sentence!r}", every_s=0.2)
    running.pipeline.until_passes(lambda: check_each_place(running, sentence, gauge))


def check_each_place(running: WatchedPipeline, sentence: str, gauge: str) -> None:
    code, health = get(running, "/health")
    assert (code, health.splitlines()[0]) == (200, "degraded")
    code, alarms = get(running, "/alarms")
    assert code == 503
    assert sentence in alarms
    assert metric(running, gauge) == 1
    assert metric(running, 'venus_alarms{business="main"}') == 1
    (business,) = json.loads(get(running, "/status.json")[1])["businesses"]
    assert [sentence in alarm for alarm in business["alarms"]] == [True]
    assert sentence in page(running).replace("&gt;", ">").replace("&lt;", "<")
    found = running.pipeline.ask("status", code=1)
    assert [sentence in problem for problem in found["problems"]] == [True], found["problems"]


def check_no_place(running: WatchedPipeline, gauge: str) -> None:
    """Wait until the broker says nothing any more, and every place shows that."""
    running.wait_until_healthy()
    running.pipeline.until(lambda: get(running, "/health")[1] == "ok\n", "/health to say ok", every_s=0.2)
    running.pipeline.until_passes(lambda: check_each_place_is_quiet(running, gauge))


def check_each_place_is_quiet(running: WatchedPipeline, gauge: str) -> None:
    assert get(running, "/alarms") == (200, "none\n")
    assert metric(running, gauge) in (0, -1)  # some states exist only sometimes
    assert metric(running, 'venus_alarms{business="main"}') == 0
    assert 'role="alert"' not in page(running)


def test_a_table_halted_at_the_source_is_reported_everywhere(running: WatchedPipeline) -> None:
    gauge = 'venus_tables_not_following{business="main",place="source",state="HALTED"}'
    running.write(UNFIT, "INSERT INTO steady VALUES (1, 'continues')")
    running.wait_for_rows("main", "steady", [(1, "continues")])

    check_all_places(running, "source: main.unfit is HALTED (cannot be carried: ", gauge)

    running.write("UPDATE unfit SET v = 'two' WHERE id = 2")
    running.wait_for_rows("main", "unfit", [(1, "one"), (2, "two")])
    check_no_place(running, gauge)


def test_a_table_halted_at_the_target_is_reported_everywhere(running: WatchedPipeline) -> None:
    gauge = 'venus_tables_not_following{business="main",place="main/main",state="HALTED"}'
    running.run_at("main", "ALTER TABLE strict ADD CONSTRAINT no_bad CHECK (v <> 'bad')")
    running.write("INSERT INTO strict VALUES (2, 'bad')")

    running.pipeline.until(lambda: "main.strict is HALTED" in get(running, "/alarms")[1], "the halt", every_s=0.2)

    def check_halt() -> None:
        alarms = get(running, "/alarms")[1]
        assert "`venus quarantine list --target main` shows the row" in alarms
        assert metric(running, gauge) == 1
        assert metric(running, 'venus_quarantined_changes{business="main",place="main/main"}') == 1
        said = running.pipeline.ask("status", code=1)["problems"]
        assert sorted(said) == sorted(alarms.replace("business main: target", "target").splitlines())
        assert "main.strict is HALTED" in page(running)

    running.pipeline.until_passes(check_halt)

    running.run_at("main", "ALTER TABLE strict DROP CONSTRAINT no_bad")
    running.pipeline.venus("quarantine", "retry", "--target", "main")
    check_no_place(running, gauge)


@pytest.mark.parametrize(
    ("what", "sentence", "gauge"),
    [
        (
            ["steady"],
            "source: main.steady is PAUSED (paused by an operator); `venus resume main.steady` resumes it",
            'venus_tables_not_following{business="main",place="source",state="PAUSED"}',
        ),
        (
            ["steady", "--target", "main"],
            "target main: main.steady is PAUSED (paused by an operator)",
            'venus_tables_not_following{business="main",place="main/main",state="PAUSED"}',
        ),
        (
            ["--target", "main"],
            "target main: paused; `venus resume --target main` resumes it",
            'venus_paused{business="main",place="main/main"}',
        ),
    ],
)
def test_an_operators_pause_is_reported_everywhere(
    running: WatchedPipeline, what: list[str], sentence: str, gauge: str
) -> None:
    running.pipeline.venus("pause", *what)
    check_all_places(running, sentence, gauge)

    running.pipeline.venus("resume", *what)
    check_no_place(running, gauge)


def test_a_table_that_has_missed_changes_is_reported_everywhere(running: WatchedPipeline) -> None:
    gauge = 'venus_tables_not_following{business="main",place="source",state="RESYNC"}'
    trigger = triggers_of(running, "missed")[0]
    running.write(f'DROP TRIGGER "{trigger}"')
    running.pipeline.venus("install-triggers")

    check_all_places(running, "source: main.missed is RESYNC", gauge)

    running.pipeline.venus("resync", "missed")
    check_no_place(running, gauge)


def test_the_last_report_of_an_adapter_that_left_is_dated(running: WatchedPipeline) -> None:
    away = 'venus_report_unknown_seconds{business="main",place="main/main"}'
    running.pipeline.venus("pause", "steady", "--target", "main")
    running.pipeline.until(lambda: "main.steady is PAUSED" in get(running, "/alarms")[1], "the pause", every_s=0.2)
    running.pipeline.until(lambda: metric(running, away) == 0, "the adapter to be there", every_s=0.2)

    assert running.pipeline.stop("sync") == 0
    running.pipeline.until(lambda: metric(running, away) > 1, "the adapter to be away", every_s=0.2)
    dated = re.compile(r"main.steady is PAUSED .* \(as it was \d+ s ago: its adapter has been away")
    running.pipeline.until(lambda: dated.search(get(running, "/alarms")[1]), "the alarm to be dated", every_s=0.2)

    running.pipeline.venus("resume", "steady", "--target", "main")
    running.pipeline.start("sync", "sync")
    check_no_place(running, 'venus_tables_not_following{business="main",place="main/main",state="PAUSED"}')


def triggers_of(running: WatchedPipeline, table: str) -> list[str]:
    with closing(sqlite3.connect(running.pipeline.folder / "app.db", timeout=60)) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?", [table])
        return [name for (name,) in found]


def test_a_table_that_was_created_after_the_installation_is_reported_everywhere(running: WatchedPipeline) -> None:
    gauge = 'venus_tables_not_following{business="main",place="source",state="NOT_CAPTURED"}'
    pipeline = running.pipeline
    assert metric(running, gauge) == 0
    running.create_table("later")

    check_all_places(running, "source: main.later matches the patterns and is not captured", gauge)
    assert "`venus install-triggers`" in get(running, "/alarms")[1]
    (found,) = (f for f in pipeline.ask("check")["findings"] if f["where"] == "main.later")
    assert (found["message"], found["blocks"]) == ("matches the patterns and is not captured", False)
    verified = pipeline.venus("verify", "--target", "main")
    assert "not compared: main.later matches the patterns and is not captured" in verified.err
    assert verified.out.rstrip().endswith("1 table not compared")
    assert pipeline.ask("verify", "--target", "main")["not_compared"] == [
        {"table": "main.later", "reason": "not captured"}
    ]
    said = pipeline.venus("verify", "--target", "main", "--table", "later", code=2).err
    assert "main.later matches the patterns and is not captured: `venus install-triggers` captures it" in said

    pipeline.venus("install-triggers")
    running.wait_for_rows("main", "later", [(1, "one")])
    check_no_place(running, gauge)
    assert pipeline.ask("verify", "--target", "main")["not_compared"] == []


def test_a_table_that_cannot_be_captured_is_reported_everywhere(running: WatchedPipeline) -> None:
    gauge = 'venus_tables_not_following{business="main",place="source",state="NOT_CAPTURED"}'
    running.write("CREATE TABLE keyless (a INTEGER)")

    check_all_places(
        running, "source: main.keyless matches the patterns and cannot be captured: no key by which", gauge
    )
    found = [f for f in running.pipeline.ask("check", code=3)["findings"] if f["where"] == "main.keyless"]
    assert [f["blocks"] for f in found] == [True]

    running.write("DROP TABLE keyless")
    check_no_place(running, gauge)


_NEITHER = "the switch from @source to main is not finished, and neither accepts writes"
_ONLY_MAIN = "the switch to main is not finished: `venus cutover --target main --fall-back` completes it; only main"
_COMPLETE = ["--fall-back", "--quiet", "0.2"]
#: The step at which a switch is interrupted, the command that runs meanwhile, the reporter, the report, and its end.
SWITCHES = [
    ("stop", "sync", "main/main", _NEITHER, _COMPLETE),
    ("open", "run", "main/main", _NEITHER, ["--undo"]),
    ("follow", "sync", "source", _ONLY_MAIN, _COMPLETE),
    ("follow", "run", "source", _ONLY_MAIN, _COMPLETE),
]


@pytest.mark.parametrize(("step", "command", "place", "sentence", "ends"), SWITCHES)
def test_an_interrupted_switch_is_reported_everywhere(
    browser: Browser | None,
    tmp_path: Path,
    postgres_server: Server,
    step: str,
    command: str,
    place: str,
    sentence: str,
    ends: list[str],
) -> None:
    gauge = f'venus_tables_not_following{{business="main",place="{place}",state="SWITCHING"}}'
    with open_pair(tmp_path, postgres_server) as pair:
        pair.start(in_one_process=command == "run")
        running = WatchedPipeline(pair.pipeline, postgres_server)
        running.browser = browser
        interrupt(pair, step)

        check_all_places(running, sentence, gauge)

        pair.pipeline.venus("cutover", "--target", "main", *ends)
        check_no_place(running, gauge)
