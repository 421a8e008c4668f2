"""A survey of a PostgreSQL database: with a role that may not read, with large and with partitioned tables."""

from __future__ import annotations

from contextlib import closing

import psycopg2

from tests.support.databases.postgres import Server, libpq
from venus.adapters.dialects.registry import survey
from venus.adapters.dialects.survey_contract import SAMPLE_ROWS, SurveyRequest, TableSize
from venus.config import Settings


def sizes(url: str, *, count_rows: bool = False) -> dict[str, TableSize]:
    settings = Settings.model_validate({"source": {"url": url}})
    return {s.name: s for s in survey(settings, SurveyRequest(include=["*"], exclude=[], count_rows=count_rows)).sizes}


def run(url: str, *statements: str) -> None:
    with closing(psycopg2.connect(libpq(url))) as connection:
        connection.autocommit = True
        for statement in statements:
            connection.cursor().execute(statement)


def test_a_role_that_may_not_read_gets_the_dictionarys_figures(postgres_server: Server, database: str) -> None:
    run(
        database,
        "CREATE TABLE closed (id int PRIMARY KEY)",
        "CREATE TABLE open (id int PRIMARY KEY)",
        "INSERT INTO closed SELECT generate_series(1, 70)",
        "INSERT INTO open SELECT generate_series(1, 80)",
        "ANALYZE",
        "DROP ROLE IF EXISTS curious",
        "CREATE ROLE curious LOGIN",
        "GRANT SELECT ON open TO curious",
    )
    try:
        found = sizes(database.replace("//postgres@", "//curious@"), count_rows=True)
    finally:
        run(database, "DROP OWNED BY curious", "DROP ROLE curious")

    assert (found["closed"].rows, found["closed"].counted, found["closed"].sample) == (70, False, None)
    assert (found["open"].rows, found["open"].counted) == (80, True)
    assert found["open"].sample is not None


def test_a_large_table_is_sampled_from_all_of_its_blocks(database: str) -> None:
    run(
        database,
        "CREATE TABLE big (id int PRIMARY KEY, v text)",
        "INSERT INTO big SELECT g, repeat('x', CASE WHEN g > 3000 THEN 90 END) FROM generate_series(1, 60000) g",
        "ANALYZE",
    )
    sample = sizes(database)["big"].sample

    assert sample is not None
    assert 0 < sample.rows <= SAMPLE_ROWS
    # the first rows alone would have 7 bytes; a block of them has four times as many rows as another one
    assert sample.nbytes / sample.rows > 8


def test_a_partitioned_table_has_the_sum_of_its_partitions(database: str) -> None:
    run(
        database,
        "CREATE TABLE event (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE event_1 PARTITION OF event FOR VALUES FROM ('2026-01-01') TO ('2026-07-01')",
        "CREATE TABLE event_2 PARTITION OF event FOR VALUES FROM ('2026-07-01') TO ('2027-01-01')",
        "INSERT INTO event SELECT g, date '2026-01-01' + g % 360 FROM generate_series(1, 5000) g",
        "ANALYZE",
    )
    found = sizes(database)

    assert set(found) == {"event"}
    assert found["event"].rows == 5000
    assert found["event"].data_bytes is not None
    assert found["event"].data_bytes > 5000 * 8


def test_an_empty_table_has_no_rows_and_one_without_statistics_is_counted(database: str) -> None:
    run(database, "CREATE TABLE empty (id int PRIMARY KEY)")
    found = sizes(database)

    assert found["empty"].rows == 0
