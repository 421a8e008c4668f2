"""A target that cannot hold the tables reports that before a row is read, and every other target is checked as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.feed import query
from tests.support.pipelines.pipeline import Pipeline, with_password

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SOURCE = """
CREATE EXTENSION vector;
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TYPE reach AS RANGE (SUBTYPE = positive);
CREATE DOMAIN direction AS vector(3);
CREATE TABLE found (id int PRIMARY KEY, at vector(3), pairs pair[], how_far reach, towards direction);
CREATE TABLE plain (id int PRIMARY KEY, v numeric);
INSERT INTO found VALUES (1, '[1,2,3]', '{"(1,x)"}', '[1,5)', '[1,2,3]');
INSERT INTO plain VALUES (1, 1.50);
"""
MADE = "CREATE EXTENSION vector; CREATE TYPE pair AS (a int, b text); CREATE DOMAIN positive AS int CHECK (VALUE > 0)"
COLUMNS = ["public.found.at", "public.found.how_far", "public.found.pairs", "public.found.towards"]


@pytest.fixture
def pipeline(tmp_path: Path, database: str, second_database: str) -> Iterator[Pipeline]:
    query(database, SOURCE)
    made = Pipeline(folder=tmp_path, source=database, targets={"main": with_password(second_database)})
    made.configure()
    yield made
    made.close()


def blocking_findings(pipeline: Pipeline, *, code: int = 3) -> dict[str, Any]:
    return {f["where"]: f for f in pipeline.ask("check", code=code)["findings"] if f["blocks"]}


def rows_read(database: str) -> int:
    return int(query(database, "SELECT coalesce(sum(fill_rows), 0) FROM venus.captured_table")[0][0])


def test_types_that_a_target_lacks_are_reported_before_a_row_is_read(
    pipeline: Pipeline, database: str, second_database: str
) -> None:
    found = blocking_findings(pipeline)
    assert sorted(found) == COLUMNS
    assert found["public.found.at"]["message"] == "is of type public.vector(3), which target main does not have"
    assert "CREATE EXTENSION vector" in found["public.found.at"]["remedy"]
    assert "CREATE EXTENSION vector" in found["public.found.towards"]["remedy"]
    assert "CREATE TYPE" in found["public.found.how_far"]["remedy"]
    pipeline.venus("install-triggers")
    pipeline.start_broker()
    refused = pipeline.venus("migrate", "--target", "main", code=3)
    assert all(name in refused.err for name in COLUMNS)
    assert rows_read(database) == 0
    query(second_database, f"{MADE}; CREATE TYPE reach AS RANGE (SUBTYPE = positive)")
    assert blocking_findings(pipeline, code=0) == {}
    pipeline.venus("migrate", "--target", "main")
    assert query(second_database, "SELECT at::text, how_far::text FROM found") == [("[1,2,3]", "[1,5)")]


def test_a_new_table_with_an_unsupported_type_halts_alone(
    pipeline: Pipeline, database: str, second_database: str
) -> None:
    pipeline.source_options = 'exclude = ["found"]'
    pipeline.configure()
    pipeline.venus("install-triggers")
    pipeline.start_broker()
    pipeline.venus("migrate", "--target", "main")
    pipeline.start("sync", "sync")
    pipeline.source_options = ""
    pipeline.configure()
    pipeline.venus("install-triggers")
    query(database, "INSERT INTO plain VALUES (2, 2.50)")
    pipeline.until(lambda: query(second_database, "SELECT id FROM plain WHERE id = 2"), "the other table")

    def read_halt() -> Any:
        text = "SELECT reason FROM venus.target_table WHERE source_name = 'public.found' AND state = 'HALTED'"
        return query(second_database, text)

    pipeline.until(read_halt, "the table to halt")
    ((reason,),) = read_halt()
    assert "public.found.at is of type public.vector(3), which target main does not have" in reason


def test_a_target_that_is_down_or_wrong_hides_no_finding_about_the_others(
    pipeline: Pipeline, database: str, second_database: str
) -> None:
    query(second_database, "CREATE SCHEMA other; CREATE TABLE plain (id text PRIMARY KEY); CREATE EXTENSION vector")
    query(second_database, "CREATE ROLE stranger LOGIN; GRANT USAGE ON SCHEMA public TO stranger")
    wrong = second_database.replace("/t", "/nosuch", 1)
    lake = pipeline.folder / "a folder"
    lake.mkdir()
    (lake / "another's").write_text("x")
    pipeline.targets |= {
        "down": "postgresql://postgres@127.0.0.1:1/x",
        "wrong": wrong,
        "lake": f"parquet://{lake}",
        "poor": second_database.replace("postgres@", "stranger@", 1),
    }
    pipeline.configure()
    try:
        answer = pipeline.ask("check", code=3)
    finally:
        query(second_database, "REVOKE USAGE ON SCHEMA public FROM stranger; DROP ROLE stranger")
    said = {f["where"]: f["message"] for f in answer["findings"]}
    assert "cannot be reached" in said["target down"]
    assert "does not exist" in said["target wrong"]
    assert "files that VENUS did not write" in said["target lake"]
    assert "does not let role stranger create tables in schema public" in {f["message"] for f in answer["findings"]}
    assert "the source needs integer" in " ".join(f["message"] for f in answer["findings"])
    blocks = {f["where"] for f in answer["findings"] if f["blocks"]}
    assert "target down" not in blocks
    assert {"target wrong", "target lake", "public.plain"} <= blocks
