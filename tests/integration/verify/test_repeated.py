"""Repeated rows: a target whose key was dropped, for example for a fast manual load, accepts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.databases.postgres import Server
from tests.support.pipelines.end_to_end import EndToEnd, difference_keys, end_to_end, run_at
from venus.adapters.verify.findings import ComparisonVerdict
from venus.adapters.verify.repair import run_repair

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

REPEATED = {("item", ("7",), "repeated", "apply"), ("word", ("w7",), "repeated", "apply")}


@pytest.fixture(scope="module")
def e2e(tmp_path_factory: pytest.TempPathFactory, postgres_server: Server) -> Iterator[EndToEnd]:
    """Yield a pipeline of a table compared in ranges and one compared as a whole; the target repeats a row of each."""
    source, target = postgres_server.create_database(), postgres_server.create_database()
    with end_to_end(tmp_path_factory.mktemp("way"), source, target) as made:
        run_at(
            source,
            "CREATE TABLE item (id int PRIMARY KEY, v text)",
            "CREATE TABLE word (w text PRIMARY KEY, v text)",
            "INSERT INTO item SELECT n, 'v' || n FROM generate_series(1, 300) n",
            "INSERT INTO word SELECT 'w' || n, 'v' || n FROM generate_series(1, 300) n",
        )
        made.install()
        made.load()
        made.at_target(
            "ALTER TABLE item DROP CONSTRAINT item_pkey",
            "ALTER TABLE word DROP CONSTRAINT word_pkey",
            "INSERT INTO item SELECT * FROM item WHERE id = 7",
            "INSERT INTO word VALUES ('w7', 'another')",
        )
        yield made
    postgres_server.drop_database(source)
    postgres_server.drop_database(target)


@pytest.mark.parametrize("options", [{}, {"mode": "scan"}, {"leg": "target"}], ids=str)
def test_a_repeated_row_is_a_difference(e2e: EndToEnd, options: dict[str, Any]) -> None:
    result = e2e.verify(**options)

    assert difference_keys(result) == REPEATED
    assert result.verdict is ComparisonVerdict.DIFFERENT
    assert {d.note for d in result.differences} == {"2 rows in the target"}


def test_a_repair_does_not_ship_a_further_copy(e2e: EndToEnd) -> None:
    result = e2e.verify()

    done = run_repair(e2e.settings, "main", result, wait_s=0.3)

    assert (done.emitted, done.repaired, result.shippable) == ({}, 0, [])
    assert {s.table for s in done.left} == {"public.item", "public.word"}
    assert all("delete all but one" in s.reason for s in done.left)
