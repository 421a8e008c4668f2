"""`venus prove` on each kind of server (scenario 96): its report, its refusals, and the removal of its objects."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.conformance.place_oracle import StandInPlace
from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import Server, libpq
from tests.support.oracle.standin import StandIn
from tests.support.ports import free_port
from tests.support.processes import forked
from tests.support.waiting import eventually
from venus.adapters.dialects.postgresql.proving import PostgresScratch
from venus.adapters.dialects.proving_contract import Application, ScratchSchema, open_scratch, run_transaction
from venus.adapters.dialects.sqlite.proving import SqliteScratch
from venus.cli.prove.rehearsal import PLANS, STATEMENTS, Rehearsal
from venus.cli.prove.results import Details, ProofReport, describe_failure
from venus.cli.prove.run import ProofRequest, ProofRun, ScratchMarker
from venus.cli.prove.workload import WorkloadFailed, run_writers
from venus.config import Settings

pytestmark = pytest.mark.integration

QUICK = ("--minutes", "0.03", "--rows", "2000", "--cases", "swap or truncate_empties or hardest_values or rolled_back")
#: A user and a database whose names must not appear in a report.
USER, DATABASE, PASSWORD = "quentin_u", "ledger_db", "hidden-42"


@dataclass(slots=True)
class Prover:
    """Runs the command in a folder of its own."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self.folder / "state"), "HOME": str(self.folder)}

    def start(self, url: str, *more: str, **environ: str) -> subprocess.Popen[Any]:
        command = [sys.executable, "-m", "venus.cli", "prove", "--source", url, *more]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return forked.popen(command, cwd=self.folder, env=self.environ | environ, **streams)

    def run(self, url: str, *more: str, **environ: str) -> tuple[int, str, str]:
        with self.start(url, *more, **environ) as process:
            out, err = process.communicate(timeout=280)
        return process.returncode, out, err

    def report(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "venus-prove.json").read_text()))


@pytest.fixture
def prover(tmp_path: Path) -> Prover:
    return Prover(tmp_path)


