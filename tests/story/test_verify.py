"""`venus verify` as an operator uses it: exit codes, reports, repair, a source that is away (scenarios 38 to 40)."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow.parquet as pq
import pytest

from tests.support.databases.postgres import Server, libpq
from tests.support.databases.shops import SIZES
from tests.support.pipelines.pipeline import Answer, Pipeline, with_password
from venus.cli.app import run
from venus.cli.demo.shop import build_shop

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture
def pipeline(tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    url = postgres_server.create_database()
    build_shop(tmp_path / "shop.db", **SIZES)
    made = Pipeline(folder=tmp_path, source=f"sqlite:///{tmp_path}/shop.db", targets={"main": with_password(url)})
    made.configure()
    try:
        yield made
    finally:
        made.close()
        postgres_server.drop_database(url)


def run_here(pipeline: Pipeline, *arguments: str, code: int = 0) -> Answer:
    """Run a command in this process if it need not be a new one; its output is searched for secrets as well."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(pipeline.folder), redirect_stdout(out), redirect_stderr(err):
        ended = run(list(arguments))
    with pipeline.log.open("a") as log:
        log.write(f"$ venus {' '.join(arguments)}\n{out.getvalue()}{err.getvalue()}=> {ended}\n")
    assert ended == code, f"venus {' '.join(arguments)} => {ended}\n{out.getvalue()}{err.getvalue()}"
    return Answer(ended, out.getvalue(), err.getvalue())


def compare(pipeline: Pipeline, *arguments: str, code: int = 0) -> Any:
    """Return the JSON document of a comparison."""
    return run_here(pipeline, "verify", *arguments, "--json", code=code).json


