"""Logs for machines: every line is a JSON object, and one cut can be traced through all processes by its id."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bench import stages
from tests.support.collectors import Collected, run_collector
from tests.support.databases.postgres import Server
from tests.support.pipelines.pipeline import PASSWORD, Pipeline
from tests.support.pipelines.story_places import sqlite_pipeline
from venus.cli.demo.servers import is_listening

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

JSON_LOG = ("-v", "--log-format", "json")


@pytest.fixture
def pipeline(tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    with sqlite_pipeline(tmp_path, postgres_server) as made:
        yield made


def lines(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Return the objects of the log; other lines are the commands' own output on stdout."""
    found = [line for line in pipeline.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in map(json.loads, found) if "level" in line]


def spans_of_cut(spans: Collected, cut: str) -> Collected:
    """Return the log lines of a cut's spans."""
    return [(role, span) for role, span in list(spans) if any(a.value.string_value == cut for a in span.attributes)]


def write(pipeline: Pipeline, *statements: str) -> None:
    with closing(sqlite3.connect(pipeline.folder / "app.db", timeout=60)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def test_a_cut_is_traced_from_the_source_to_the_target(pipeline: Pipeline) -> None:
    with run_collector() as (endpoint, spans):
        with (pipeline.folder / "venus.toml").open("a") as file:
            file.write(f'[tracing]\nendpoint = "{endpoint}"\nsample = 1\n')
        follow(pipeline, spans)


def follow(pipeline: Pipeline, spans: Collected) -> None:
    write(pipeline, "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)", "PRAGMA journal_mode = WAL")
    pipeline.venus("install-triggers")
    pipeline.start("broker", *JSON_LOG, "broker")
    pipeline.until(lambda: is_listening(pipeline.ports[0]), "the broker")
    pipeline.venus("migrate", "--target", "main")
    pipeline.start("sync", *JSON_LOG, "sync")
    write(pipeline, *(f"INSERT INTO t VALUES ({n}, 'row {n} of the secret kind')" for n in range(321)))

    def captured_lines() -> list[dict[str, Any]]:  # the cut may also contain a heartbeat
        return [line for line in lines(pipeline) if line.get("stage") == "captured" and line["rows"] >= 321]

    pipeline.until(captured_lines, "the cut", every_s=0.2)
    (cut,) = {line["cut"] for line in captured_lines()}
    assert re.fullmatch(r"main/\d+", cut)

    def read_way() -> list[dict[str, Any]]:  # each process writes its line when it likes
        return [line for line in lines(pipeline) if line.get("cut") == cut]

    pipeline.until(lambda: len(read_way()) == 3, "three processes to report it")
    way = read_way()
    assert sorted((line["stage"], line["role"]) for line in way) == [
        ("applied", "target main"),
        ("captured", "capture"),
        ("committed", "venus broker"),
    ]
    assert len({line["pid"] for line in way}) == 3
    pipeline.until(lambda: len(spans_of_cut(spans, cut)) == 3, "three spans", every_s=0.2)
    traced = spans_of_cut(spans, cut)
    assert sorted((span.name, role) for role, span in traced) == sorted((line["stage"], line["role"]) for line in way)
    assert len({span.trace_id for _, span in traced}) == 1
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]) for line in way)
    (times,) = (t for t in stages.read(pipeline.log) if t["captured.ended"] == captured_lines()[0]["ended_us"])
    # a change may have arrived before its sender reads the clock
    in_order = [times[name] for _, name in stages.STAGES if name != "captured.sent"]
    assert in_order == sorted(in_order)
    said = pipeline.log.read_text()
    assert "of the secret kind" not in said
    assert PASSWORD not in said


def test_an_error_is_a_json_object_too(pipeline: Pipeline) -> None:
    done = pipeline.venus("--log-format", "json", "sync", "--target", "missing", code=2)

    (line,) = done.err.splitlines()
    found = json.loads(line)
    assert (found["level"], found["exit_code"]) == ("ERROR", 2)
    assert "no target named 'missing'" in found["message"]
    assert found["hint"] == "Known: main."


def test_an_unknown_format_is_refused(pipeline: Pipeline) -> None:
    for arguments in (
        ("--log-format", "xml", "sync"),
        ("sync", "--log-format", "xml"),
        ("broker", "--log-format", "x"),
    ):
        done = pipeline.venus(*arguments, code=2)
        assert "invalid format" in done.err
        assert "One of text, json." in done.err