@pytest.fixture
def scratch(postgres_server: Server) -> Iterator[str]:
    """Make a scratch database with the script that the command prints."""
    postgres_server.execute(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
    postgres_server.execute(f"CREATE DATABASE {DATABASE} OWNER {USER} TEMPLATE template0")
    url = postgres_server.url(DATABASE, USER, PASSWORD)
    yield url
    postgres_server.drop_database(url)
    postgres_server.execute(f"DROP ROLE {USER}")


def scratch_of(url: str) -> ScratchSchema:
    return open_scratch(Settings.model_validate({"source": {"url": url}}))


def failures(document: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (section["title"], case["name"], case["why"])
        for section in document["sections"]
        for case in section["cases"]
        if case["outcome"] == "failed"
    ]


def require_proof(prover: Prover, outcome: tuple[int, str, str], *secrets: str) -> dict[str, Any]:
    """Check a run without failures whose report names no user or database; return the report."""
    document = prover.report()
    assert failures(document) == []
    assert outcome[0] == 0, outcome
    assert document["left_out"] == ["most cases"]
    assert document["facts"]["version"]
    assert [plan["statement"] for plan in document["plans"]][-1] == "fill"
    assert {figure["unit"] for figure in document["figures"]} >= {"us/row", "rows/s"}
    written = (prover.folder / "venus-prove.html").read_text() + json.dumps(document)
    assert re.search(r"\$[a-z]", written.partition("<body>")[2].partition("Plans")[0]) is None
    assert [secret for secret in (*secrets, PASSWORD, str(prover.folder)) if secret in written] == []
    assert not (prover.folder / "venus-prove.log").exists()
    return document


def test_postgresql_passes_and_is_left_unchanged(prover: Prover, scratch: str) -> None:
    outcome = prover.run(scratch, *QUICK)
    document = require_proof(prover, outcome, USER, DATABASE)
    parsed = [c for s in document["sections"] if s["title"] == STATEMENTS for c in s["cases"]]
    assert sum(case["outcome"] == "passed" for case in parsed) > 80
    assert scratch_of(scratch).list_objects() == []
    assert prover.run(scratch, *QUICK, "--minutes", "0", "--rows", "0", "--json")[0] == 0, "a second run"
    assert prover.report()["left_out"] == ["most cases", "writers", "cost of triggers"]


def test_mariadb_passes_and_is_left_unchanged(
    prover: Prover, mariadb_server: MariaServer, mariadb_exact_database: str
) -> None:
    require_proof(prover, prover.run(mariadb_exact_database, *QUICK))
    assert scratch_of(mariadb_exact_database).list_objects() == []


def test_sqlite_passes_and_is_left_unchanged(prover: Prover) -> None:
    url = f"sqlite:///{prover.folder / 'ledger.db'}"
    (prover.folder / "ledger.db").touch()
    require_proof(prover, prover.run(url, *QUICK), "ledger")
    assert scratch_of(url).list_objects() == []


def test_the_oracle_stand_in_runs_every_part(prover: Prover, mariadb_oracle_server: MariaServer) -> None:
    """It has no DBMS_SQL and no EXPLAIN PLAN: these parts fail by name, the others run, and the report is written."""
    standin = StandIn(mariadb_oracle_server)
    standin.prepare()
    place = StandInPlace(standin)
    report, details = ProofReport(version="x", taken_at="x", dialect="oracle", seed=1), Details(prover.folder / "log")
    place.settings()
    Rehearsal(place, report, details)
    request = ProofRequest(minutes=0.02, rows=1000, seed=1, only="swap")
    ProofRun(place, request, report, details).run(ScratchMarker(place.url), lambda _: None, lambda *_: None)
    assert {title for title, _ in report.failures} == {STATEMENTS, PLANS}
    assert place.list_objects() == []


# -- refusals --------------------------------------------------------------------------------------------------------


def test_a_database_with_a_table_is_refused_and_the_script_is_printed(prover: Prover, scratch: str) -> None:
    with closing(psycopg2.connect(libpq(scratch))) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE public.ledger (id int PRIMARY KEY)")
        connection.commit()
    code, _, err = prover.run(scratch, *QUICK)
    assert code == 3
    assert f"database {DATABASE} has 1 object (table public.ledger), and a scratch must be empty" in err
    assert "CREATE DATABASE venus_prove OWNER venus_prove;" in err
    assert scratch_of(scratch).list_objects() == ["table public.ledger"]
    assert not (prover.folder / "venus-prove.json").exists()


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("postgres//x", 2, "--source is not a database URL"),
        ("postgrex://u@h/d", 2, "--source: postgrex is not a source that VENUS knows"),
        (
            "postgresql://u:pw-secret@127.0.0.1:{port}/d",
            75,
            "--source: postgresql://u:***@127.0.0.1:{port}/d cannot be",
        ),
        ("sqlite:///absent.db", 2, "absent.db: no such file"),
        ("mysql+pymysql://u:pw-secret@127.0.0.1:{port}/d", 75, "--source: 127.0.0.1:{port}/d cannot be reached"),
    ],
)
def test_a_wrong_url_is_named_in_one_line(prover: Prover, url: str, code: int, said: str) -> None:
    port = free_port()
    found, _, err = prover.run(url.format(port=port), *QUICK)
    assert (found, "pw-secret" in err) == (code, False)
    assert said.format(port=port) in err
    assert "[source]" not in err
    assert len(err.strip().splitlines()) <= 2


def test_a_user_without_privileges_is_refused_before_anything_is_created(
    prover: Prover, scratch: str, postgres_server: Server
) -> None:
    postgres_server.execute(f"ALTER DATABASE {DATABASE} OWNER TO postgres")
    code, _, err = prover.run(scratch, *QUICK)
    assert code == 12
    assert "permission denied for database" in err
    assert scratch_of(scratch).list_objects() == []


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--minutes", "-1"), "--minutes -1: a number from 0 to 1440"),
        (("--rows", "-5"), "--rows -5: a number from 0"),
        (("--report", "nowhere/x"), "is no folder"),
        (("--cases", "no_such_case"), "--cases 'no_such_case' matches no case"),
    ],
)
def test_a_wrong_option_is_named(prover: Prover, option: tuple[str, str], said: str) -> None:
    (prover.folder / "s.db").touch()
    code, _, err = prover.run("sqlite:///s.db", *option)
    assert code in (2, 12)
    assert said in err


# -- removal ---------------------------------------------------------------------------------------------------------


def wait_for_tables(url: str) -> None:
    eventually(lambda: any(name.startswith("table") for name in scratch_of(url).list_objects()))


def test_ctrl_c_leaves_nothing(prover: Prover, scratch: str) -> None:
    with prover.start(scratch, "--minutes", "5") as process:
        wait_for_tables(scratch)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "removing everything from database" in err
    assert scratch_of(scratch).list_objects() == []


