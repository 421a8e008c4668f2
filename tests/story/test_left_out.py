"""A cut-over is refused while a table is not captured, unless it is excluded by name."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.databases.postgres import Server
from tests.support.pipelines.story_places import sqlite_pipeline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

QUIET = ("--quiet", "0.5", "--wait", "120")
BLOCK = "main.later matches the patterns and is not captured: venus install-triggers; to go without it: --leave-out"


def test_a_cut_over_names_the_tables_that_are_not_captured(tmp_path: Path, postgres_server: Server) -> None:
    with (
        sqlite_pipeline(tmp_path, postgres_server) as pipeline,
        closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None, timeout=60)) as app,
    ):
        app.executescript("CREATE TABLE orders (id INTEGER PRIMARY KEY); INSERT INTO orders VALUES (1)")
        pipeline.venus("install-triggers")
        pipeline.start_broker()
        app.executescript("CREATE TABLE later (id INTEGER PRIMARY KEY); INSERT INTO later VALUES (1), (2)")
        assert "! not loaded: main.later matches the patterns" in pipeline.venus("migrate", "--target", "main").out
        pipeline.start("sync", "sync")
        app.execute("CREATE TABLE keyless (a INTEGER)")
        pipeline.until(lambda: "main.keyless" in str(pipeline.status()["broker"]["reported"]), "capture to say so")
        blocks = pipeline.rehearse("cutover", "--target", "main", *QUIET)["blocks"]
        assert len(blocks) == 2, blocks
        assert blocks[0].startswith("main.keyless matches the patterns and cannot be captured: no key by which")
        assert blocks[1].startswith(BLOCK)
        assert BLOCK in pipeline.venus("cutover", "--target", "main", *QUIET, code=3).err
        one = ("--leave-out", "later")
        said = pipeline.venus("cutover", "--target", "main", *one, *QUIET, code=3).err
        assert "main.keyless" in said
        assert "main.later" not in said
        assert "(did you mean main.later?)" in pipeline.venus("cutover", "--leave-out", "latr", *QUIET, code=2).err
        both = (*one, "--leave-out", "main.keyless")
        assert pipeline.ask("cutover", "--target", "main", "--rehearse", *both, *QUIET)["blocks"] == []

        found = pipeline.ask("cutover", "--target", "main", *both, *QUIET)["certificate"]
        assert [t["table"] for t in found["tables"]] == ["main.orders"]
        left_out = {t["table"]: t["reason"] for t in found["tables_left_out"]}
        assert left_out == {"main.later": "not captured", "main.keyless": left_out["main.keyless"]}
        assert json.loads((tmp_path / "cutover-main.json").read_text())["tables_left_out"] == found["tables_left_out"]
        assert "! main.later: not captured" in (tmp_path / "cutover-main.txt").read_text()