def run_at_source(pipeline: Pipeline, *statements: str) -> None:
    with closing(sqlite3.connect(pipeline.folder / "shop.db", timeout=30, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def run_at_target(pipeline: Pipeline, *statements: str) -> None:
    with closing(psycopg2.connect(libpq(pipeline.targets["main"]))) as connection:
        connection.autocommit = True
        for statement in ("SET session_replication_role = replica", *statements):
            connection.cursor().execute(statement)


def test_an_operator_verifies_and_repairs(pipeline: Pipeline) -> None:
    pipeline.venus("install-triggers")
    pipeline.start_broker()
    early = run_here(pipeline, "verify", code=2)
    assert "has not been loaded yet" in early.err
    assert "venus migrate --target main" in early.err
    pipeline.venus("migrate", "--target", "main")
    pipeline.start("sync", "sync")
    pipeline.wait_until_caught_up("main")

    same = pipeline.venus("verify")
    assert same.out.splitlines()[-1].startswith("SAME: ")
    pipeline.until_ok()
    status = pipeline.venus("status", "--rows", code=(0, 1)).out
    assert re.search(r"^target main: last verified .+ ago: same \([\d,]+ rows? of \d+ tables?\)$", status, re.MULTILINE)
    assert re.search(r"^main\.orders +active +\d+ +~[\d,]+ +~[\d,]+ ", status, re.MULTILINE), status
    assert compare(pipeline, "--table", "orders", "--table", "cust*")["verdict"] == "same"
    check_misspelt_options(pipeline)
    check_damage_is_found_and_repaired(pipeline)
    check_undecided_without_a_target(pipeline)
    compare_without_source(pipeline)
    pipeline.stop("broker")
    assert "venus: " in run_here(pipeline, "verify", code=2).err


def check_misspelt_options(pipeline: Pipeline) -> None:
    for arguments, said in (
        (("--leg", "both"), "One of auto, ends"),
        (("--table", "order"), "orders"),
        (("--dry-run",), "requires --repair"),
        (("--rows-per-s", "100", "--engine", "spark"), "Leave one out."),
        (("--target", "mian"), "main"),
        (("--where", "id > 1", "--leg", "target"), "--leg ends"),
        (("--where", "nonsense > 1", "--table", "orders"), "nonsense"),
    ):
        complaint = run_here(pipeline, "verify", *arguments, code=2).err
        assert said in complaint
        assert len(complaint.splitlines()) <= 3, complaint


def check_damage_is_found_and_repaired(pipeline: Pipeline) -> None:
    run_at_target(
        pipeline,
        "DELETE FROM orders WHERE id = 7",
        "UPDATE customers SET name = '<b>Eve</b> & co' WHERE id = 5",
        "INSERT INTO products (sku, name, price, stock, active) VALUES ('GHOST', 'g', 1, 1, true)",
    )

    shown = run_here(pipeline, "verify", "--html", "report.html", "--parquet", "findings", code=1).out
    assert "GHOST" in shown
    assert shown.splitlines()[-1].startswith("DIFFERENT: ")
    found = compare(pipeline, code=1)
    assert {(f["table"], *f["key"].values(), f["kind"], f["fault"]) for f in found["findings"]} == {
        ("main.orders", "7", "missing", "apply"),
        ("main.customers", "5", "different", "apply"),
        ("main.products", "GHOST", "extra", "apply"),
    }
    (customer,) = [f for f in found["findings"] if f["table"] == "main.customers"]
    assert customer["columns"]["name"]["target"] == "<b>Eve</b> & co"
    assert customer["columns"].keys() == {"name"}
    assert found["exit_code"] == 1
    check_reports(pipeline.folder)
    problem = "target main: the last comparison found 3 rows different; `venus verify --target main --repair`"
    assert any(text.startswith(problem) for text in pipeline.ask("status", code=1)["problems"])
    assert compare(pipeline, "--where", "id < 3", "--table", "orders")["verdict"] == "same"
    assert any(text.startswith(problem) for text in pipeline.ask("status", code=1)["problems"]), "of other rows"

    would = run_here(pipeline, "verify", "--repair", "--dry-run", code=1)
    assert "3 rows would be shipped again" in would.out
    assert len(compare(pipeline, code=1)["findings"]) == 3
    done = compare(pipeline, "--repair", "--wait-s", "60")
    assert done["repair"]["repaired"] == 3
    assert done["repair"]["left"] == []
    assert (done["verdict"], done["exit_code"]) == ("repaired", 0)
    assert compare(pipeline, "--leg", "all")["verdict"] == "same"
    pipeline.until(lambda: pipeline.ask("status", code=(0, 1))["problems"] == [], "no problem any more", every_s=0.5)


def check_reports(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert "&lt;b&gt;Eve&lt;/b&gt; &amp; co" in page
    assert "<b>Eve" not in page
    assert not re.search(r"(?:src|href)=|url\(|@import|<script", page), "it needs nothing else"
    lines = pq.read_table(folder / "findings" / "differences.parquet").to_pylist()
    assert {(line["table"], json.loads(line["key"]).popitem()[1], line["kind"]) for line in lines} == {
        ("main.orders", "7", "missing"),
        ("main.customers", "5", "different"),
        ("main.products", "GHOST", "extra"),
    }
    (name,) = [line for line in lines if line["table"] == "main.customers"]
    assert (name["column"], name["target"]) == ("name", "<b>Eve</b> & co")
    assert name["source"] == name["full"] != name["target"]
    assert pq.read_table(folder / "findings" / "tables.parquet").num_rows == 4


def check_undecided_without_a_target(pipeline: Pipeline) -> None:
    pipeline.stop("sync")
    run_at_source(pipeline, "UPDATE orders SET status = 'held' WHERE id = 9")

    found = compare(pipeline, "--wait-s", "0.2", code=3)

    assert found["verdict"] == "undecided"
    assert found["undecided"] == [
        {"table": "main.orders", "key": {"id": "9"}, "reason": "its change waits in the source's log"}
    ]
    assert run_here(pipeline, "verify", "--wait-s", "0.2", code=3).out.splitlines()[-1].startswith("UNDECIDED: ")


def compare_without_source(pipeline: Pipeline) -> None:
    """Compare with the broker: a change that only the source has is no fault."""
    (pipeline.folder / "shop.db").rename(pipeline.folder / "away.db")

    said = run_here(pipeline, "verify")
    assert "the source is not compared" in said.err
    assert said.out.splitlines()[-1].startswith("SAME: ")
    run_at_target(pipeline, "DELETE FROM orders WHERE id = 11")
    found = compare(pipeline, code=1)
    assert [(f["key"], f["fault"]) for f in found["findings"]] == [({"id": "11"}, "apply")]
    refused = run_here(pipeline, "verify", "--repair", code=2)
    assert "nothing was repaired" in refused.err
    assert "venus resync" in refused.err
    assert "source" in run_here(pipeline, "verify", "--leg", "ends", code=2).err
    (pipeline.folder / "away.db").rename(pipeline.folder / "shop.db")