def test_a_killed_run_is_reported_by_the_next_with_a_removal_that_works(prover: Prover, scratch: str) -> None:
    with prover.start(scratch, "--minutes", "5") as process:
        wait_for_tables(scratch)
        code, _, err = prover.run(scratch, *QUICK)
        assert code == 3
        assert "is used by another `venus prove`" in err
        process.kill()
    eventually(lambda: not sessions(scratch))
    code, _, err = prover.run(scratch, *QUICK)
    assert code == 3
    assert "has left: it was ended before it could remove them" in err
    (removal,) = re.findall(r"Remove them: `(DROP .*)`", err)
    with closing(psycopg2.connect(libpq(scratch))) as connection, connection.cursor() as cursor:
        cursor.execute(removal)
        connection.commit()
    assert prover.run(scratch, *QUICK, "--minutes", "0", "--rows", "0")[0] == 0


def sessions(url: str) -> list[Any]:
    """Return the sessions of killed processes that the server has not ended yet."""
    with closing(psycopg2.connect(libpq(url))) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return cursor.fetchall()


# -- failures that it notices ----------------------------------------------------------------------------------------


class NoTriggerScratch(PostgresScratch):
    """Database in which triggers do not fire for the application, so that changes are not captured."""

    def connect(self) -> Application:
        app = super().connect()
        run_transaction(app, "SET session_replication_role = replica")
        return app


def test_writers_whose_triggers_do_not_fire_are_noticed(database: str) -> None:
    scratch = NoTriggerScratch(database)
    scratch.prepare()
    with pytest.raises(WorkloadFailed, match=r"\d+ rows differ"):
        run_writers(scratch, seed=1, seconds=1)
    scratch.clear()


def test_a_plan_without_the_index_is_noticed(database: str, tmp_path: Path, postgres_server: Server) -> None:
    name = database.rpartition("/")[2].partition("?")[0]
    for setting in ("enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan"):
        postgres_server.execute(f"ALTER DATABASE {name} SET {setting} = off")
    scratch = PostgresScratch(database)
    report = ProofReport(version="x", taken_at="x", dialect="postgresql", seed=1)
    scratch.prepare()
    with scratch.statements.record() as recorded:
        Rehearsal(scratch, report, Details(tmp_path / "log")).run(recorded)
    assert {title for title, _ in report.failures} == {PLANS}
    assert all("no index: " in case.why for _, case in report.failures)
    scratch.clear()


class UncleanScratch(SqliteScratch):
    """Database that still has a table after it was cleared."""

    def clear(self) -> None:
        super().clear()
        with closing(self.connect()) as app:
            run_transaction(app, "CREATE TABLE IF NOT EXISTS left_over (id INTEGER PRIMARY KEY)")


def test_objects_that_stay_behind_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "s.db").touch()
    scratch = UncleanScratch(f"sqlite:///{tmp_path}/s.db")
    report = ProofReport(version="x", taken_at="x", dialect="sqlite", seed=1)
    said: list[str] = []
    request = ProofRequest(minutes=0, rows=0, seed=1, only="swap")
    run = ProofRun(scratch, request, report, Details(tmp_path / "log"))
    run.run(ScratchMarker(scratch.url), said.append, lambda *_: None)
    assert "still has table left_over; remove them: `rm " in said[-1]
    assert ("The end", "the catalogue is as it was before") in [(title, case.name) for title, case in report.failures]


def test_a_failure_is_described_without_its_message() -> None:
    try:
        raise WorkloadFailed("ORA-00942: no table SECRET.ACCOUNTS on host db7")
    except WorkloadFailed as error:
        found = describe_failure(error)
    assert found.startswith("WorkloadFailed ORA-00942")
    assert "SECRET" not in found


def test_a_statement_that_the_database_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.db").touch()
    scratch = SqliteScratch(f"sqlite:///{tmp_path}/s.db")
    report = ProofReport(version="x", taken_at="x", dialect="sqlite", seed=1)
    blocks = {**scratch.statements.blocks("registry"), "log_end": "SELECT coalesce(max(seq), 0) FORM {log}"}
    whole = type(scratch.statements).blocks
    monkeypatch.setattr(
        type(scratch.statements), "blocks", lambda self, file: blocks if file == "registry" else whole(self, file)
    )
    with scratch.statements.record() as recorded:
        Rehearsal(scratch, report, Details(tmp_path / "log")).run(recorded)
    assert (STATEMENTS, "registry.log_end") in [(title, case.name) for title, case in report.failures]
